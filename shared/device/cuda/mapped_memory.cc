#include "shared/device/cuda/mapped_memory.h"

#include <cstdint>
#include <fcntl.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {
namespace {

constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemLocation location_of(CUdevice device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp properties_on(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kDescriptor;
  properties.location = location_of(device);
  return properties;
}

// Memory of cuMemCreate is not opened to peers by cuCtxEnablePeerAccess, only by cuMemSetAccess.
std::vector<CUmemAccessDesc> access_for(const Gpu& gpu, CUmemAccess_flags flags) {
  std::vector<CUmemAccessDesc> access;
  access.push_back({.location = location_of(gpu.context()->device()), .flags = flags});
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return access;
  for (const auto& peer : gpu.peers())
    access.push_back({.location = location_of(peer->context()->device()), .flags = flags});
  return access;
}

}  // namespace

Result<MappedRange> MappedRange::map(const Gpu& gpu, CUmemGenericAllocationHandle handle,
                                     std::uint64_t bytes, CUmemAccess_flags flags) {
  const Driver& cuda = gpu.cuda();
  MappedRange range;
  CUdeviceptr address = 0;
  WSYNC_TRY(check(cuda, cuda.cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve"));
  range.context_ = gpu.context();
  range.address_ = address;
  range.bytes_ = bytes;
  WSYNC_TRY(check(cuda, cuda.cuMemMap(address, bytes, 0, handle, 0), "cuMemMap"));
  range.mapped_ = true;
  const auto access = access_for(gpu, flags);
  WSYNC_TRY(check(cuda, cuda.cuMemSetAccess(address, bytes, access.data(), access.size()),
                  "cuMemSetAccess"));
  return range;
}

void MappedRange::reset() noexcept {
  if (address_ == 0) return;
  const CUdeviceptr address = std::exchange(address_, 0);
  if (context_->abandoned()) return;
  const ContextGuard guard(*context_);
  const Driver& cuda = context_->cuda();
  if (std::exchange(mapped_, false)) {
    const CUresult code = cuda.cuMemUnmap(address, bytes_);
    released(cuda, code, "cuMemUnmap");
    // The addresses of what is still mapped cannot be freed.
    if (code != CUDA_SUCCESS) return;
  }
  released(cuda, cuda.cuMemAddressFree(address, bytes_), "cuMemAddressFree");
}

Result<MappedMemory> MappedMemory::make(const Gpu& gpu, std::uint64_t bytes) {
  const Driver& cuda = gpu.cuda();
  const ContextGuard guard(*gpu.context());
  WSYNC_TRY(guard.entered());
  const auto properties = properties_on(gpu.context()->device());
  CUmemGenericAllocationHandle handle = 0;
  WSYNC_TRY(check(cuda, cuda.cuMemCreate(&handle, bytes, &properties, 0),
                  fmt::format("{} bytes of GPU memory", bytes)));
  OwnedHandle owned(gpu.context(), handle);
  auto range = WSYNC_TRY(MappedRange::map(gpu, handle, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  return MappedMemory(gpu.context(), std::move(owned), std::move(range));
}

Result<MappedMemory> MappedMemory::import(const Gpu& gpu, int fd, std::uint64_t bytes) {
  const Driver& cuda = gpu.cuda();
  const ContextGuard guard(*gpu.context());
  WSYNC_TRY(guard.entered());
  CUmemGenericAllocationHandle handle = 0;
  auto* const as_pointer = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  // Drivers have different errors for a descriptor of something else.
  if (const auto done =
          check(cuda, cuda.cuMemImportFromShareableHandle(&handle, as_pointer, kDescriptor),
                "cuMemImportFromShareableHandle");
      !done)
    return fail(
        done.error().code() == ErrorCode::kIo ? ErrorCode::kInvalidInput : done.error().code(),
        done.error().message());
  const OwnedHandle owned(gpu.context(), handle);
  auto range = WSYNC_TRY(MappedRange::map(gpu, handle, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ));
  return MappedMemory(gpu.context(), {}, std::move(range));
}

// The documentation does not say that the descriptor is closed by exec(), so it is marked here.
// Another thread must not start a program in between, hence made_by().
Result<UniqueFd> MappedMemory::descriptor() const {
  const Driver& cuda = context_->cuda();
  const ContextGuard guard(*context_);
  WSYNC_TRY(guard.entered());
  CUresult code = CUDA_SUCCESS;
  UniqueFd fd = UniqueFd::made_by([&] {
    int made = -1;
    code = cuda.cuMemExportToShareableHandle(&made, handle_.get(), kDescriptor, 0);
    if (code != CUDA_SUCCESS) return -1;
    static_cast<void>(::fcntl(made, F_SETFD, FD_CLOEXEC));
    return made;
  });
  WSYNC_TRY(check(cuda, code, "cuMemExportToShareableHandle"));
  return fd;
}

Result<> check_shares_memory(const Driver& cuda, CUdevice device) {
  // A driver that does not know an attribute does not have what it stands for.
  const auto has = [&](CUdevice_attribute which) {
    return attribute(cuda, which, device).value_or(0) != 0;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
      !has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
    return fail(ErrorCode::kRefused,
                "it cannot share memory with other processes by file descriptors, which wsync "
                "needs (CUDA's attributes VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED and "
                "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)");
  const auto properties = properties_on(device);
  std::size_t granularity = 0;
  WSYNC_TRY(check(cuda,
                  cuda.cuMemGetAllocationGranularity(&granularity, &properties,
                                                     CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                  "the granularity of its memory"));
  if (granularity == 0 || kGpuBlockBytes % granularity != 0)
    return fail(ErrorCode::kRefused,
                fmt::format("it allocates memory in blocks of {} bytes, but wsync plans with {}",
                            granularity, kGpuBlockBytes));
  return {};
}

}  // namespace wsync::device::cuda
