// Hosts with GPUs, and what connects them.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::uint32_t kScaleGpusMax = 100'000;

// All speeds in bytes a second, one direction, as copies reach them (not the sum of both
// directions, as data sheets have it). All hosts of a cluster are the same.
struct HostType {
  std::string name;
  std::uint32_t gpus = 8;
  std::uint64_t gpu_bytes = 0;        // memory of one
  double gpu_memory = 0;              // speed of that memory
  double pcie = 0;                    // host memory to one GPU
  std::uint32_t gpus_per_switch = 1;  // GPUs that share one link of that speed to the host
  double nvlink = 0;  // into one GPU; 0: there is none, GPUs reach each other by PCIe
  std::uint32_t nics = 0;
  double nic = 0;          // of one
  double host_memory = 0;  // all channels together
  friend bool operator==(const HostType&, const HostType&) = default;
};

// Eight H800 and eight H20. cluster.cc has the sources of each figure, and what is assumed.
[[nodiscard]] HostType h800_host();
[[nodiscard]] HostType h20_host();
// "h800" or "h20"; kInvalidInput names both.
[[nodiscard]] Result<HostType> find_host(const std::string& name);

struct Cluster {
  HostType host;
  std::uint32_t gpus = 8;
  std::uint32_t gpus_per_replica = 8;  // GPUs that hold one model together
  // How many times less the network carries between hosts than their NICs could. 1: as much.
  double oversubscription = 1;

  [[nodiscard]] std::uint32_t hosts() const noexcept { return (gpus + host.gpus - 1) / host.gpus; }
  // Hosts that hold one model together.
  [[nodiscard]] std::uint32_t hosts_per_replica() const noexcept {
    return (gpus_per_replica + host.gpus - 1) / host.gpus;
  }
  // Into or out of one host.
  [[nodiscard]] double network() const noexcept {
    return static_cast<double>(host.nics) * host.nic / oversubscription;
  }
};

// kInvalidInput, naming the figure, for a cluster that cannot be: no GPUs, more than kScaleGpusMax,
// GPUs that are no whole replicas, replicas that are no whole hosts (nor hosts whole replicas),
// speeds that are not above 0, an oversubscription below 1.
[[nodiscard]] Result<> check_cluster(const Cluster& cluster);

// The fewest hosts, a power of two, whose GPUs hold the model in four fifths of their memory; in
// GPUs.
[[nodiscard]] std::uint32_t gpus_for_model(const HostType& host, std::uint64_t model_bytes);

}  // namespace wsync::bench
