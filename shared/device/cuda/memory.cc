#include "shared/device/cuda/memory.h"

#include <map>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::device::cuda {
namespace {

// Limit for the walk over an address range that is mapped piece by piece. The smallest piece is 2
// MiB, so the limit only stops the walk if a driver returns inconsistent answers.
constexpr std::uint32_t kPiecesOfOneRange = 1U << 20U;

struct Allocations {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, std::weak_ptr<Allocation>> all;
};
Allocations& allocations() {
  static Allocations own;
  return own;
}

std::uint64_t whole_granules(std::uint64_t bytes) {
  return (bytes + kSharedGranuleBytes - 1) / kSharedGranuleBytes * kSharedGranuleBytes;
}

Error out_of_memory(const Gpu& gpu, std::uint64_t bytes, const Error& error) {
  const ContextGuard guard(*gpu.context());
  std::size_t free = 0;
  std::size_t total = 0;
  if (!guard.entered() || gpu.cuda().cuMemGetInfo(&free, &total) != CUDA_SUCCESS) return error;
  return {error.code(), fmt::format("{}: {} bytes cannot be allocated, {} of {} are free: {}",
                                    gpu.name(), bytes, free, total, error.message())};
}

template <class T>
Result<T> pointer_fact(const Driver& cuda, CUpointer_attribute which, CUdeviceptr at) {
  T value{};
  WSYNC_TRY(check(cuda, cuda.cuPointerGetAttribute(&value, which, at),
                  fmt::format("address {:#x} is not known to the driver", at)));
  return value;
}

// Succeeds if `at` is memory of this GPU, whose context must be current.
Result<> on_this_gpu(const Gpu& gpu, CUdeviceptr at) {
  const Driver& cuda = gpu.cuda();
  const auto type = pointer_fact<unsigned int>(cuda, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
  if (!type) return fail(ErrorCode::kInvalidInput, type.error().message());
  const auto device = pointer_fact<int>(cuda, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
  if (!device) return fail(ErrorCode::kInvalidInput, device.error().message());
  if (*type != CU_MEMORYTYPE_DEVICE)
    return fail(ErrorCode::kInvalidInput, fmt::format("address {:#x} is host memory", at));
  if (static_cast<std::uint32_t>(*device) != gpu.number())
    return fail(ErrorCode::kInvalidInput, fmt::format("address {:#x} is on GPU {}", at, *device));
  return {};
}

// Returns the end of the memory that is mapped from `at` on, at least up to `end` if it is one
// allocation.
Result<> covered(const Gpu& gpu, CUdeviceptr at, CUdeviceptr end) {
  const Driver& cuda = gpu.cuda();
  for (std::uint32_t pieces = 0; pieces < kPiecesOfOneRange; ++pieces) {
    WSYNC_TRY(on_this_gpu(gpu, at));
    CUdeviceptr base = 0;
    std::size_t size = 0;
    WSYNC_TRY(check(cuda, cuda.cuMemGetAddressRange(&base, &size, at),
                    fmt::format("address {:#x} does not belong to an allocation", at)));
    if (end <= base + size) return {};
    // Adjacent plain allocations do not count as one range; pieces of one reserved range do.
    const auto plain =
        WSYNC_TRY(pointer_fact<int>(cuda, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    if (plain != 0 || base + size <= at) break;
    at = base + size;
  }
  return fail(ErrorCode::kInvalidInput,
              fmt::format("its allocation ends before address {:#x}", end));
}

}  // namespace

Result<std::shared_ptr<Allocation>> Allocation::make(std::shared_ptr<const Gpu> gpu,
                                                     std::uint64_t bytes) {
  if (bytes == 0 || bytes > limits::kBucketBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: memory of {} bytes cannot be allocated, expected 1 to {}",
                            gpu->name(), bytes, limits::kBucketBytesMax));
  auto memory = allocate_memory(gpu->context(), whole_granules(bytes));
  if (!memory) return fail(out_of_memory(*gpu, whole_granules(bytes), memory.error()));
  auto& own = allocations();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Allocation> made(
      new Allocation(std::move(gpu), std::move(*memory), bytes, ++own.last));
  std::erase_if(own.all, [](const auto& entry) { return entry.second.expired(); });
  own.all.emplace(made->id_, made);
  return made;
}

std::shared_ptr<Allocation> Allocation::find(std::uint64_t id) {
  auto& own = allocations();
  const std::lock_guard lock(own.mutex);
  const auto at = own.all.find(id);
  return at == own.all.end() ? nullptr : at->second.lock();
}

Result<CUevent> Allocation::published() {
  const std::lock_guard lock(mutex_);
  if (published_) return published_.get();
  const ContextGuard guard(*gpu_->context());
  WSYNC_TRY(guard.entered());
  CUevent event = nullptr;
  WSYNC_TRY(
      check(gpu_->cuda(),
            gpu_->cuda().cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            gpu_->name() + ": cannot create an event for other processes"));
  published_ = OwnedEvent(gpu_->context(), event);
  return event;
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::allocate(const std::shared_ptr<const Gpu>& gpu,
                                                         std::uint64_t bytes) {
  WSYNC_TRY(gpu->usable());
  auto made = WSYNC_TRY(Allocation::make(gpu, bytes));
  std::unique_ptr<CudaMemory> memory(new CudaMemory(gpu, Origin::kOwn, made->address(), bytes));
  memory->allocation_ = std::move(made);
  return memory;
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::borrow(const std::shared_ptr<const Gpu>& gpu,
                                                       std::span<std::byte> range) {
  const auto at = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(range.data()));
  if (range.empty() || at == 0 || range.size() > ~CUdeviceptr{0} - at)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {} bytes at address {:#x} are not a valid range of memory",
                            gpu->name(), range.size(), at));
  const ContextGuard guard(*gpu->context());
  WSYNC_TRY(guard.entered());
  if (auto inside = covered(*gpu, at, at + range.size()); !inside)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {} bytes at address {:#x} cannot be borrowed: {}", gpu->name(),
                            range.size(), at, inside.error().message()));
  return std::unique_ptr<CudaMemory>(new CudaMemory(gpu, Origin::kBorrowed, at, range.size()));
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::import(const std::shared_ptr<const Gpu>& gpu,
                                                       const MemoryHandle& handle) {
  if (handle.kind != DeviceKind::kCuda)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a cuda device cannot import a handle of a {} device",
                            device_kind_name(handle.kind)));
  auto said = WSYNC_TRY(decode_ipc_handle(handle.opaque));
  if (said.bytes != handle.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("imported GPU memory: expected {} bytes, but the handle says {}",
                            handle.bytes, said.bytes));
  if (said.uuid != gpu->uuid())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("imported GPU memory of process {} is on GPU {}, but this device is GPU {}",
                    said.pid, said.uuid, gpu->uuid()));
  if (said.process != this_process()) return open(gpu, said);
  auto own = Allocation::find(said.allocation);
  if (own == nullptr || own->bytes() != said.bytes || &own->gpu() != gpu.get())
    return fail(ErrorCode::kPeerLost,
                fmt::format("imported GPU memory: allocation {} of this process has been freed",
                            said.allocation));
  std::unique_ptr<CudaMemory> memory(
      new CudaMemory(gpu, Origin::kImported, own->address(), said.bytes));
  memory->allocation_ = std::move(own);
  return memory;
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::open(const std::shared_ptr<const Gpu>& gpu,
                                                     const IpcHandle& handle) {
  const Driver& cuda = gpu->cuda();
  const ContextGuard guard(*gpu->context());
  WSYNC_TRY(guard.entered());
  const auto failed = [&](const Error& error) {
    return fail(
        error.code() == ErrorCode::kResourceExhausted ? error.code() : ErrorCode::kPeerLost,
        fmt::format(
            "the GPU memory of process {} cannot be mapped (did it free the memory or exit? "
            "containers must share /dev/shm, and their process numbers must differ): {}",
            handle.pid, error.message()));
  };
  CUdeviceptr address = 0;
  // This is the only flag that exists. It has no effect on the exporter's own GPU.
  if (auto done = check(
          cuda,
          cuda.cuIpcOpenMemHandle(&address, handle.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "cuIpcOpenMemHandle");
      !done)
    return failed(done.error());
  std::unique_ptr<CudaMemory> memory(new CudaMemory(gpu, Origin::kImported, address, handle.bytes));
  memory->mapping_ = OwnedMapping(gpu->context(), address);
  CUevent event = nullptr;
  if (auto done =
          check(cuda, cuda.cuIpcOpenEventHandle(&event, handle.event), "cuIpcOpenEventHandle");
      !done)
    return failed(done.error());
  memory->event_ = OwnedEvent(gpu->context(), event);
  return memory;
}

Result<CUevent> CudaMemory::published() const {
  if (allocation_ != nullptr) return allocation_->published();
  if (event_) return event_.get();
  return fail(ErrorCode::kInvalidInput,
              gpu_->name() + ": borrowed memory cannot be published or acquired");
}

Result<MemoryHandle> CudaMemory::export_handle() const {
  if (origin_ != Origin::kOwn)
    return fail(ErrorCode::kRefused, "only memory that a device allocated itself can be exported");
  const Driver& cuda = gpu_->cuda();
  const auto event = WSYNC_TRY(published());
  const ContextGuard guard(*gpu_->context());
  WSYNC_TRY(guard.entered());
  IpcHandle handle{.pid = static_cast<std::uint32_t>(::getpid()),
                   .process = this_process(),
                   .allocation = allocation_->id(),
                   .bytes = bytes_,
                   .uuid = gpu_->uuid()};
  WSYNC_TRY(check(cuda, cuda.cuIpcGetMemHandle(&handle.memory, address_),
                  gpu_->name() + ": its memory cannot be shared with other processes"));
  WSYNC_TRY(check(cuda, cuda.cuIpcGetEventHandle(&handle.event, event),
                  gpu_->name() + ": its events cannot be shared with other processes"));
  return MemoryHandle{
      .kind = DeviceKind::kCuda, .bytes = bytes_, .fd = {}, .opaque = encode(handle)};
}

}  // namespace wsync::device::cuda
