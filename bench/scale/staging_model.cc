#include "bench/scale/staging_model.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr double kMemoryPasses = 3;  // one write, one read for the digest, one read to send it on

Floor longest(const std::vector<Floor>& floors) {
  return *std::ranges::max_element(floors, {}, &Floor::seconds);
}

// The floors of one GPU over PCIe, and of the GPUs that share a switch.
std::vector<Floor> into_gpus(double model, const Cluster& c) {
  const double each = model / c.gpus_per_replica;
  return {{.seconds = each / c.host.pcie, .link = "PCIe"},
          {.seconds = each * c.host.gpus_per_switch / c.host.pcie, .link = "PCIe switch"},
          {.seconds = each * c.host.gpus / c.host.host_memory, .link = "host memory"},
          {.seconds = each / c.host.gpu_memory, .link = "GPU memory"}};
}

}  // namespace

Result<StagingPrediction> simulate_staging(std::uint64_t model_bytes, const Cluster& cluster,
                                           const StagingOptions& options) {
  WSYNC_TRY(check_cluster(cluster));
  if (options.unit_bytes == 0 || options.fan_out == 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("units of {} bytes passed on to {} hosts: expected more than 0",
                            options.unit_bytes, options.fan_out));
  const std::uint32_t chains = cluster.hosts_per_replica();
  const std::uint64_t each = (model_bytes + chains - 1) / chains;
  const std::uint32_t hosts = std::max(1U, cluster.hosts() / chains);
  // The trainer has one child in each chain.
  const std::vector<Floor> speeds = {
      {.seconds = cluster.network() / chains, .link = "the trainer's network"},
      {.seconds = cluster.network() / (hosts > 1 ? std::min(options.fan_out, hosts - 1) : 1),
       .link = "network"},
      {.seconds = cluster.host.host_memory / kMemoryPasses, .link = "host memory"}};
  const Floor slowest = *std::ranges::min_element(speeds, {}, &Floor::seconds);
  StagingPrediction made{.seconds = 0, .levels = 0, .bottleneck = slowest.link};
  for (std::uint64_t reached = 0, width = 1; reached < hosts; width *= options.fan_out) {
    reached += width;
    ++made.levels;
  }
  const double trainer = std::min(speeds[0].seconds, speeds[2].seconds);
  const double host = std::min(speeds[1].seconds, speeds[2].seconds);
  if (each == 0) return made;
  // All units but the last one have the same size. So each of them arrives at a level as long after
  // the one before as the slowest link before that level takes.
  const std::uint64_t equal = (each - 1) / options.unit_bytes;
  const auto unit = static_cast<double>(options.unit_bytes);
  const double first = unit / trainer;
  const double next = unit / host;
  const auto arrival_of_equal = [&](std::uint32_t level) {
    if (equal == 0) return 0.0;
    const double behind = static_cast<double>(equal - 1);
    if (level == 0) return first + behind * first;
    return first + level * (options.hop_s + next) + behind * std::max(first, next);
  };
  const auto last = static_cast<double>(each - equal * options.unit_bytes);
  double came = 0;
  for (std::uint32_t level = 0; level < made.levels; ++level) {
    const double ready = level == 0 ? 0 : came + options.hop_s;
    came = std::max(ready, arrival_of_equal(level)) + last / (level == 0 ? trainer : host);
  }
  made.seconds = came;
  return made;
}

Result<Floor> update_floor(std::uint64_t model_bytes, const Cluster& cluster) {
  WSYNC_TRY(check_cluster(cluster));
  const auto model = static_cast<double>(model_bytes);
  std::vector<Floor> floors = into_gpus(model, cluster);
  const double needed = model / cluster.hosts_per_replica();
  const double there = model / cluster.hosts();
  if (needed > there)
    floors.push_back({.seconds = (needed - there) / cluster.network(), .link = "network"});
  return longest(floors);
}

Result<Floor> switch_floor(std::uint64_t model_bytes, const Cluster& cluster) {
  WSYNC_TRY(check_cluster(cluster));
  return longest(into_gpus(static_cast<double>(model_bytes), cluster));
}

Result<Floor> staging_floor(std::uint64_t model_bytes, const Cluster& cluster) {
  WSYNC_TRY(check_cluster(cluster));
  const auto model = static_cast<double>(model_bytes);
  return longest(
      {{.seconds = model / cluster.network(), .link = "the trainer's network"},
       {.seconds = model / cluster.hosts_per_replica() / cluster.network(), .link = "network"},
       {.seconds = model / cluster.hosts_per_replica() / cluster.host.host_memory,
        .link = "host memory"}});
}

}  // namespace wsync::bench
