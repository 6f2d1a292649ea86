#include "shared/device/cuda/device.h"

#include <thread>

#include "shared/base/format.h"
#include "shared/device/cuda/batch_tables.h"
#include "shared/device/cuda/context.h"
#include "shared/device/cuda/memory.h"
#include "shared/device/cuda/registration.h"

namespace wsync::device::cuda {
namespace {

// Between two questions about a stream of other code.
constexpr std::chrono::microseconds kForeignPause{30};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const Gpu> gpu, const DeviceOptions& options,
             std::chrono::nanoseconds settle_limit)
      : gpu_(std::move(gpu)), options_(options), settle_limit_(settle_limit) {}

  [[nodiscard]] DeviceKind kind() const noexcept override { return DeviceKind::kCuda; }
  [[nodiscard]] DeviceIndex index() const noexcept override { return options_.index; }
  [[nodiscard]] std::string name() const override { return gpu_->name(); }
  [[nodiscard]] std::string uuid() const override { return gpu_->uuid(); }
  [[nodiscard]] Result<MemoryInfo> memory_info() const override {
    const ContextGuard guard(*gpu_->context());
    WSYNC_TRY(guard.entered());
    std::size_t free = 0;
    std::size_t total = 0;
    WSYNC_TRY(check(gpu_->cuda(), gpu_->cuda().cuMemGetInfo(&free, &total),
                    name() + ": its free memory"));
    return MemoryInfo{.total_bytes = total, .free_bytes = free};
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> allocate(std::uint64_t bytes) override {
    return CudaMemory::allocate(gpu_, bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> alias_host(std::span<const std::byte>) override {
    return fail(ErrorCode::kRefused,
                name() + ": the device has memory of its own; host bytes must be copied to it");
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> borrow(std::span<std::byte> range) override {
    return CudaMemory::borrow(gpu_, range);
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> import_memory(MemoryHandle handle) override {
    auto memory = CudaMemory::import(gpu_, handle);
    if (!memory) return fail(memory.error().with_context(name()));
    return std::unique_ptr<Memory>(std::move(*memory));
  }
  [[nodiscard]] Result<std::unique_ptr<HostRegistration>> register_host(
      std::span<const std::byte> range) override {
    return std::unique_ptr<HostRegistration>(Registration::make(*gpu_, range));
  }
  [[nodiscard]] Result<std::unique_ptr<Stream>> create_stream(StreamRole role) override {
    return CudaStream::make(gpu_, {.role = role,
                                   .name = fmt::format("{} {}", name(), stream_role_name(role)),
                                   .settle_limit = settle_limit_});
  }
  // The workers keep the order between streams (worker_stream.h), so no CUevent is needed.
  [[nodiscard]] Result<std::unique_ptr<Event>> create_event() override {
    return std::unique_ptr<Event>(std::make_unique<WorkerEvent>());
  }
  [[nodiscard]] Result<> await_stream(std::uintptr_t native, TimePoint deadline) override;
  void free_unused() noexcept override { gpu_->batch_tables().clear(); }

 private:
  std::shared_ptr<const Gpu> gpu_;
  DeviceOptions options_;
  std::chrono::nanoseconds settle_limit_;
};

// Polls, because no other call of the driver has a deadline.
Result<> CudaDevice::await_stream(std::uintptr_t native, TimePoint deadline) {
  WSYNC_TRY(gpu_->usable());
  const Driver& cuda = gpu_->cuda();
  const ContextGuard guard(*gpu_->context());
  WSYNC_TRY(guard.entered());
  for (;;) {
    const CUresult code = cuda.cuStreamQuery(reinterpret_cast<CUstream>(native));
    if (code != CUDA_ERROR_NOT_READY)
      return check(cuda, code, fmt::format("{}: the work of stream {:#x}", name(), native));
    if (now() >= deadline)
      return fail(ErrorCode::kDeadline,
                  fmt::format("{}: the work of stream {:#x} was not complete at the deadline",
                              name(), native));
    std::this_thread::sleep_for(kForeignPause);
  }
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(const Driver& cuda, const DeviceOptions& options,
                                                 std::chrono::nanoseconds settle_limit) {
  auto gpu = Gpu::open(cuda, options.gpu);
  if (!gpu) return fail(gpu.error().with_context("device kind cuda"));
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(std::move(*gpu), options, settle_limit));
}

}  // namespace wsync::device::cuda
