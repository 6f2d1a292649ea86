#include "bench/baseline/gpus.h"

#include "bench/gpu/gpu_bench.h"
#include "bench/gpu/stages.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kBroadcastBytes = 64 * limits::kMiB;  // maximum bytes per bucket

Result<> add_broadcast(Workbench& bench, const std::vector<std::uint32_t>& gpus,
                       BaselineRows& rows) {
  const Buckets buckets{.bytes = bench.source(),
                        .bucket_bytes = std::min<std::uint64_t>(kBroadcastBytes, bench.bytes())};
  auto made = WSYNC_TRY(LoneStages::create(gpus, buckets.bucket_bytes, std::nullopt));
  const std::shared_ptr<LoneStages> stages = std::move(made);
  // Copies the bytes to the devices once, because the broadcasts need them there.
  (void)WSYNC_TRY(stages->copies_in(buckets));
  rows.rows.push_back({.name = "broadcast",
                       .variant = counted(gpus.size(), "GPU"),
                       .measure = [stages, buckets] { return stages->broadcasts(buckets); }});
  return {};
}

}  // namespace

Result<> add_gpu_rows(Workbench& bench, BaselineRows& rows) {
  if (const std::string missing = missing_gpu(); !missing.empty()) {
    rows.notes.push_back("no GPU: " + missing);
    return {};
  }
  const auto backend = device::cuda_backend();
  const auto facts = WSYNC_TRY((*backend)->facts());
  std::vector<std::uint32_t> gpus;
  for (const device::GpuFacts& gpu : facts.gpus) {
    gpus.push_back(gpu.gpu);
    auto made = (*backend)->make_ceilings(gpu.gpu, bench.bytes());
    if (!made) return fail(made.error().with_context(fmt::format("GPU {}", gpu.gpu)));
    const std::shared_ptr<device::Ceilings> ceilings = std::move(*made);
    const std::string which = fmt::format("GPU {}", gpu.gpu);
    rows.rows.push_back({.name = "H2D", .variant = which, .measure = [ceilings] {
                           return ceilings->host_to_device(1);
                         }});
    rows.rows.push_back({.name = "D2D", .variant = which, .measure = [ceilings] {
                           return ceilings->device_copy(1);
                         }});
    rows.rows.push_back({.name = "GPU read", .variant = which, .measure = [ceilings] {
                           return ceilings->device_read(1);
                         }});
  }
  if (gpus.size() > 1) return add_broadcast(bench, gpus, rows);
  rows.notes.push_back("broadcast is not measured: this machine has only one GPU");
  return {};
}

}  // namespace wsync::bench
