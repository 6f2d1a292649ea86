// The checks of `wsync doctor` for GPUs, the driver and NCCL.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/resource.h>

#include "deploy/cli/doctor_checks.h"
#include "shared/base/format.h"
#include "shared/command/context.h"

namespace wsync::cli {
namespace {

// The kernels are compiled for this compute capability and later ones.
constexpr std::uint32_t kComputeMajorMin = 8;
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

Check cuda_check(const device::CudaFacts& cuda, bool wanted) {
  Check check{.name = "cuda", .status = CheckStatus::kOk, .found = "", .advice = "", .facts = {}};
  const std::string release =
      cuda.driver_release.empty() ? "of unknown release" : cuda.driver_release;
  check.found = fmt::format("{} {}, driver {} for CUDA {}, backend built with CUDA {}: {}",
                            cuda.gpus.size(), cuda.gpus.size() == 1 ? "GPU" : "GPUs", release,
                            device::cuda_version_text(cuda.driver_cuda),
                            device::cuda_version_text(cuda.built_with), cuda.library);
  check.facts = {{"library", cuda.library},
                 {"built_with", device::cuda_version_text(cuda.built_with)},
                 {"driver_cuda", device::cuda_version_text(cuda.driver_cuda)},
                 {"driver_release", cuda.driver_release},
                 {"gpus", cuda.gpus.size()}};
  if (cuda.gpus.empty() && wanted) {
    check.status = CheckStatus::kFail;
    check.advice =
        fmt::format("compare with the list of nvidia-smi; {}", device::visible_gpus_text());
  }
  return check;
}

nlohmann::json gpu_facts(const device::GpuFacts& gpu) {
  nlohmann::json numa;
  if (gpu.numa_node) numa = *gpu.numa_node;
  return {{"gpu", gpu.gpu},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci", gpu.pci},
          {"compute", device::compute_text(gpu)},
          {"total_bytes", gpu.total_bytes},
          {"numa_node", std::move(numa)},
          {"pcie_now", gpu.pcie_now},
          {"pcie_most", gpu.pcie_max},
          {"peers", gpu.peers},
          {"pins_read_only_memory", gpu.reads_registered_read_only},
          {"shares_memory", gpu.shares_memory}};
}

Check gpu_check(const device::GpuFacts& gpu, const CudaWanted& wanted) {
  Check check{.name = fmt::format("gpu {}", gpu.gpu),
              .status = CheckStatus::kOk,
              .found = "",
              .advice = "",
              .facts = gpu_facts(gpu)};
  check.found = fmt::format(
      "{}, {}, {}, {}, compute {}, NUMA node {}, {}, peers: {}, pins read-only "
      "memory: {}",
      gpu.name, gpu.uuid, gpu.pci, human_bytes(gpu.total_bytes), device::compute_text(gpu),
      device::numa_node_text(gpu), device::pcie_text(gpu),
      gpu.peers.empty() ? "none" : fmt::format("{}", fmt::join(gpu.peers, " ")),
      gpu.reads_registered_read_only ? "yes" : "no");
  const bool chosen =
      wanted.wanted && (wanted.gpus.empty() || std::ranges::count(wanted.gpus, gpu.gpu) != 0);
  if (gpu.compute_major < kComputeMajorMin) {
    check.status = chosen ? CheckStatus::kFail : CheckStatus::kWarn;
    check.advice = fmt::format(
        "wsync needs compute capability {}.0 or newer; remove this GPU from devices.gpus",
        kComputeMajorMin);
  } else if (!gpu.shares_memory) {
    check.status = chosen ? CheckStatus::kFail : CheckStatus::kWarn;
    check.advice =
        "this GPU cannot share memory with other processes by file descriptors, as a sidecar and "
        "its engines do; remove it from devices.gpus";
  } else if (!gpu.reads_registered_read_only) {
    check.status = CheckStatus::kWarn;
    check.advice =
        "the memory of a trainer on this host cannot be pinned for this GPU; copies go through "
        "pinned buffers with four threads, at less than half of the link's speed";
  } else if (!gpu.pcie_now.empty() && !gpu.pcie_max.empty() && gpu.pcie_now != gpu.pcie_max) {
    check.status = CheckStatus::kWarn;
    check.advice = fmt::format(
        "the PCIe link of this GPU supports {}. An idle GPU may lower the speed, so check again "
        "under load. If lanes are missing, check the slot, its riser and the BIOS settings",
        gpu.pcie_max);
  }
  return check;
}

// Adds a check for GPUs that the config names but the driver does not have.
void add_absent_gpus(const device::CudaFacts& cuda, const CudaWanted& wanted,
                     std::vector<Check>& checks) {
  if (cuda.gpus.empty()) return;  // already reported
  std::vector<std::uint32_t> named = wanted.gpus;
  std::ranges::sort(named);
  named.erase(std::unique(named.begin(), named.end()), named.end());
  for (const std::uint32_t gpu : named) {
    if (std::ranges::count(cuda.gpus, gpu, &device::GpuFacts::gpu) != 0) continue;
    checks.push_back(
        {.name = fmt::format("gpu {}", gpu),
         .status = CheckStatus::kFail,
         .found =
             fmt::format("{} GPU {}; this process sees {} ({})",
                         wanted.named ? std::string("devices.gpus names")
                                      : fmt::format("devices.count: {} needs", wanted.gpus.size()),
                         gpu, cuda.gpus.size(), device::visible_gpus_text()),
         .advice =
             wanted.named
                 ? "number GPUs from 0 in the driver's order, which this list has: the fastest GPU "
                   "first. It is the order of nvidia-smi only with CUDA_DEVICE_ORDER=PCI_BUS_ID"
                 : "set devices.count to the number of GPUs, or list GPUs in devices.gpus, where a "
                   "GPU may occur several times",
         .facts = {}});
  }
}

Check found_nccl(const collective::NcclFacts& nccl, const CudaWanted& wanted) {
  Check check{.name = "nccl",
              .status = CheckStatus::kOk,
              .found = fmt::format("{}, backend built with {}: {}; ranks meet on interface {}{}",
                                   collective::nccl_version_text(nccl.version),
                                   collective::nccl_version_text(nccl.built_with), nccl.library,
                                   nccl.interface,
                                   nccl.ranks_share_gpus ? "; several ranks may share a GPU" : ""),
              .advice = "",
              .facts = {{"library", nccl.library},
                        {"version", collective::nccl_version_text(nccl.version)},
                        {"built_with", collective::nccl_version_text(nccl.built_with)},
                        {"interface", nccl.interface},
                        {"ranks_share_gpus", nccl.ranks_share_gpus}}};
  const std::set<std::uint32_t> different(wanted.gpus.begin(), wanted.gpus.end());
  if (wanted.collective != Collective::kNccl || nccl.ranks_share_gpus ||
      different.size() == wanted.gpus.size())
    return check;
  check.status = CheckStatus::kFail;
  check.found += "; devices.gpus names a GPU several times, and NCCL allows each GPU only once";
  check.advice = collective::kShareGpuAdvice;
  return check;
}

Check nccl_check(const Result<collective::NcclFacts>& nccl, const CudaWanted& wanted) {
  if (nccl) return found_nccl(*nccl, wanted);
  Check check{.name = "nccl",
              .status = CheckStatus::kOk,
              .found = fmt::format("no NCCL ({})", nccl.error().message()),
              .advice = "",
              .facts = {}};
  if (!wanted.wanted || wanted.collective == Collective::kLocal) return check;
  if (wanted.collective == Collective::kNccl) {
    check.status = CheckStatus::kFail;
    check.advice = "install libnccl.so.2, or set devices.collective to auto or local";
  } else if (wanted.gpus.size() != 1) {
    check.status = CheckStatus::kWarn;
    check.advice =
        "install libnccl.so.2; without it wsync broadcasts by plain copies between GPUs and "
        "refuses devices.collective: nccl";
  }
  return check;
}

// NVIDIA's kernel module pins pages itself and does not check RLIMIT_MEMLOCK (os_lock_user_pages()
// in its open-source code). mlock and RDMA libraries do check it.
Check pinned_check(std::uint64_t lock_limit) {
  const bool none = lock_limit == kNoLimit;
  nlohmann::json facts = {{"lock_limit_bytes", nullptr}};
  if (!none) facts["lock_limit_bytes"] = lock_limit;
  return {.name = "pinned memory",
          .status = CheckStatus::kOk,
          .found =
              fmt::format("RLIMIT_MEMLOCK: {}; the driver does not count registered memory against "
                          "this limit, but the kernel can neither swap nor reclaim that memory",
                          none ? "none" : human_bytes(lock_limit)),
          .advice = "",
          .facts = std::move(facts)};
}

}  // namespace

std::vector<Check> cuda_checks(const Result<device::CudaFacts>& cuda,
                               const Result<collective::NcclFacts>& nccl,
                               const CudaWanted& wanted) {
  if (!cuda) {
    const std::string& why = cuda.error().message();
    if (!wanted.wanted)
      return {{.name = "cuda",
               .status = CheckStatus::kOk,
               .found = fmt::format("GPUs cannot be used ({})", why.substr(0, why.find(';'))),
               .advice = "",
               .facts = {}}};
    return {{.name = "cuda",
             .status = CheckStatus::kFail,
             .found = why,
             .advice = "correct this, or set devices.kind to unified or separate",
             .facts = {}}};
  }
  std::vector<Check> checks = {cuda_check(*cuda, wanted.wanted)};
  for (const device::GpuFacts& gpu : cuda->gpus) checks.push_back(gpu_check(gpu, wanted));
  if (wanted.wanted) add_absent_gpus(*cuda, wanted, checks);
  checks.push_back(nccl_check(nccl, wanted));
  checks.push_back(pinned_check(wanted.lock_limit));
  return checks;
}

Check mps_check(const device::MpsDaemon& daemon) {
  const bool listens = daemon.state == device::MpsDaemon::State::kListens;
  Check check{.name = "mps",
              .status = CheckStatus::kOk,
              .found = device::mps_text(daemon),
              .advice = device::mps_advice(daemon),
              .facts = {{"directory", daemon.directory}, {"listens", listens}}};
  if (!check.advice.empty()) check.status = CheckStatus::kWarn;
  return check;
}

std::vector<Check> check_cuda(CudaWanted wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    wanted.lock_limit = limit.rlim_cur;
  const auto cuda = device::cuda_backend();
  const auto nccl = collective::nccl_backend();
  Result<device::CudaFacts> cuda_facts =
      cuda ? (*cuda)->facts() : Result<device::CudaFacts>(fail(cuda.error()));
  Result<collective::NcclFacts> nccl_facts =
      nccl ? (*nccl)->facts() : Result<collective::NcclFacts>(fail(nccl.error()));
  std::vector<Check> checks = cuda_checks(cuda_facts, nccl_facts, wanted);
  if (cuda_facts && !cuda_facts->gpus.empty())
    checks.push_back(mps_check(device::find_mps_daemon()));
  return checks;
}

}  // namespace wsync::cli
