#include "inference_side/sidecar/device_staging.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

namespace wsync::agent {
namespace {

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(now() - begin).count();
}

// The bytes stay where they are. A device that cannot pin them copies them all the same, but more
// slowly.
Result<> register_bytes(const reload::DeviceGroup& group, DeviceVersion& out) {
  const TimePoint begin = now();
  const staging::HeldVersion& version = *out.version;
  std::string fallback;
  std::uint32_t fallen_back = 0;
  for (std::uint32_t d = 0; d < group.size(); ++d) {
    auto made = group.device(reload::DeviceIndex{d}).register_host(version.data());
    if (!made) return fail(made.error().with_context("registering the staged bytes"));
    if (!(*made)->registered()) {
      ++fallen_back;
      if (fallback.empty()) fallback = (*made)->fallback();
    }
    out.registrations.push_back(std::move(*made));
  }
  if (fallen_back > 0)
    log_warning(
        "version {}: its {} bytes are not registered with {} of {} devices ({}): each copy to such "
        "a device goes through a buffer of the driver, which is slower and makes the pause longer",
        version.version().to_string(), version.data().size(), fallen_back, group.size(), fallback);
  else
    log_debug("version {}: {} bytes registered with {} devices in {:.3f} s",
              version.version().to_string(), version.data().size(), group.size(),
              seconds_since(begin));
  return {};
}

void compute_digests(ThreadPool* helpers, DeviceVersion& out) {
  const TimePoint begin = now();
  const BucketPlan& plan = *out.buckets;
  const std::span<const std::byte> data = out.version->data();
  auto digests = std::make_shared<std::vector<device::PieceDigest>>(plan.bucket_count());
  for_each_index(helpers, plan.bucket_count(), [&](std::size_t b) {
    (*digests)[b] = device::piece_digest(data.subspan(plan.bucket_offset(b), plan.bucket_size(b)));
  });
  out.digests = std::move(digests);
  log_debug("version {}: digests of {} buckets in {:.3f} s", out.version->version().to_string(),
            plan.bucket_count(), seconds_since(begin));
}

Result<> compute(const reload::DeviceGroup& group, ThreadPool* helpers, DeviceVersion& out) {
  auto buckets = WSYNC_TRY(BucketPlan::create(*out.version->manifest(), group.buffer_bytes()));
  out.buckets = std::make_shared<const BucketPlan>(std::move(buckets));
  WSYNC_TRY(register_bytes(group, out));
  // Not needed on host devices: the checksum of each engine finds the same errors, and a second
  // pass over the bytes would evict them from the cache.
  if (group.kind() == DeviceKind::kCuda) compute_digests(helpers, out);
  return {};
}

}  // namespace

DeviceStaging::DeviceStaging(Loop& loop, const reload::DeviceGroup& group, ThreadPool* helpers)
    : group_(group),
      helpers_(helpers),
      worker_(loop, {.name = "device-staging", .max_queued = 4 * limits::kStagedCount}) {}

DeviceStaging::~DeviceStaging() {
  *alive_ = false;
  worker_.stop();
  // Empty the cells here: a completion that still waits in the loop would otherwise unregister its
  // version after the devices are destroyed.
  for (const auto& [number, cell] : computing_) cell->reset();
}

void DeviceStaging::add(std::shared_ptr<const staging::HeldVersion> version,
                        std::function<void()> on_ready) {
  const std::uint64_t number = next_++;
  entries_[version->version()] = {.number = number, .ready = nullptr};
  const auto cell = std::make_shared<Cell>(std::make_shared<DeviceVersion>());
  (*cell)->version = std::move(version);
  computing_[number] = cell;
  const auto submitted = worker_.submit(
      [&group = group_, helpers = helpers_, cell] {
        if (const auto made = compute(group, helpers, **cell); !made)
          (*cell)->usable = fail(made.error());
      },
      [this, alive = alive_, number, on_ready] {
        if (*alive) computed(number, on_ready);
      });
  if (submitted) return;
  (*cell)->usable = fail(submitted.error());
  computed(number, on_ready);
}

void DeviceStaging::computed(std::uint64_t number, const std::function<void()>& on_ready) {
  auto computing = computing_.extract(number);
  std::shared_ptr<const DeviceVersion> version = std::move(*computing.mapped());
  const auto entry = entries_.find(version->version->version());
  if (entry == entries_.end() || entry->second.number != number) {
    release(std::move(version));
    return;
  }
  entry->second.ready = std::move(version);
  on_ready();
}

void DeviceStaging::remove(const Version& version) {
  auto entry = entries_.extract(version);
  if (entry && entry.mapped().ready) release(std::move(entry.mapped().ready));
}

// Unregistering is slow, so the last pointer is released on the worker thread.
void DeviceStaging::release(std::shared_ptr<const DeviceVersion> version) {
  auto last = std::make_shared<std::shared_ptr<const DeviceVersion>>(std::move(version));
  (void)worker_.submit([last] { last->reset(); });
}

std::shared_ptr<const DeviceVersion> DeviceStaging::find(const Version& version) const {
  const auto entry = entries_.find(version);
  return entry == entries_.end() ? nullptr : entry->second.ready;
}

}  // namespace wsync::agent
