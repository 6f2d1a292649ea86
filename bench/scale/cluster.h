// Hosts with GPUs, and the links between them.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::uint32_t kScaleGpusMax = 100'000;

// All speeds are bytes per second in one direction, as copies reach them. (Data sheets often give
// the sum of both directions.) All hosts of a cluster are the same.
struct HostType {
  std::string name;
  std::uint32_t gpus = 8;
  std::uint64_t gpu_bytes = 0;        // memory of one GPU
  double gpu_memory = 0;              // speed of that memory
  double pcie = 0;                    // host memory to one GPU
  std::uint32_t gpus_per_switch = 1;  // GPUs that share one PCIe link to the host
  double nvlink = 0;                  // into one GPU; 0: no NVLink, GPUs communicate over PCIe
  std::uint32_t nics = 0;
  double nic = 0;          // speed of one NIC
  double host_memory = 0;  // total of all channels
  friend bool operator==(const HostType&, const HostType&) = default;
};

// Hosts with eight H800 and with eight H20. cluster.cc has the sources of the figures and the
// assumptions.
[[nodiscard]] HostType h800_host();
[[nodiscard]] HostType h20_host();
// "h800" or "h20". For other names kInvalidInput, which lists both.
[[nodiscard]] Result<HostType> find_host(const std::string& name);

struct Cluster {
  HostType host;
  std::uint32_t gpus = 8;
  std::uint32_t gpus_per_replica = 8;  // GPUs that hold one copy of the model together
  // Total bandwidth of the NICs divided by what the network carries between hosts. 1: no
  // oversubscription.
  double oversubscription = 1;

  [[nodiscard]] std::uint32_t hosts() const noexcept { return (gpus + host.gpus - 1) / host.gpus; }
  // Hosts that hold one copy of the model together.
  [[nodiscard]] std::uint32_t hosts_per_replica() const noexcept {
    return (gpus_per_replica + host.gpus - 1) / host.gpus;
  }
  // Into or out of one host.
  [[nodiscard]] double network() const noexcept {
    return static_cast<double>(host.nics) * host.nic / oversubscription;
  }
};

// kInvalidInput, naming the figure, if a cluster is impossible: no GPUs, more than kScaleGpusMax,
// GPUs that do not form whole replicas, replicas that do not form whole hosts (nor hosts whole
// replicas), speeds that are not above 0, or an oversubscription below 1.
[[nodiscard]] Result<> check_cluster(const Cluster& cluster);

// The number of GPUs in the fewest hosts, a power of two, that hold the model in four fifths of
// their GPU memory.
[[nodiscard]] std::uint32_t gpus_for_model(const HostType& host, std::uint64_t model_bytes);

}  // namespace wsync::bench
