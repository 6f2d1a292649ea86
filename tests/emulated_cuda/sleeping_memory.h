// GPU memory as frameworks keep it that give it away for a time: the range of addresses stays
// reserved, and what is mapped there comes and goes. By calls of the driver (libcuda.so.1) alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <dlfcn.h>
#include <span>

namespace wsync {

// A call that fails ends the process, with its name. Thread: confined to one thread, except as
// said.
class SleepingMemory {
 public:
  // `bytes`: rounded up to whole blocks of 2 MiB. The memory is there.
  SleepingMemory(int gpu, std::uint64_t bytes)
      : bytes_((bytes + kBlock - 1) / kBlock * kBlock), gpu_(gpu) {
    check(cuda_.cuInit(0), "cuInit");
    check(cuda_.cuDevicePrimaryCtxRetain(&context_, gpu_), "cuDevicePrimaryCtxRetain");
    const Current current(*this);
    check(cuda_.cuMemAddressReserve(&address_, bytes_, kBlock, 0, 0), "cuMemAddressReserve");
    map();
  }
  ~SleepingMemory() {
    if (is_there_) unmap();
    {
      const Current current(*this);
      check(cuda_.cuMemAddressFree(address_, bytes_), "cuMemAddressFree");
    }
    check(cuda_.cuDevicePrimaryCtxRelease(gpu_), "cuDevicePrimaryCtxRelease");
  }
  SleepingMemory(const SleepingMemory&) = delete;
  SleepingMemory& operator=(const SleepingMemory&) = delete;

  // The range; the host must not follow its addresses.
  [[nodiscard]] std::span<std::byte> range() const {
    return {reinterpret_cast<std::byte*>(address_), bytes_};
  }
  // The memory is given to others. Nothing may use the range meanwhile.
  void sleep() { unmap(); }
  // Other memory is there, at the same addresses.
  void wake() { map(); }
  // Copies on the GPU, with a stream of its own, and waits. Thread: any, one call at a time.
  void copy(void* to, const void* from, std::uint64_t bytes) const {
    run([&](CUstream stream) {
      check(cuda_.cuMemcpyAsync(device_address(to), device_address(from), bytes, stream),
            "cuMemcpyAsync");
    });
  }
  // The same to memory of the host.
  void copy_to_host(void* to, const void* from, std::uint64_t bytes) const {
    run([&](CUstream stream) {
      check(cuda_.cuMemcpyDtoHAsync(to, device_address(from), bytes, stream), "cuMemcpyDtoHAsync");
    });
  }

 private:
  static constexpr std::uint64_t kBlock = std::uint64_t{2} << 20U;
  // clang-format off
#define WSYNC_SLEEPING_CALLS(CALL)                                                          \
  CALL(cuInit) CALL(cuDevicePrimaryCtxRetain) CALL(cuDevicePrimaryCtxRelease)               \
  CALL(cuCtxPushCurrent) CALL(cuCtxPopCurrent) CALL(cuMemCreate) CALL(cuMemRelease)         \
  CALL(cuMemAddressReserve) CALL(cuMemAddressFree) CALL(cuMemMap) CALL(cuMemUnmap)          \
  CALL(cuMemSetAccess) CALL(cuMemcpyAsync) CALL(cuMemcpyDtoHAsync) CALL(cuStreamCreate)     \
  CALL(cuStreamSynchronize) CALL(cuStreamDestroy)
  // clang-format on
  struct Calls {
    Calls() {
      void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define WSYNC_SLEEPING_TEXT_OF(name) #name
#define WSYNC_SLEEPING_TEXT(name) WSYNC_SLEEPING_TEXT_OF(name)
#define WSYNC_SLEEPING_FIND(name)                                                  \
  name = reinterpret_cast<decltype(name)>(                                         \
      library == nullptr ? nullptr : ::dlsym(library, WSYNC_SLEEPING_TEXT(name))); \
  if (name == nullptr) check(CUDA_ERROR_NOT_FOUND, WSYNC_SLEEPING_TEXT(name));
      WSYNC_SLEEPING_CALLS(WSYNC_SLEEPING_FIND)
    }
#define WSYNC_SLEEPING_MEMBER(name) decltype(&::name) name = nullptr;
    WSYNC_SLEEPING_CALLS(WSYNC_SLEEPING_MEMBER)
  };
  // The context of the GPU, on the calling thread.
  class Current {
   public:
    explicit Current(const SleepingMemory& memory) : memory_(memory) {
      check(memory_.cuda_.cuCtxPushCurrent(memory_.context_), "cuCtxPushCurrent");
    }
    ~Current() {
      CUcontext before = nullptr;
      check(memory_.cuda_.cuCtxPopCurrent(&before), "cuCtxPopCurrent");
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const SleepingMemory& memory_;
  };
  static void check(CUresult code, const char* call) {
    if (code == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s failed with %d\n", call, static_cast<int>(code));
    std::abort();
  }
  static CUdeviceptr device_address(const void* address) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  }
  template <class Work>
  void run(Work work) const {
    const Current current(*this);
    CUstream stream = nullptr;
    check(cuda_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    work(stream);
    check(cuda_.cuStreamSynchronize(stream), "cuStreamSynchronize");
    check(cuda_.cuStreamDestroy(stream), "cuStreamDestroy");
  }
  void map() {
    const Current current(*this);
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = gpu_;
    CUmemGenericAllocationHandle handle{};
    check(cuda_.cuMemCreate(&handle, bytes_, &wanted, 0), "cuMemCreate");
    check(cuda_.cuMemMap(address_, bytes_, 0, handle, 0), "cuMemMap");
    check(cuda_.cuMemRelease(handle), "cuMemRelease");  // the mapping keeps it
    CUmemAccessDesc access{};
    access.location = wanted.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cuda_.cuMemSetAccess(address_, bytes_, &access, 1), "cuMemSetAccess");
    is_there_ = true;
  }
  void unmap() {
    const Current current(*this);
    check(cuda_.cuMemUnmap(address_, bytes_), "cuMemUnmap");
    is_there_ = false;
  }

  const Calls cuda_;
  std::uint64_t bytes_;
  int gpu_;
  CUcontext context_ = nullptr;
  CUdeviceptr address_ = 0;
  bool is_there_ = false;
};

}  // namespace wsync
