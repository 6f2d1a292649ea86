// Handles of memory and events for other processes: 64 bytes that name a process and a descriptor
// in it. The descriptor is opened through /proc, so both processes are of one user.
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/context.h"
#include "tests/emulated_cuda/event.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/process.h"

namespace emulated_cuda {
namespace {

constexpr std::uint32_t kMemoryMagic = 0x4d554d45;  // "EMUM"
constexpr std::uint32_t kEventMagic = 0x45554d45;   // "EMUE"
// Smaller allocations share a block, and a handle of one exports all of it.
constexpr std::uint64_t kBlockBytes = std::uint64_t{2} << 20U;

struct Handle {
  std::uint32_t magic = 0;
  std::int32_t process = 0;
  std::uint64_t started = 0;
  std::int32_t fd = 0;
  std::uint32_t flags = 0;
  std::uint64_t id = 0;
  std::uint64_t random = 0;
  unsigned char gpu[16] = {};
};
static_assert(sizeof(Handle) <= CU_IPC_HANDLE_SIZE);

Handle handle_of(std::uint32_t magic, const Storage& storage, int device) {
  Handle handle{.magic = magic,
                .process = ::getpid(),
                .started = process_of(::getpid()).started,
                .fd = storage.fd(),
                .id = storage.page().id,
                .random = storage.page().random};
  gpu_uuid(machine_number(device), handle.gpu);
  return handle;
}

template <class Opaque>
void write_to(Opaque& opaque, const Handle& handle) {
  static_assert(sizeof opaque.reserved == CU_IPC_HANDLE_SIZE);
  std::memset(opaque.reserved, 0, sizeof opaque.reserved);
  std::memcpy(opaque.reserved, &handle, sizeof handle);
}

template <class Opaque>
Handle read_from(const Opaque& opaque) {
  Handle handle;
  std::memcpy(&handle, opaque.reserved, sizeof handle);
  return handle;
}

// The device of this process that a handle is of; -1: it does not see that GPU.
int device_of(const Handle& handle) {
  for (int device = 0; device < device_count(); ++device) {
    unsigned char uuid[16];
    gpu_uuid(machine_number(device), uuid);
    if (std::memcmp(uuid, handle.gpu, sizeof uuid) == 0) return device;
  }
  return -1;
}

// Maps what a handle names. That its process has died, or freed it, is no misuse.
CUresult map(const char* name, const Handle& handle, std::uint32_t magic,
             std::shared_ptr<Storage>& storage) {
  if (handle.magic != magic) return misuse(name, CUDA_ERROR_INVALID_VALUE, "no handle");
  if (handle.process == ::getpid())
    return misuse(name, CUDA_ERROR_INVALID_CONTEXT, "opened in the process that exported it");
  const Process exporter = process_of(handle.process);
  if (!exporter.lives || exporter.started != handle.started) return CUDA_ERROR_INVALID_VALUE;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.fd);
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  storage = Storage::open(fd, handle.id, handle.random);
  return storage == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// One open block of this storage, or null; the mutex is held.
Block* opened_before(const Handle& handle) {
  for (auto& [address, block] : state().blocks) {
    if (block.opens > 0 && block.storage->page().id == handle.id &&
        block.storage->page().random == handle.random)
      return &block;
  }
  return nullptr;
}

CUresult open_memory(const char* name, const Handle& handle, const Context& context,
                     CUdeviceptr* address) {
  const int device = device_of(handle);
  if (device < 0) return CUDA_ERROR_INVALID_VALUE;
  if (device != context.device && !settings().peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::shared_ptr<Storage> storage;
  if (const CUresult bad = map(name, handle, kMemoryMagic, storage)) return bad;
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  if (Block* block = opened_before(handle)) {
    if (block->context != context.id)
      return misuse(name, CUDA_ERROR_INVALID_CONTEXT,
                    "the memory is open in another context of this process");
    ++block->opens;
    *address = block->address;
    return CUDA_SUCCESS;
  }
  Block block{.id = all.next_id++,
              .address = reserve(storage->page().bytes),
              .bytes = storage->page().bytes,
              .device = context.device,
              .context = context.id,
              .storage = storage,
              .opens = 1,
              .was_imported = true,
              .exporter = handle.process};
  if (block.address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  storage->import(true);
  *address = block.address;
  all.blocks[block.address] = std::move(block);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  constexpr const char* kName = "cuIpcGetMemHandle";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    const std::scoped_lock lock(state().mutex);
    const Block* block = block_at(address);
    if (block == nullptr || block->address != address || block->storage == nullptr ||
        block->was_imported)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    hex(address) + " is not the beginning of an allocation of this process");
    if (block->bytes % kBlockBytes != 0)
      report(std::string(kName) + ": memory of " + std::to_string(block->bytes) +
             " bytes is exported, which is no multiple of 2 MiB: its neighbours go with it");
    write_to(*handle, handle_of(kMemoryMagic, *block->storage, block->device));
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle opaque, unsigned int flags) {
  constexpr const char* kName = "cuIpcOpenMemHandle_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "flags must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS");
    return open_memory(kName, read_from(opaque), *current(), address);
  });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  constexpr const char* kName = "cuIpcCloseMemHandle";
  return call(kName, Needs::kRelease, [&]() -> CUresult {
    const std::scoped_lock lock(state().mutex);
    Block* block = block_at(address);
    if (block == nullptr || block->address != address || block->opens == 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    hex(address) + " is not the beginning of opened memory");
    if (--block->opens > 0) return CUDA_SUCCESS;
    if (block->storage->in_use > 0)
      report(std::string(kName) + ": memory " + std::to_string(block->id) +
             " is closed while queued work uses it");
    block->storage->import(false);
    block->storage = nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  constexpr const char* kName = "cuIpcGetEventHandle";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    std::shared_ptr<EventState> event;
    if (const CUresult bad = find_event(kName, event_handle, event)) return bad;
    if (event->storage == nullptr || event->imported)
      return misuse(kName, CUDA_ERROR_INVALID_HANDLE, "no interprocess event of this process");
    write_to(*handle, handle_of(kEventMagic, *event->storage, current()->device));
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle opaque) {
  constexpr const char* kName = "cuIpcOpenEventHandle";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    const Handle handle = read_from(opaque);
    std::shared_ptr<Storage> storage;
    if (const CUresult bad = map(kName, handle, kEventMagic, storage)) return bad;
    storage->import(true);
    auto made = std::make_shared<EventState>();
    made->context = current()->id;
    made->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    made->storage = std::move(storage);
    made->imported = true;
    made->exporter = handle.process;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = all.next_id++;
    all.events[id] = std::move(made);
    *event = make_handle<CUevent>(HandleKind::kEvent, id);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
