#include "bench/gpu/gpu_bench.h"

#include <algorithm>
#include <set>

#include "shared/base/format.h"
#include "shared/broadcast/nccl_library.h"

namespace wsync::bench {
namespace {

// Names of the GPUs of the tests' emulated driver contain this text.
constexpr std::string_view kEmulatedName = "Emulated";

Result<std::vector<std::uint32_t>> choose_gpus(const GpuBenchOptions& options,
                                               const device::CudaFacts& facts) {
  std::vector<std::uint32_t> all;
  for (const device::GpuFacts& gpu : facts.gpus) all.push_back(gpu.gpu);
  if (options.gpus.empty()) return all;
  for (const std::uint32_t gpu : options.gpus)
    if (std::ranges::find(all, gpu) == all.end())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--gpus: this machine has no GPU {}, expected one of {}", gpu,
                              fmt::join(all, ", ")));
  return options.gpus;
}

// Several devices on the first GPU, then devices on different GPUs.
std::vector<std::vector<std::uint32_t>> groups_of(const std::vector<std::uint32_t>& devices,
                                                  const std::vector<std::uint32_t>& gpus) {
  std::vector<std::vector<std::uint32_t>> groups;
  for (const std::uint32_t count : devices) groups.emplace_back(count, gpus.front());
  std::set<std::size_t> counts = {2, 4, 8, gpus.size()};
  for (const std::size_t count : counts)
    if (count > 1 && count <= gpus.size())
      groups.emplace_back(gpus.begin(), gpus.begin() + static_cast<std::ptrdiff_t>(count));
  return groups;
}

// One engine on the first GPU, then one engine on each GPU.
std::vector<std::vector<std::uint32_t>> pause_groups(const std::vector<std::uint32_t>& gpus) {
  std::vector<std::vector<std::uint32_t>> groups = {{gpus.front()}};
  if (gpus.size() > 1) groups.push_back(gpus);
  return groups;
}

}  // namespace

std::string missing_gpu() {
  const auto backend = device::cuda_backend();
  if (!backend) return backend.error().message();
  const auto facts = (*backend)->facts();
  if (!facts) return facts.error().message();
  if (facts->gpus.empty())
    return fmt::format(
        "the driver is installed but finds no GPU ({}); compare with the list of nvidia-smi",
        device::visible_gpus_text());
  // A GPU or driver that is too old for the kernels can be listed but not used.
  const auto device = (*backend)->make_device(
      {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{0}, .gpu = facts->gpus.front().gpu});
  if (!device && device.error().code() == ErrorCode::kRefused) return device.error().message();
  return {};
}

Result<GpuBenchResult> run_gpu_bench(const GpuBenchOptions& options, const Interrupt& interrupt,
                                     const OnGpuProgress& on_progress) {
  if (const std::string missing = missing_gpu(); !missing.empty())
    return fail(ErrorCode::kRefused, missing);
  const auto backend = device::cuda_backend();
  auto facts = WSYNC_TRY((*backend)->facts());
  const auto gpus = WSYNC_TRY(choose_gpus(options, facts));
  GpuBenchResult result;
  result.machine = this_machine();
  result.cuda = std::move(facts);
  result.emulated = std::ranges::any_of(result.cuda.gpus, [](const device::GpuFacts& gpu) {
    return gpu.name.find(kEmulatedName) != std::string::npos;
  });
  if (gpus.size() > 1) {
    const auto nccl = collective::nccl_backend();
    const auto found = nccl ? (*nccl)->facts() : Result<collective::NcclFacts>(fail(nccl.error()));
    if (!found)
      result.notes.push_back("NCCL cannot be used, so broadcasts between GPUs are plain copies: " +
                             found.error().message());
  }
  const auto busy = WSYNC_TRY(busy_with_others(interrupt));
  result.others_busy = busy;
  CpuLoad load;
  for (const std::uint32_t gpu : gpus) {
    const CopyOptions copy_options{.executable = options.executable,
                                   .directory = options.directory,
                                   .gpu = gpu,
                                   .bytes = options.buffer_bytes,
                                   .rounds = options.rounds};
    auto copies =
        WSYNC_TRY(run_copies(copy_options, **backend, interrupt, on_progress, result.notes));
    for (CopyCase& copy : copies) result.copies.push_back(std::move(copy));
    auto page_sizes = WSYNC_TRY(run_page_sizes(copy_options, interrupt, on_progress));
    for (PageSizeCase& pages : page_sizes) result.page_sizes.push_back(std::move(pages));
  }
  for (const auto& group : groups_of(options.devices, gpus)) {
    auto pipeline = WSYNC_TRY(run_pipeline_case({.executable = options.executable,
                                                 .directory = options.directory,
                                                 .gpus = group,
                                                 .bytes = options.bytes,
                                                 .buffer_bytes = options.buffer_bytes,
                                                 .rounds = options.updates,
                                                 .collective = options.collective},
                                                interrupt, on_progress));
    result.pipelines.push_back(std::move(pipeline));
  }
  for (const auto& engines : pause_groups(gpus)) {
    if (options.checkpoints.empty()) break;
    auto pause = WSYNC_TRY(run_pause_case({.executable = options.executable,
                                           .directory = options.directory,
                                           .gpus = engines,
                                           .checkpoints = options.checkpoints,
                                           .updates = options.updates},
                                          on_progress));
    result.pauses.push_back(std::move(pause));
  }
  if (!options.checkpoints.empty()) {
    auto patched = WSYNC_TRY(run_patched_pauses({.executable = options.executable,
                                                 .directory = options.directory,
                                                 .gpus = {gpus.front()},
                                                 .checkpoints = options.checkpoints,
                                                 .updates = options.updates},
                                                on_progress));
    for (PauseCase& pause : patched) result.pauses.push_back(std::move(pause));
  }
  result.stolen = load.since_last().stolen;
  return result;
}

}  // namespace wsync::bench
