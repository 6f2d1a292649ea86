#include "shared/device/cuda/ceilings.h"

#include <cstring>
#include <functional>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/device/cuda/context.h"
#include "shared/device/cuda/fatbin.h"
#include "shared/device/cuda/kernels.h"

namespace wsync::device::cuda {
namespace {

constexpr std::chrono::minutes kCeilingDeadline{1};
constexpr std::uint64_t kFoldedBytes = 256;

class PlainCalls final : public Ceilings {
 public:
  PlainCalls(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes)
      : gpu_(std::move(gpu)), bytes_(bytes) {}
  // After an error, work may still be running on the memory, so wait before it is freed.
  ~PlainCalls() override {
    const ContextGuard guard(*gpu_->context());
    if (stream_) (void)wait("the end");
  }

  [[nodiscard]] Result<> prepare();

  [[nodiscard]] Result<std::chrono::nanoseconds> host_to_device(unsigned times) override {
    return timed(times, "cuMemcpyHtoDAsync", [this] {
      return cuda().cuMemcpyHtoDAsync(to_.get(), pinned_.get(), bytes_, stream_.get());
    });
  }
  [[nodiscard]] Result<std::chrono::nanoseconds> device_to_host(unsigned times) override {
    return timed(times, "cuMemcpyDtoHAsync", [this] {
      return cuda().cuMemcpyDtoHAsync(pinned_.get(), from_.get(), bytes_, stream_.get());
    });
  }
  [[nodiscard]] Result<std::chrono::nanoseconds> device_copy(unsigned times) override {
    return timed(times, "cuMemcpyAsync", [this] {
      return cuda().cuMemcpyAsync(to_.get(), from_.get(), bytes_, stream_.get());
    });
  }
  [[nodiscard]] Result<std::chrono::nanoseconds> device_read(unsigned times) override {
    return timed(times, kReadBytesKernel, [this] {
      CUdeviceptr from = from_.get();
      std::uint64_t granules = bytes_ / kGranuleBytes;
      CUdeviceptr folded = folded_.get();
      void* arguments[] = {&from, &granules, &folded};
      return cuda().cuLaunchKernel(read_, blocks_of(units_of(bytes_, kUnitBytesMax)), 1, 1,
                                   kThreadsPerBlock, 1, 1, 0, stream_.get(), arguments, nullptr);
    });
  }

 private:
  [[nodiscard]] const Driver& cuda() const { return gpu_->cuda(); }
  [[nodiscard]] Result<std::chrono::nanoseconds> timed(unsigned times, const char* what,
                                                       const std::function<CUresult()>& call);
  [[nodiscard]] Result<> wait(const char* what);
  [[nodiscard]] Result<> make_stream();
  [[nodiscard]] Result<> load_kernel();

  std::shared_ptr<const Gpu> gpu_;
  std::uint64_t bytes_;
  OwnedPinned pinned_;
  OwnedMemory from_, to_, folded_;
  OwnedModule module_;
  CUfunction read_ = nullptr;
  OwnedStream stream_;
};

Result<> PlainCalls::make_stream() {
  CUstream stream = nullptr;
  WSYNC_TRY(check(cuda(), cuda().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                  "a stream"));
  stream_ = OwnedStream(gpu_->context(), stream);
  return {};
}

Result<> PlainCalls::load_kernel() {
  CUmodule module = nullptr;
  WSYNC_TRY(check(cuda(), cuda().cuModuleLoadData(&module, fatbin().data()), "the kernels"));
  module_ = OwnedModule(gpu_->context(), module);
  return check(cuda(), cuda().cuModuleGetFunction(&read_, module, kReadBytesKernel),
               kReadBytesKernel);
}

Result<> PlainCalls::prepare() {
  pinned_ = WSYNC_TRY(allocate_pinned(gpu_->context(), bytes_));
  std::memset(pinned_.get(), 1, bytes_);
  for (auto [memory, bytes] :
       {std::pair{&from_, bytes_}, std::pair{&to_, bytes_}, std::pair{&folded_, kFoldedBytes}}) {
    *memory = WSYNC_TRY(allocate_memory(gpu_->context(), bytes));
  }
  const ContextGuard guard(*gpu_->context());
  WSYNC_TRY(guard.entered());
  WSYNC_TRY(make_stream());
  WSYNC_TRY(load_kernel());
  WSYNC_TRY(check(cuda(), cuda().cuMemsetD8Async(folded_.get(), 0, kFoldedBytes, stream_.get()),
                  "cuMemsetD8Async"));
  // The contents do not matter to a copy engine; the bytes only have to be initialised.
  WSYNC_TRY(check(cuda(),
                  cuda().cuMemcpyHtoDAsync(from_.get(), pinned_.get(), bytes_, stream_.get()),
                  "cuMemcpyHtoDAsync"));
  return wait("cuMemcpyHtoDAsync");
}

// Spins, because a sleep would be counted as time of the GPU.
Result<> PlainCalls::wait(const char* what) {
  const TimePoint deadline = now() + kCeilingDeadline;
  for (;;) {
    const CUresult code = cuda().cuStreamQuery(stream_.get());
    if (code != CUDA_ERROR_NOT_READY) return check(cuda(), code, what);
    if (now() <= deadline) continue;
    gpu_->context()->abandon("a plain call did not complete within a minute");
    return fail(ErrorCode::kDeadline,
                fmt::format("{}: {} of {} bytes did not complete within a minute", gpu_->name(),
                            what, bytes_));
  }
}

Result<std::chrono::nanoseconds> PlainCalls::timed(unsigned times, const char* what,
                                                   const std::function<CUresult()>& call) {
  const ContextGuard guard(*gpu_->context());
  WSYNC_TRY(guard.entered());
  const TimePoint begin = now();
  for (unsigned i = 0; i < times; ++i) WSYNC_TRY(check(cuda(), call(), what));
  WSYNC_TRY(wait(what));
  return now() - begin;
}

}  // namespace

Result<std::unique_ptr<Ceilings>> make_ceilings(const Driver& cuda, std::uint32_t gpu,
                                                std::uint64_t bytes) {
  if (bytes == 0 || bytes % kGranuleBytes != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("ceilings are measured with a multiple of {} bytes, found {}",
                            kGranuleBytes, bytes));
  auto open = WSYNC_TRY(Gpu::open(cuda, gpu));
  auto made = std::make_unique<PlainCalls>(std::move(open), bytes);
  if (auto ready = made->prepare(); !ready) return fail(ready.error().with_context("ceilings"));
  return std::unique_ptr<Ceilings>(std::move(made));
}

}  // namespace wsync::device::cuda
