#include "tests/emulated_cuda/memory.h"

#include <algorithm>
#include <sys/mman.h>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/context.h"
#include "tests/emulated_cuda/stream.h"
#include "tests/emulated_cuda/usage.h"

namespace emulated_cuda {
namespace {

constexpr std::uint64_t kPage = 4096;

std::string span_text(std::uint64_t address, std::size_t bytes) {
  return std::to_string(bytes) + " bytes at " + hex(address);
}

// The pinned range that holds the address, or null; the mutex is held.
std::shared_ptr<HostRange> pinned_at(std::uintptr_t address) {
  const auto& pinned = state().pinned;
  auto found = pinned.upper_bound(address);
  if (found == pinned.begin()) return nullptr;
  --found;
  return address - found->first < found->second->bytes ? found->second : nullptr;
}

bool pinned_within(std::uintptr_t address, std::size_t bytes) {
  const auto& pinned = state().pinned;
  const auto next = pinned.lower_bound(address);
  return pinned_at(address) != nullptr || (next != pinned.end() && next->first - address < bytes);
}

CUresult in_block(const char* name, const Block& block, CUdeviceptr address, std::size_t bytes,
                  Place& place) {
  const std::uint64_t offset = address - block.address;
  if (block.storage == nullptr)
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  span_text(address, bytes) + " are of memory " + std::to_string(block.id) +
                      ", which has been " + (block.was_mapped ? "unmapped" : "freed"));
  if (offset > block.bytes || bytes > block.bytes - offset)
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  span_text(address, bytes) + " reach outside of memory " +
                      std::to_string(block.id) + " of " + std::to_string(block.bytes) +
                      " bytes at " + hex(block.address));
  place = {.at = block.storage->bytes() + offset,
           .used = block.usable(),
           .device = block.device,
           .mapped = block.mapping != nullptr};
  if (place.mapped) place.access = block.mapping->access;
  return CUDA_SUCCESS;
}

// Of pinned memory that holds the first byte; the mutex is held.
CUresult in_pinned(const char* name, const std::shared_ptr<HostRange>& range,
                   std::uintptr_t address, std::size_t bytes, Place& place) {
  if (bytes > range->bytes - (address - range->address))
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  span_text(address, bytes) + " reach outside of " + std::to_string(range->bytes) +
                      " bytes of pinned memory at " + hex(range->address) +
                      ": a copy is pinned by one call, or not at all");
  place = {
      .at = reinterpret_cast<std::byte*>(address), .used = range, .read_only = range->read_only};
  return CUDA_SUCCESS;
}

}  // namespace

Block* block_at(CUdeviceptr address) {
  auto& blocks = state().blocks;
  auto found = blocks.upper_bound(address);
  if (found == blocks.begin()) return nullptr;
  --found;
  Block& block = found->second;
  const std::uint64_t reserved = (block.bytes + kPage - 1) / kPage * kPage + kPage;
  return address - block.address < reserved ? &block : nullptr;
}

// A page more than needed, so that no two allocations touch.
CUdeviceptr reserve(std::uint64_t bytes, std::uint64_t alignment) {
  const std::uint64_t all = (bytes + kPage - 1) / kPage * kPage + kPage + alignment - 1;
  void* at = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  return (reinterpret_cast<CUdeviceptr>(at) + alignment - 1) / alignment * alignment;
}

std::string why_denied(const Place& place, int device, bool writes) {
  if (!place.mapped) return {};
  const auto found = place.access.find(device);
  const Access access = found == place.access.end() ? Access::kNone : found->second;
  if (access == Access::kReadWrite || (access == Access::kRead && !writes)) return {};
  return std::string(access == Access::kRead ? "writes to memory that device "
                                             : "uses memory that device ") +
         std::to_string(device) + (access == Access::kRead ? " may only read" : " may not access") +
         " (cuMemSetAccess)";
}

CUresult device_place(const char* name, CUdeviceptr address, std::size_t bytes, Place& place) {
  const std::scoped_lock lock(state().mutex);
  if (const Block* block = block_at(address)) return in_block(name, *block, address, bytes, place);
  if (const auto range = pinned_at(address)) return in_pinned(name, range, address, bytes, place);
  return misuse(name, CUDA_ERROR_INVALID_VALUE,
                span_text(address, bytes) + " are no memory of a device");
}

