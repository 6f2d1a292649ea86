#include "shared/device/cuda/memory.h"

#include <map>
#include <mutex>
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
  // Of a range that is only reserved the driver may answer all the same, and a kernel that writes
  // there ends the use of the GPU. Plain allocations always have memory.
  const auto plain = pointer_fact<int>(cuda, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at);
  if (plain && *plain != 0) return {};
  const auto mapped = pointer_fact<int>(cuda, CU_POINTER_ATTRIBUTE_MAPPED, at);
  if (!mapped || *mapped == 0)
    return fail(ErrorCode::kInvalidInput, fmt::format("no memory is mapped at address {:#x}", at));
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
  auto memory = MappedMemory::make(*gpu, whole_blocks(bytes));
  if (!memory) return fail(out_of_memory(*gpu, whole_blocks(bytes), memory.error()));
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

Result<MemoryHandle> Allocation::export_handle() const {
  auto fd = memory_.descriptor();
  if (!fd)
    return fail(fd.error().with_context(gpu_->name() +
                                        ": its memory cannot be shared with other processes"));
  return MemoryHandle{.kind = DeviceKind::kCuda,
                      .bytes = bytes_,
                      .fd = std::move(*fd),
                      .opaque = encode({.pid = static_cast<std::uint32_t>(::getpid()),
                                        .process = this_process(),
                                        .allocation = id_,
                                        .bytes = bytes_,
                                        .mapped_bytes = whole_blocks(bytes_),
                                        .uuid = gpu_->uuid()})};
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
  auto said = WSYNC_TRY(decode_description(handle.opaque));
  if (said.bytes != handle.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("imported GPU memory: expected {} bytes, but the handle says {}",
                            handle.bytes, said.bytes));
  if (said.uuid != gpu->uuid())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("imported GPU memory of process {} is on GPU {}, but this device is GPU {}",
                    said.pid, said.uuid, gpu->uuid()));
  if (said.process != this_process()) return open(gpu, said, handle.fd.get());
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
                                                     const AllocationDescription& said, int fd) {
  if (fd < 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the handle of GPU memory of process {} came without its file "
                            "descriptor",
                            said.pid));
  auto mapping = MappedMemory::import(*gpu, fd, said.mapped_bytes);
  if (!mapping)
    return fail(mapping.error().with_context(
        fmt::format("the GPU memory of process {} cannot be mapped", said.pid)));
  std::unique_ptr<CudaMemory> memory(
      new CudaMemory(gpu, Origin::kImported, mapping->address(), said.bytes));
  memory->mapping_ = std::move(*mapping);
  return memory;
}

Result<MemoryHandle> CudaMemory::export_handle() const {
  if (origin_ != Origin::kOwn)
    return fail(ErrorCode::kRefused, "only memory that a device allocated itself can be exported");
  return allocation_->export_handle();
}

}  // namespace wsync::device::cuda
