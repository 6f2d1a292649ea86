// The library's entry point (shared/device/cuda_library.h).
#include "shared/device/cuda/ceilings.h"
#include "shared/device/cuda/device.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda/facts.h"
#include "shared/device/cuda_library.h"

namespace wsync::device::cuda {
namespace {

Result<std::unique_ptr<Device>> make_library_device(const DeviceOptions& options) {
  const auto cuda = driver();
  if (!cuda) return fail(cuda.error().with_context("device kind cuda"));
  return make_cuda_device(**cuda, options);
}

Result<CudaFacts> library_facts() {
  const auto cuda = WSYNC_TRY(driver());
  return read_facts(*cuda);
}

Result<std::unique_ptr<Ceilings>> library_ceilings(std::uint32_t gpu, std::uint64_t bytes) {
  const auto cuda = WSYNC_TRY(driver());
  return make_ceilings(*cuda, gpu, bytes);
}

}  // namespace
}  // namespace wsync::device::cuda

extern "C" __attribute__((visibility("default"))) const wsync::device::CudaBackend*
wsync_cuda_backend() {
  static const std::string build = wsync::device::cuda_build();
  static const wsync::device::CudaBackend backend{
      .size = sizeof(wsync::device::CudaBackend),
      .build = build.c_str(),
      .make_device = wsync::device::cuda::make_library_device,
      .facts = wsync::device::cuda::library_facts,
      .make_ceilings = wsync::device::cuda::library_ceilings};
  return &backend;
}