CUresult kernel_place(const char* name, const Context& context, CUdeviceptr address,
                      std::size_t bytes, bool writes, Place& place) {
  if (const CUresult bad = device_place(name, address, bytes, place)) return bad;
  if (const auto denied = why_denied(place, context.device, writes); !denied.empty())
    return misuse(name, CUDA_ERROR_ILLEGAL_ADDRESS, span_text(address, bytes) + ": it " + denied);
  if (place.mapped) return CUDA_SUCCESS;
  const std::scoped_lock lock(state().mutex);
  const Block* block = block_at(address);
  if (block == nullptr || reaches(context, block->device)) return CUDA_SUCCESS;
  return misuse(name, CUDA_ERROR_INVALID_VALUE,
                span_text(address, bytes) + " are on device " + std::to_string(block->device) +
                    ", which device " + std::to_string(context.device) +
                    " does not reach: peer access is not enabled");
}

CUresult host_place(const char* name, const void* address, std::size_t bytes, Place& place) {
  const std::scoped_lock lock(state().mutex);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (block_at(at) != nullptr)
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  span_text(at, bytes) + " are device memory where host memory is expected");
  if (const auto range = pinned_at(at)) return in_pinned(name, range, at, bytes, place);
  if (pinned_within(at, bytes))
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  span_text(at, bytes) + " are pinned only in part");
  if (address == nullptr)
    return misuse(name, CUDA_ERROR_INVALID_VALUE, "the host's address is null");
  place = {.at = reinterpret_cast<std::byte*>(at), .used = nullptr, .pageable = true};
  return CUDA_SUCCESS;
}

CUresult any_place(const char* name, CUdeviceptr address, std::size_t bytes, Place& place) {
  bool device = false;
  {
    const std::scoped_lock lock(state().mutex);
    device = block_at(address) != nullptr;
  }
  return device ? device_place(name, address, bytes, place)
                : host_place(name, reinterpret_cast<const void*>(address), bytes, place);
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  return call("cuMemGetInfo_v2", Needs::kContext, [&]() -> CUresult {
    const auto context = current();
    const std::uint64_t all = settings().memory_bytes;
    const std::uint64_t used = taken(machine_number(context->device));
    *total = all;
    *free = all - std::min(all, used);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  constexpr const char* kName = "cuMemAlloc_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (bytes == 0) return misuse(kName, CUDA_ERROR_INVALID_VALUE, "no bytes");
    const auto context = current();
    if (!take(machine_number(context->device), bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    Block block{.id = all.next_id++,
                .address = reserve(bytes),
                .bytes = bytes,
                .device = context->device,
                .context = context->id};
    block.storage = Storage::create(machine_number(context->device), bytes);
    if (block.address == 0 || block.storage == nullptr) {
      give_back(machine_number(context->device), bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = block.address;
    all.blocks[block.address] = std::move(block);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFree(CUdeviceptr address) {
  constexpr const char* kName = "cuMemFree_v2";
  return call(kName, Needs::kRelease, [&]() -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    State& all = state();
    const std::unique_lock launch(all.launches);
    std::unique_lock lock(all.mutex);
    Block* block = block_at(address);
    if (block == nullptr || block->address != address || block->was_mapped)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    hex(address) + " is not the beginning of an allocation");
    if (block->storage == nullptr)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "memory " + std::to_string(block->id) + " has been freed before");
    if (block->storage->in_use > 0)
      report(std::string(kName) + ": memory " + std::to_string(block->id) +
             " is freed while queued work uses it");
    const int device = block->device;
    lock.unlock();
    wait_for_kernels(device, launch);
    lock.lock();
    block->storage = nullptr;  // nodes of a map stay where they are
    give_back(machine_number(block->device), block->bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  constexpr const char* kName = "cuMemGetAddressRange_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    const std::scoped_lock lock(state().mutex);
    const Block* block = block_at(address);
    // A question, also of addresses that are no device's: no misuse.
    if (block == nullptr || block->storage == nullptr || address - block->address >= block->bytes)
      return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = block->address;
    if (bytes != nullptr) *bytes = block->bytes;
    return CUDA_SUCCESS;
  });
}

void* emulated_cuda_view(CUstream stream, CUdeviceptr address, size_t bytes) {
  std::shared_ptr<Context> context;
  {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const auto found = all.streams.find(id_of(HandleKind::kStream, stream));
    if (found != all.streams.end()) context = found->second->shared_context();
  }
  if (context == nullptr) {
    report("emulated_cuda_view: no stream, or no longer");
    return nullptr;
  }
  Place place;
  return kernel_place("emulated_cuda_view", *context, address, bytes, true, place) == CUDA_SUCCESS
             ? place.at
             : nullptr;
}

}  // extern "C"
