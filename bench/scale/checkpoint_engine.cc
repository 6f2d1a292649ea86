#include "bench/scale/checkpoint_engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr double kRingBase = 8.4e-6;
constexpr double kRingStepNvlink = 3.4e-6;
constexpr double kRingStepPcie = 5.7e-6;
constexpr double kRingStepNetwork = 14e-6;
constexpr std::uint64_t kTensorAlignment = 256;  // alignment of tensors in a buffer

struct PeerBucket {
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
};
using BucketsOfRank = std::vector<PeerBucket>;

std::vector<BucketsOfRank> cut(const ModelBytes& model, std::uint32_t ranks,
                               std::uint64_t bucket_bytes) {
  const std::uint64_t count = model.tensors.size();
  const std::uint64_t each = (count + ranks - 1) / ranks;
  std::vector<BucketsOfRank> made;
  for (std::uint64_t first = 0; first < count; first += each) {
    BucketsOfRank buckets(1);
    for (std::uint64_t t = first; t < std::min(count, first + each); ++t) {
      const std::uint64_t bytes =
          (model.tensors[t] + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
      if (buckets.back().bytes + bytes > bucket_bytes) buckets.emplace_back();
      buckets.back().bytes += bytes;
      ++buckets.back().tensors;
    }
    made.push_back(std::move(buckets));
  }
  return made;
}

// One host of the cluster with its ranks and engines. All hosts do the same.
class PeerHost {
 public:
  PeerHost(const Cluster& cluster, const CheckpointEngineOptions& options)
      : cluster_(cluster), options_(options), latency_s_(ring_latency_s(cluster)) {
    const HostType& host = cluster.host;
    for (std::uint32_t g = 0; g < host.gpus; ++g)
      pcie_.push_back(links_.add(fmt::format("PCIe of GPU {}", g), host.pcie));
    for (std::uint32_t s = 0; s < host.gpus / host.gpus_per_switch; ++s)
      switches_.push_back(links_.add(fmt::format("PCIe switch {}", s), host.pcie));
    memory_ = links_.add("host memory", host.host_memory);
    if (host.nvlink > 0) nvlink_ = links_.add("NVLink", host.nvlink);
    if (cluster.hosts() > 1) network_ = links_.add("network", cluster.network());
    engine_ = links_.add("engine, tensor by tensor", 1);
    if (options.gpu_takes_turns) turns_ = links_.add("turns on the GPU", 1);
  }

  // All GPUs of a host copy at the same time. A round continues when the slowest rank has finished.
  void copy_in(std::uint64_t bytes) {
    std::vector<FlowId> mine;
    for (std::size_t g = 0; g < pcie_.size(); ++g)
      mine.push_back(
          links_.start({.work = static_cast<double>(bytes),
                        .demands = {{.link = pcie_[g]},
                                    {.link = switches_[g / cluster_.host.gpus_per_switch]},
                                    {.link = memory_}}}));
    wait_for(std::move(mine));
  }

  // The owner's copy on its GPU, the broadcast, and the wait for the previous reload.
  void broadcast(const PeerBucket& bucket) {
    const auto bytes = static_cast<double>(bucket.bytes);
    Flow flow{
        .fixed_s = latency_s_ + 2 * bytes / cluster_.host.gpu_memory, .work = bytes, .demands = {}};
    double alone = network_ ? cluster_.network() : cluster_.host.nvlink;
    if (network_) flow.demands.push_back({.link = *network_});
    if (nvlink_) {
      flow.demands.push_back({.link = *nvlink_});
      alone = std::min(alone, cluster_.host.nvlink);
    } else {
      for (const LinkId link : pcie_) flow.demands.push_back({.link = link});
      for (const LinkId link : switches_) flow.demands.push_back({.link = link});
      alone = alone > 0 ? std::min(alone, cluster_.host.pcie) : cluster_.host.pcie;
    }
    if (turns_) flow.demands.push_back({.link = *turns_, .share = 1 / alone});
    std::vector<FlowId> mine = {links_.start(std::move(flow))};
    if (reload_) mine.push_back(*reload_);
    wait_for(std::move(mine));
    reload_.reset();
  }

  void reload(const PeerBucket& bucket) {
    const double copied = 2 * static_cast<double>(bucket.bytes) /
                          static_cast<double>(cluster_.gpus_per_replica) / cluster_.host.gpu_memory;
    Flow flow{.work = static_cast<double>(bucket.tensors) * options_.tensor_s + copied,
              .demands = {{.link = engine_}}};
    if (turns_) flow.demands.push_back({.link = *turns_});
    reload_ = links_.start(std::move(flow));
  }

  Prediction end(std::uint64_t buckets) {
    if (reload_) wait_for({*reload_});
    Prediction made{.seconds = links_.now_s(), .buckets = buckets, .use = links_.use()};
    // not a link: the work in turns on the GPU is counted separately
    if (turns_) made.use.pop_back();
    made.use.push_back({.name = "steps of the broadcast ring",
                        .seconds = latency_s_ * static_cast<double>(buckets)});
    return made;
  }

 private:
  void wait_for(std::vector<FlowId> flows) {
    while (!flows.empty())
      for (const FlowId ended : links_.advance()) {
        std::erase(flows, ended);
        if (reload_ == ended) reload_.reset();
      }
  }

  const Cluster& cluster_;
  const CheckpointEngineOptions& options_;
  const double latency_s_;
  SharedLinks links_;
  std::vector<LinkId> pcie_;
  std::vector<LinkId> switches_;
  LinkId memory_{};
  std::optional<LinkId> nvlink_;
  std::optional<LinkId> network_;
  LinkId engine_{};
  std::optional<LinkId> turns_;
  std::optional<FlowId> reload_;
};

}  // namespace

double ring_latency_s(const Cluster& cluster) {
  const double inside = cluster.host.nvlink > 0 ? kRingStepNvlink : kRingStepPcie;
  const double hosts = cluster.hosts();
  return kRingBase + (cluster.gpus - hosts) * inside + (hosts - 1) * kRingStepNetwork;
}

Result<Prediction> simulate_checkpoint_engine(const ModelBytes& model, const Cluster& cluster,
                                              const CheckpointEngineOptions& options) {
  WSYNC_TRY(check_cluster(cluster));
  if (model.tensors.size() < cluster.gpus)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} tensors for {} ranks: expected at least one tensor for each rank",
                            model.tensors.size(), cluster.gpus));
  const std::uint64_t largest = *std::ranges::max_element(model.tensors);
  if (options.bucket_bytes < largest)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format(
            "buffers of {} bytes: the largest tensor has {} bytes and must fit into one buffer",
            options.bucket_bytes, largest));
  const auto ranks = cut(model, cluster.gpus, options.bucket_bytes);
  std::size_t rounds = 0;
  std::uint64_t buckets = 0;
  for (const BucketsOfRank& rank : ranks) {
    rounds = std::max(rounds, rank.size());
    buckets += rank.size();
  }
  PeerHost host(cluster, options);
  for (std::size_t round = 0; round < rounds; ++round) {
    std::uint64_t max = 0;
    for (const BucketsOfRank& rank : ranks)
      if (round < rank.size()) max = std::max(max, rank[round].bytes);
    host.copy_in(max);
    for (const BucketsOfRank& rank : ranks) {
      if (round >= rank.size()) continue;
      host.broadcast(rank[round]);
      host.reload(rank[round]);
    }
  }
  return host.end(buckets);
}

}  // namespace wsync::bench
