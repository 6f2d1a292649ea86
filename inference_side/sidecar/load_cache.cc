#include "inference_side/sidecar/load_cache.h"

#include <algorithm>
#include <thread>

#include "shared/base/planted.h"

namespace wsync::agent {
namespace {

// That verify a version before its engines are prepared.
constexpr unsigned kVerifyThreads = 2;

Result<std::shared_ptr<const PreparedLoad>> compute_load(const staging::HeldVersion& version,
                                                         std::uint64_t bucket_bytes,
                                                         const TakenTensors& tensors,
                                                         const std::stop_token& stop) {
  auto load = std::make_shared<PreparedLoad>();
  if (bucket_bytes == version.plan()->bucket_bytes()) {
    load->buckets = version.plan();
  } else {
    auto buckets = WSYNC_TRY(BucketPlan::create(*version.manifest(), bucket_bytes));
    load->buckets = std::make_shared<const BucketPlan>(std::move(buckets));
  }
  auto plan = WSYNC_TRY(reload::LoadPlan::make(
      *version.manifest(), *load->buckets,
      tensors.list ? *tensors.list : reload::whole_tensors(*version.manifest())));
  load->plan = std::move(plan);
  load->needed = reload::NeededBytes::of(load->plan);
  if (tensors.maps_version && !planted("mapped_version_not_verified"))
    WSYNC_TRY(version.verify(std::min(kVerifyThreads, std::thread::hardware_concurrency()), stop));
  return load;
}

}  // namespace

Digest tensors_key(std::span<const control::EngineTensor> tensors) {
  Digester digester;
  for (const control::EngineTensor& tensor : tensors) {
    digester.update(static_cast<std::uint64_t>(tensor.name.size()));
    digester.update(std::string_view(tensor.name));
    digester.update(std::uint64_t{static_cast<std::uint8_t>(tensor.dtype)});
    digester.update(static_cast<std::uint64_t>(tensor.shape.size()));
    for (const std::uint64_t extent : tensor.shape) digester.update(extent);
    digester.update(static_cast<std::uint64_t>(tensor.ranges.size()));
    for (const control::DimRange& range : tensor.ranges) {
      digester.update(std::uint64_t{range.dim});
      digester.update(range.begin);
      digester.update(range.length);
    }
  }
  return digester.finish();
}

void LoadCache::request(Worker& worker, const std::shared_ptr<const staging::HeldVersion>& version,
                        std::uint64_t bucket_bytes, const TakenTensors& tensors, OnReady on_ready) {
  const Key id{.version = version->version(),
               .tensors = tensors.key,
               .any_layout = tensors.list == nullptr,
               .maps_version = tensors.maps_version};
  Entry& entry = entries_[id];
  if (entry.ready) {
    on_ready(entry.ready);
    return;
  }
  entry.waiting.push_back(std::move(on_ready));
  if (entry.waiting.size() > 1) return;
  entry.number = next_++;
  auto outcome = std::make_shared<Result<std::shared_ptr<const PreparedLoad>>>();
  const auto submitted = worker.submit(
      [version, bucket_bytes, tensors, outcome, stop = entry.stop.get_token()] {
        *outcome = compute_load(*version, bucket_bytes, tensors, stop);
      },
      [weak = weak_from_this(), id, number = entry.number, outcome] {
        const std::shared_ptr<LoadCache> self = weak.lock();
        if (!self) return;
        auto& entries = self->entries_;
        const auto it = entries.find(id);
        if (it == entries.end() || it->second.number != number) return;
        const std::vector<OnReady> waiting = std::move(it->second.waiting);
        if (*outcome)
          it->second.ready = **outcome;
        else
          entries.erase(it);
        for (const OnReady& ready : waiting) ready(*outcome);
      });
  if (submitted) return;
  const std::vector<OnReady> waiting = std::move(entry.waiting);
  entries_.erase(id);
  for (const OnReady& ready : waiting) ready(fail(submitted.error()));
}

void LoadCache::forget(const Version& version) {
  std::erase_if(entries_, [&](auto& entry) {
    if (entry.first.version != version) return false;
    entry.second.stop.request_stop();
    return true;
  });
}

LoadCache::~LoadCache() {
  for (auto& [key, entry] : entries_) entry.stop.request_stop();
}

}  // namespace wsync::agent
