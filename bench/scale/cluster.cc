#include "bench/scale/cluster.h"

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr double kGB = 1e9;

Result<> require_positive(const char* what, double value) {
  if (value > 0) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{} is {} bytes per second, expected more than 0", what, value));
}

// Values that both host types share.
//   pcie: 55.6 GB/s from host to device on PCIe 5.0 x16, as NVIDIA's nvbandwidth prints it (64 in
//     the standard).
//   nics, nic: 8 x 400 Gbit/s in each H800 host (Kimi K2 technical report, section on the training
//     cluster). Of 50 GB/s, about 40 are reached ("Insights into DeepSeek-V3", arXiv 2505.09343,
//     "Node-Limited Routing"). Assumed for H20 hosts too, because the network of the published rows
//     is not documented.
//   host_memory: two sockets with eight channels of DDR5-4800.
//   gpus_per_switch: 1, because hosts of this kind have one NIC and one GPU on each PCIe switch.
HostType common_host() {
  return {.name = "",
          .gpus = 8,
          .gpu_bytes = 0,
          .gpu_memory = 0,
          .pcie = 55.6 * kGB,
          .gpus_per_switch = 1,
          .nvlink = 0,
          .nics = 8,
          .nic = 40 * kGB,
          .host_memory = 614 * kGB};
}

}  // namespace

// NVLink: 200 GB/s per direction, of which about 160 are reached (arXiv 2505.09343). Memory: 80 GB
// of HBM3 with 3.35 TB/s (as H100 SXM).
HostType h800_host() {
  HostType made = common_host();
  made.name = "h800";
  made.gpu_bytes = 80'000'000'000;
  made.gpu_memory = 3350 * kGB;
  made.nvlink = 160 * kGB;
  return made;
}

// NVLink: 450 GB/s per direction, of which 380 were reached on H100, which has the same links
// (issue 1264 of NVIDIA/nccl). Memory: 96 GB of HBM3 with 4.0 TB/s.
HostType h20_host() {
  HostType made = common_host();
  made.name = "h20";
  made.gpu_bytes = 96'000'000'000;
  made.gpu_memory = 4000 * kGB;
  made.nvlink = 380 * kGB;
  return made;
}

Result<HostType> find_host(const std::string& name) {
  for (const HostType& host : {h800_host(), h20_host()})
    if (host.name == name) return host;
  return fail(ErrorCode::kInvalidInput,
              fmt::format("unknown host type '{}': expected h800 or h20", name));
}

Result<> check_cluster(const Cluster& c) {
  const HostType& h = c.host;
  if (h.gpus < 1 || c.gpus < 1 || c.gpus > kScaleGpusMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} GPUs, {} per host: expected 1 to {} GPUs, and at least 1 per host",
                            c.gpus, h.gpus, kScaleGpusMax));
  if (c.gpus_per_replica < 1 || c.gpus % c.gpus_per_replica != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{0} GPUs in replicas of {1}: expected a multiple of {1}", c.gpus,
                            c.gpus_per_replica));
  if (c.gpus_per_replica % h.gpus != 0 && h.gpus % c.gpus_per_replica != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("replicas of {} GPUs on hosts with {} GPUs: expected one number to be "
                            "a multiple of the other",
                            c.gpus_per_replica, h.gpus));
  if (c.gpus < h.gpus)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{0} GPUs on hosts with {1} GPUs: expected at least {1}", c.gpus, h.gpus));
  if (h.gpus_per_switch < 1 || h.gpus % h.gpus_per_switch != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{0} GPUs on a PCIe switch, {1} per host: expected a divisor of {1}",
                            h.gpus_per_switch, h.gpus));
  if (c.oversubscription < 1)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("an oversubscription of {}: expected 1 or more", c.oversubscription));
  WSYNC_TRY(require_positive("PCIe", h.pcie));
  WSYNC_TRY(require_positive("GPU memory", h.gpu_memory));
  WSYNC_TRY(require_positive("host memory", h.host_memory));
  if (h.nvlink < 0) WSYNC_TRY(require_positive("NVLink", h.nvlink));
  return require_positive("the network of a host", c.network());
}

std::uint32_t gpus_for_model(const HostType& host, std::uint64_t model_bytes) {
  const double room = 0.8 * static_cast<double>(host.gpus) * static_cast<double>(host.gpu_bytes);
  std::uint32_t hosts = 1;
  while (room * hosts < static_cast<double>(model_bytes) && hosts < kScaleGpusMax) hosts *= 2;
  return hosts * host.gpus;
}

}  // namespace wsync::bench
