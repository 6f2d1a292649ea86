// Pinned host memory, and what is known of an address.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/stream.h"

namespace emulated_cuda {
namespace {

constexpr std::size_t kHostAlignment = 4096;

bool overlaps(std::uintptr_t address, std::size_t bytes) {
  for (const auto& [start, range] : state().pinned) {
    if (start < address + bytes && address < start + range->bytes) return true;
  }
  return false;
}

enum class Mapped : std::uint8_t { kNo, kReadOnly, kWritable };

// What the system says of every page of the range: the least of them.
Mapped mapped(std::uintptr_t address, std::size_t bytes) {
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  if (file == nullptr) return Mapped::kNo;
  const std::uintptr_t end = address + bytes;
  Mapped min = Mapped::kWritable;
  char line[512];
  while (address < end && std::fgets(line, sizeof line, file) != nullptr) {
    char* at = line;
    const std::uintptr_t from = std::strtoull(at, &at, 16);
    const std::uintptr_t to = std::strtoull(at + 1, &at, 16);
    if (to <= address) continue;
    if (from > address || at[1] != 'r') break;
    if (at[2] != 'w') min = Mapped::kReadOnly;
    address = to;
  }
  std::fclose(file);
  return address >= end ? min : Mapped::kNo;
}

CUresult remove_pinned(const char* name, const void* address, bool allocated, CUresult absent) {
  State& all = state();
  std::shared_ptr<HostRange> range;
  {
    const std::scoped_lock lock(all.mutex);
    const auto found = all.pinned.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == all.pinned.end() || found->second->allocated != allocated)
      return misuse(name, absent,
                    hex(reinterpret_cast<std::uintptr_t>(address)) + " is not the beginning of " +
                        (allocated ? "allocated" : "registered") + " pinned memory");
    range = found->second;
    all.pinned.erase(found);
  }
  if (range->in_use > 0)
    report(std::string(name) + ": " + std::to_string(range->bytes) + " bytes at " +
           hex(range->address) + " are no longer pinned while queued work uses them");
  wait_for_kernels(-1, std::unique_lock(all.launches));
  if (!allocated && mapped(range->address, range->bytes) == Mapped::kNo)
    report(std::string(name) + ": memory was unmapped while it was registered");
  return CUDA_SUCCESS;
}

CUresult allocate_host(const char* name, void** address, std::size_t bytes) {
  if (bytes == 0) return misuse(name, CUDA_ERROR_INVALID_VALUE, "no bytes");
  const auto context = current();
  void* memory = ::operator new(bytes, std::align_val_t{kHostAlignment}, std::nothrow);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  auto range = std::make_shared<HostRange>();
  range->address = reinterpret_cast<std::uintptr_t>(memory);
  range->bytes = bytes;
  range->allocated = true;
  range->context = context->id;
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  all.pinned[range->address] = std::move(range);
  *address = memory;
  return CUDA_SUCCESS;
}

// The value of an attribute of device memory or pinned memory; false: not emulated.
bool pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, void* value,
                       CUresult& result) {
  const Block* block = block_at(pointer);
  if (block != nullptr && block->storage == nullptr) block = nullptr;
  const bool device = block != nullptr;
  bool pinned = false;
  for (const auto& [start, range] : state().pinned)
    pinned = pinned || (pointer >= start && pointer - start < range->bytes);
  result = device || pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) return true;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = device ? block->device : 0;
      return true;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!device) return false;
      *static_cast<CUcontext*>(value) =
          block->context == 0 ? nullptr
                              : make_handle<CUcontext>(HandleKind::kContext, block->context);
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = pointer;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(value) = 0;
      return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      if (!device) return false;
      *static_cast<unsigned long long*>(value) = block->id;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned*>(value) = device && block->mapping == nullptr ? 1 : 0;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      if (!device) return false;
      *static_cast<int*>(value) = 1;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (!device) return false;
      *static_cast<CUdeviceptr*>(value) = block->address;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (!device) return false;
      *static_cast<std::size_t*>(value) = block->bytes;
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuMemAllocHost(void** address, size_t bytes) {
  return call("cuMemAllocHost_v2", Needs::kContext,
              [&] { return allocate_host("cuMemAllocHost_v2", address, bytes); });
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int) {
  return call("cuMemHostAlloc", Needs::kContext,
              [&] { return allocate_host("cuMemHostAlloc", address, bytes); });
}

CUresult cuMemFreeHost(void* address) {
  return call("cuMemFreeHost", Needs::kRelease, [&]() -> CUresult {
    if (const CUresult bad =
            remove_pinned("cuMemFreeHost", address, true, CUDA_ERROR_INVALID_VALUE))
      return bad;
    ::operator delete(address, std::align_val_t{kHostAlignment});
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostRegister(void* address, size_t bytes, unsigned int flags) {
  constexpr const char* kName = "cuMemHostRegister_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    constexpr unsigned kKnown =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    const bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    if (address == nullptr || bytes == 0 || (flags & ~kKnown) != 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "an address, bytes or flags that cannot be");
    if (read_only && !settings().reads_read_only) return CUDA_ERROR_NOT_SUPPORTED;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const Mapped found = mapped(at, bytes);
    if (found == Mapped::kNo)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "the memory is not mapped");
    if (found == Mapped::kReadOnly && !read_only)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "memory that is mapped read-only needs CU_MEMHOSTREGISTER_READ_ONLY");
    auto range = std::make_shared<HostRange>();
    range->address = at;
    range->bytes = bytes;
    range->read_only = read_only;
    range->context = current()->id;
    State& all = state();
    const std::unique_lock launch(all.launches);
    std::this_thread::sleep_for(std::chrono::microseconds(settings().register_us_per_mib) *
                                static_cast<std::int64_t>(bytes >> 20U));
    const std::scoped_lock lock(all.mutex);
    if (overlaps(at, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    all.pinned[at] = std::move(range);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* address) {
  constexpr const char* kName = "cuMemHostUnregister";
  return call(kName, Needs::kRelease, [&] {
    return remove_pinned(kName, address, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

// A question, also of addresses that the driver does not know: no misuse.
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  constexpr const char* kName = "cuPointerGetAttribute";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    const std::scoped_lock lock(state().mutex);
    CUresult result = CUDA_SUCCESS;
    if (pointer_attribute(attribute, pointer, value, result)) return result;
    return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                  "attribute " + std::to_string(static_cast<int>(attribute)) +
                      " of this memory is not emulated");
  });
}

}  // extern "C"
