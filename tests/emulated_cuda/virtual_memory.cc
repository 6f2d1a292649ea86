// Memory that is made, mapped and made accessible by separate calls (cuMemCreate and so on), and
// its descriptors for other processes.
#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <vector>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/context.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/usage.h"

namespace emulated_cuda {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20U;
constexpr std::uint64_t kHostPage = 4096;

bool whole(std::uint64_t bytes) { return bytes % kGranule == 0; }

std::string range_text(CUdeviceptr address, std::size_t bytes) {
  return std::to_string(bytes) + " bytes at " + hex(address);
}

// Only what the product asks for is emulated: pinned memory of a device.
CUresult check_properties(const char* name, const CUmemAllocationProp* wanted) {
  if (wanted == nullptr || wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return misuse(name, CUDA_ERROR_INVALID_VALUE, "not pinned memory of a device");
  if (wanted->win32HandleMetaData != nullptr)
    return misuse(name, CUDA_ERROR_INVALID_VALUE, "attributes of another system");
  if (const CUresult bad = check_device(name, wanted->location.id)) return bad;
  if (wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return misuse(name, CUDA_ERROR_NOT_SUPPORTED, "handles that are no descriptors");
  if (wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE && !settings().descriptors)
    return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

// The device of this process that a memory is on; -1: it does not see that GPU.
int device_of(const Storage& storage) {
  for (int device = 0; device < device_count(); ++device) {
    unsigned char uuid[16];
    gpu_uuid(machine_number(device), uuid);
    if (std::memcmp(uuid, storage.page().gpu, sizeof uuid) == 0) return device;
  }
  return -1;
}

CUmemGenericAllocationHandle memory_handle(std::uint64_t id) {
  return handle_bits(HandleKind::kMemory) | (id << 4U);
}

// What the handle names, or null, which is reported; the mutex is held.
Physical* find_memory(const char* name, CUmemGenericAllocationHandle handle) {
  auto& all = state().physical;
  const auto found = all.find(id_of(HandleKind::kMemory, reinterpret_cast<void*>(handle)));
  if (found != all.end()) return &found->second;
  report(std::string(name) + ": no handle of memory, or released before");
  return nullptr;
}

// The mapped blocks that a range consists of, which the caller may change; empty unless they are
// whole and next to each other. The mutex is held.
std::vector<Block*> mapped_blocks(CUdeviceptr address, std::size_t bytes) {
  std::vector<Block*> found;
  auto& blocks = state().blocks;
  CUdeviceptr at = address;
  for (auto next = blocks.find(address); at < address + bytes; ++next) {
    if (next == blocks.end() || next->second.address != at || next->second.mapping == nullptr)
      return {};
    found.push_back(&next->second);
    at += next->second.bytes;
  }
  if (at != address + bytes) found.clear();
  return found;
}

// The reservation that holds the whole range, or null; the mutex is held.
const Reservation* reservation_of(CUdeviceptr address, std::size_t bytes) {
  const auto& all = state().reservations;
  auto found = all.upper_bound(address);
  if (found == all.begin()) return nullptr;
  --found;
  const std::uint64_t offset = address - found->first;
  const bool inside = !found->second.freed && offset <= found->second.bytes &&
                      bytes <= found->second.bytes - offset;
  return inside ? &found->second : nullptr;
}

// Whether something is mapped in the range; the mutex is held.
bool holds_mappings(CUdeviceptr address, std::size_t bytes) {
  for (const auto& [at, block] : state().blocks) {
    if (block.mapping != nullptr && at < address + bytes && address < at + block.bytes) return true;
  }
  return false;
}

CUresult check_map(const char* name, CUdeviceptr address, std::size_t bytes,
                   const Physical& memory) {
  if (bytes == 0 || !whole(bytes) || !whole(address))
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  range_text(address, bytes) + " are no whole granules of 2 MiB");
  // That another process has said more bytes than its memory has is no misuse of this one.
  if (bytes > memory.storage->page().bytes) return CUDA_ERROR_INVALID_VALUE;
  if (reservation_of(address, bytes) == nullptr)
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  range_text(address, bytes) + " are not inside a reserved range");
  if (holds_mappings(address, bytes))
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  range_text(address, bytes) + " are mapped already");
  return CUDA_SUCCESS;
}

CUresult set_access(const char* name, const std::vector<Block*>& blocks,
                    const CUmemAccessDesc& wanted) {
  if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return misuse(name, CUDA_ERROR_INVALID_VALUE, "only devices are emulated as locations");
  const int device = wanted.location.id;
  if (const CUresult bad = check_device(name, device)) return bad;
  Access access = Access::kNone;
  if (wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_READ) access = Access::kRead;
  if (wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) access = Access::kReadWrite;
  if (access == Access::kNone && wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  "access flags " + std::to_string(static_cast<unsigned>(wanted.flags)));
  for (Block* block : blocks) {
    if (block->device != device && !settings().peers)
      return misuse(name, CUDA_ERROR_INVALID_DEVICE,
                    "device " + std::to_string(device) + " does not reach device " +
                        std::to_string(block->device));
    block->mapping->access[device] = access;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* wanted,
                                       CUmemAllocationGranularity_flags option) {
  constexpr const char* kName = "cuMemGetAllocationGranularity";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_properties(kName, wanted)) return bad;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
        option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "no such option");
    *bytes = kGranule;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* wanted, unsigned long long flags) {
  constexpr const char* kName = "cuMemCreate";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (flags != 0) return misuse(kName, CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    if (const CUresult bad = check_properties(kName, wanted)) return bad;
    if (bytes == 0 || !whole(bytes))
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    std::to_string(bytes) + " bytes are no whole granules of 2 MiB");
    const int device = wanted->location.id;
    const int number = machine_number(device);
    if (!take(number, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    Physical made{.storage = Storage::create(number, bytes),
                  .charge = std::make_shared<Charge>(number, bytes),
                  .device = device,
                  .has_descriptors = wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE};
    if (made.storage == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = all.next_id++;
    all.physical[id] = std::move(made);
    *handle = memory_handle(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  constexpr const char* kName = "cuMemRelease";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    if (find_memory(kName, handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    all.physical.erase(id_of(HandleKind::kMemory, reinterpret_cast<void*>(handle)));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  constexpr const char* kName = "cuMemAddressReserve";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (flags != 0) return misuse(kName, CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    if (bytes == 0 || bytes % kHostPage != 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    std::to_string(bytes) + " bytes are no whole pages");
    if ((alignment & (alignment - 1)) != 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "the alignment is no power of two");
    const CUdeviceptr at = reserve(bytes, std::max<std::uint64_t>(alignment, kGranule));
    if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    all.reservations[at] = {.bytes = bytes};
    *address = at;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  constexpr const char* kName = "cuMemAddressFree";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const auto found = all.reservations.find(address);
    if (found == all.reservations.end() || found->second.freed || found->second.bytes != bytes)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    range_text(address, bytes) + " are no reserved range");
    if (holds_mappings(address, bytes))
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    range_text(address, bytes) + " are freed while memory is mapped there");
    found->second.freed = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  constexpr const char* kName = "cuMemMap";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (flags != 0 || offset != 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "flags and offset must be 0");
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const Physical* const memory = find_memory(kName, handle);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult bad = check_map(kName, address, bytes, *memory)) return bad;
    // Earlier mappings of the same addresses, which are not found any more.
    all.blocks.erase(all.blocks.lower_bound(address), all.blocks.lower_bound(address + bytes));
    all.blocks[address] = {.id = all.next_id++,
                           .address = address,
                           .bytes = bytes,
                           .device = memory->device,
                           .storage = memory->storage,
                           .mapping = std::make_shared<Mapping>(memory->storage, memory->charge),
                           .was_mapped = true};
    return CUDA_SUCCESS;
  });
}

// It does not wait for work, so what runs must not use the memory.
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  constexpr const char* kName = "cuMemUnmap";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    const std::scoped_lock lock(state().mutex);
    const auto blocks = mapped_blocks(address, bytes);
    if (blocks.empty())
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    range_text(address, bytes) + " are no whole mapped range");
    for (Block* block : blocks) {
      if (block->mapping->in_use > 0)
        report(std::string(kName) + ": memory " + std::to_string(block->id) +
               " is unmapped while queued work uses it");
      block->mapping = nullptr;
      block->storage = nullptr;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* wanted,
                        size_t count) {
  constexpr const char* kName = "cuMemSetAccess";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    const std::scoped_lock lock(state().mutex);
    const auto blocks = mapped_blocks(address, bytes);
    if (blocks.empty())
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    range_text(address, bytes) + " are no whole mapped range");
    if (wanted == nullptr || count == 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "no access is described");
    for (std::size_t i = 0; i < count; ++i) {
      if (const CUresult bad = set_access(kName, blocks, wanted[i])) return bad;
    }
    return CUDA_SUCCESS;
  });
}

// The descriptor survives exec(), because the documentation does not say that it is closed then.
CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  constexpr const char* kName = "cuMemExportToShareableHandle";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (flags != 0 || shareable == nullptr)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "no place for the handle, or flags");
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "only descriptors are emulated");
    const std::scoped_lock lock(state().mutex);
    const Physical* const memory = find_memory(kName, handle);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!memory->has_descriptors)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "the memory was made without a request for descriptors");
    const int fd = ::fcntl(memory->storage->fd(), F_DUPFD, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    std::memcpy(shareable, &fd, sizeof fd);
    return CUDA_SUCCESS;
  });
}

// What the descriptor is of comes from another process: no misuse.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  constexpr const char* kName = "cuMemImportFromShareableHandle";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "only descriptors are emulated");
    if (!settings().descriptors) return CUDA_ERROR_NOT_SUPPORTED;
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    if (::fcntl(fd, F_GETFD) < 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "the descriptor is not open");
    auto storage = Storage::open(fd);
    if (storage == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const int device = device_of(*storage);
    if (device < 0) return CUDA_ERROR_NOT_SUPPORTED;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = all.next_id++;
    all.physical[id] = {.storage = std::move(storage), .device = device, .has_descriptors = true};
    *handle = memory_handle(id);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
