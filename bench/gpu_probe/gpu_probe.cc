// Asks a GPU and its driver the questions that documents leave open and that wsync relies on. Each
// answer is a line; a line that begins with "!!" differs from what wsync assumes. Takes less than a
// minute. Usage: gpu_probe [GiB of host memory (default: 4)]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bench/gpu_probe/driver.h"
#include "bench/gpu_probe/other_process.h"

namespace wsync::probe {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;
constexpr std::size_t kGiB = std::size_t{1} << 30U;
constexpr std::size_t kSmall = 64 * kMiB;
constexpr double kSpinSeconds = 1.0;

// Reads a word of host memory until it is not zero.
constexpr const char* kSpin = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 flag) {
  .reg .pred %p;
  .reg .b32 %r;
  .reg .b64 %rd;
  ld.param.u64 %rd, [flag];
again:
  ld.volatile.u32 %r, [%rd];
  setp.eq.s32 %p, %r, 0;
  @%p bra again;
  ret;
})";

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Gpu {
  CUdevice device = 0;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;  // 1 GiB
  double pinned_rate = 0;  // GB/s, from memory that the driver has allocated
};

// GB/s of `times` copies of `bytes`, one behind the other.
template <class Copy>
double rate(const Gpu& gpu, std::size_t bytes, int times, Copy copy) {
  const double begin = seconds();
  for (int i = 0; i < times; ++i) must(copy(), "a copy");
  CU_MUST(cuStreamSynchronize, gpu.stream);
  return static_cast<double>(bytes) * times / (seconds() - begin) / 1e9;
}

double to_device(const Gpu& gpu, const void* from, std::size_t bytes, int times) {
  return rate(gpu, bytes, times,
              [&] { return CU(cuMemcpyHtoDAsync)(gpu.memory, from, bytes, gpu.stream); });
}

void ask_attributes(const Gpu& gpu) {
  struct Attribute {
    const char* text;
    CUdevice_attribute id;
  };
  constexpr Attribute kAttributes[] = {
      {"READ_ONLY_HOST_REGISTER_SUPPORTED", CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED},
      {"HOST_REGISTER_SUPPORTED", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
      {"PAGEABLE_MEMORY_ACCESS", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
      {"PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
       CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES},
      {"CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
       CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
      {"ASYNC_ENGINE_COUNT", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
      {"IPC_EVENT_SUPPORTED", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
      {"HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"HOST_NUMA_ID", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
      {"MULTIPROCESSOR_COUNT", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {"L2_CACHE_SIZE", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE}};
  for (const auto& attribute : kAttributes) {
    int value = -1;
    const auto result = CU(cuDeviceGetAttribute)(&value, attribute.id, gpu.device);
    std::printf("attribute %s: %d (%s)\n", attribute.text, value, result_name(result));
  }
}

// H2D of rows of a matrix: of each row of eight parts, the first one. Then of as many bytes by one
// call for each row.
void ask_rows(const Gpu& gpu, const void* pinned) {
  constexpr std::size_t kParts = 8;
  for (const std::size_t width : {128U, 256U, 512U, 1024U, 2048U, 4096U, 16384U, 65536U}) {
    const std::size_t rows = std::min<std::size_t>(kGiB / kParts / width, std::size_t{1} << 18U);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = pinned;
    copy.srcPitch = kParts * width;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = gpu.memory;
    copy.dstPitch = kParts * width;
    copy.WidthInBytes = width;
    copy.Height = rows;
    const auto all = [&] { return CU(cuMemcpy2DAsync)(&copy, gpu.stream); };
    (void)rate(gpu, width * rows, 1, all);
    const double together = rate(gpu, width * rows, 4, all);
    const std::size_t calls = std::min<std::size_t>(rows, 4096);
    std::size_t row = 0;
    const double singly = rate(gpu, width, static_cast<int>(calls), [&] {
      const std::size_t at = row++ * kParts * width;
      return CU(cuMemcpyHtoDAsync)(gpu.memory + at, static_cast<const char*>(pinned) + at, width,
                                   gpu.stream);
    });
    std::printf(
        "H2D of %zu rows of %zu bytes, %zu apart: %.1f GB/s by one call, %.1f by calls of a row\n",
        rows, width, kParts * width, together, singly);
  }
}

void ask_ceilings(Gpu& gpu) {
  void* pinned = nullptr;
  const double begin = seconds();
  CU_MUST(cuMemAllocHost, &pinned, kGiB);
  std::printf("cuMemAllocHost of 1 GiB: %.3f s\n", seconds() - begin);
  std::memset(pinned, 1, kGiB);
  (void)to_device(gpu, pinned, kGiB, 1);
  gpu.pinned_rate = to_device(gpu, pinned, kGiB, 8);
  std::printf("H2D from memory of cuMemAllocHost: %.1f GB/s\n", gpu.pinned_rate);
  std::printf("D2H to memory of cuMemAllocHost: %.1f GB/s\n", rate(gpu, kGiB, 8, [&] {
                return CU(cuMemcpyDtoHAsync)(pinned, gpu.memory, kGiB, gpu.stream);
              }));
  std::printf("D2D: %.0f GB/s, reads and writes counted\n", 2 * rate(gpu, kGiB / 2, 50, [&] {
                                                              return CU(cuMemcpyDtoDAsync)(
                                                                  gpu.memory, gpu.memory + kGiB / 2,
                                                                  kGiB / 2, gpu.stream);
                                                            }));
  ask_rows(gpu, pinned);
  CU_MUST(cuMemFreeHost, pinned);
}

// H2D through `slots` pinned buffers of 16 MiB that `threads` threads fill from `from`.
void ask_bounce_ring(const Gpu& gpu, const char* from, std::size_t bytes, int threads) {
  constexpr std::size_t kSlot = 16 * kMiB;
  const int slots = 2 * threads;
  char* ring = nullptr;
  CU_MUST(cuMemAllocHost, reinterpret_cast<void**>(&ring), kSlot * static_cast<std::size_t>(slots));
  CUcontext context = nullptr;
  CU_MUST(cuCtxGetCurrent, &context);
  const double begin = seconds();
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker)
    workers.emplace_back([=, &gpu] {
      CU_MUST(cuCtxSetCurrent, context);
      CUstream stream = nullptr;
      CU_MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
      CUevent events[2] = {nullptr, nullptr};
      for (auto& event : events) CU_MUST(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
      int turn = 0;
      for (std::size_t at = kSlot * static_cast<std::size_t>(worker); at < bytes;
           at += kSlot * static_cast<std::size_t>(threads), ++turn) {
        char* slot = ring + kSlot * static_cast<std::size_t>(2 * worker + turn % 2);
        CU_MUST(cuEventSynchronize, events[turn % 2]);
        const std::size_t part = std::min(kSlot, bytes - at);
        std::memcpy(slot, from + at, part);
        CU_MUST(cuMemcpyHtoDAsync, gpu.memory + at % kGiB, slot, part, stream);
        CU_MUST(cuEventRecord, events[turn % 2], stream);
      }
      CU_MUST(cuStreamSynchronize, stream);
      for (auto& event : events) CU_MUST(cuEventDestroy, event);
      CU_MUST(cuStreamDestroy, stream);
    });
  for (auto& worker : workers) worker.join();
  std::printf("  through pinned buffers of 16 MiB, %d threads that fill them: %.1f GB/s\n", threads,
              static_cast<double>(bytes) / (seconds() - begin) / 1e9);
  CU_MUST(cuMemFreeHost, ring);
}

// Registers [at, at + bytes) in calls of `chunk` by `threads` threads. Returns the seconds.
double register_all(char* at, std::size_t bytes, std::size_t chunk, int threads) {
  CUcontext context = nullptr;
  CU_MUST(cuCtxGetCurrent, &context);
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> workers;
  const double begin = seconds();
  for (int worker = 0; worker < threads; ++worker)
    workers.emplace_back([&, context] {
      CU_MUST(cuCtxSetCurrent, context);
      for (std::size_t from = next.fetch_add(chunk); from < bytes; from = next.fetch_add(chunk))
        CU_MUST(cuMemHostRegister, at + from, std::min(chunk, bytes - from),
                CU_MEMHOSTREGISTER_PORTABLE);
    });
  for (auto& worker : workers) worker.join();
  return seconds() - begin;
}

double unregister_all(char* at, std::size_t bytes, std::size_t chunk) {
  const double begin = seconds();
  for (std::size_t from = 0; from < bytes; from += chunk) CU_MUST(cuMemHostUnregister, at + from);
  return seconds() - begin;
}

// A memfd as a trainer has it: written first, sealed, and seen by a sidecar through a read-only
// mapping. And a mapping that is older than the seal, as the process has it that pins the memory.
void ask_host_memory(const Gpu& gpu, std::size_t bytes, bool huge) {
  const int fd = ::memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    std::perror("memfd_create");
    return;
  }
  auto* own = static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (huge) std::printf("madvise(MADV_HUGEPAGE): %d\n", ::madvise(own, bytes, MADV_HUGEPAGE));
  const double gib = static_cast<double>(bytes) / static_cast<double>(kGiB);
  double begin = seconds();
  std::vector<std::thread> writers;
  for (std::size_t i = 0; i < 8; ++i)
    writers.emplace_back(
        [=] { std::memset(own + bytes / 8 * i, static_cast<int>(2 + i), bytes / 8); });
  for (auto& writer : writers) writer.join();
  std::printf("memfd of %.0f GiB, huge pages %s: written in %.2f s by 8 threads\n", gib,
              huge ? "asked for" : "not asked for", seconds() - begin);
  const double registered = register_all(own, bytes, kGiB, 1);
  std::printf("  registering a writable mapping, 1 GiB a call: %.4f s/GiB\n", registered / gib);
  std::printf("  H2D from it: %.1f GB/s of %.1f\n", to_device(gpu, own, kGiB, 8), gpu.pinned_rate);
  // After it was registered: the seal, and the loss of the right to write.
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) != 0)
    std::perror("!! seals behind a registered mapping");
  if (::mprotect(own, bytes, PROT_READ) != 0) std::perror("!! mprotect of a registered mapping");
  std::printf("  H2D from it after the seals and mprotect(PROT_READ): %.1f GB/s\n",
              to_device(gpu, own, kGiB, 8));
  unsigned char back = 0;
  CU_MUST(cuMemcpyDtoH, &back, gpu.memory, 1);
  std::printf("  its first byte arrives as %#x, expected 0x2\n", back);
  std::printf("  unregistering: %.4f s/GiB\n", unregister_all(own, bytes, kGiB) / gib);
  (void)::mprotect(own, bytes, PROT_READ | PROT_WRITE);
  std::printf("  again, by 4 threads: %.4f s/GiB\n", register_all(own, bytes, kGiB, 4) / gib);
  unregister_all(own, bytes, kGiB);
  std::printf("  again, 64 MiB a call: %.4f s/GiB\n", register_all(own, bytes, kSmall, 1) / gib);
  unregister_all(own, bytes, kSmall);

  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const int read_only = ::open(path, O_RDONLY | O_CLOEXEC);
  auto* view = static_cast<char*>(::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, read_only, 0));
  struct Way {
    const char* text;
    unsigned int flags;
  };
  constexpr Way kWays[] = {
      {"PORTABLE|READ_ONLY", CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY},
      {"PORTABLE", CU_MEMHOSTREGISTER_PORTABLE}};
  for (const auto& way : kWays) {
    begin = seconds();
    const auto result = CU(cuMemHostRegister)(view, kGiB, way.flags);
    std::printf("  registering a read-only mapping, %s: %s in %.4f s\n", way.text,
                result_name(result), seconds() - begin);
    if (result != CUDA_SUCCESS) continue;
    std::printf("    H2D from it: %.1f GB/s\n", to_device(gpu, view, kGiB, 4));
    CU_MUST(cuMemHostUnregister, view);
  }
  std::printf("  H2D from the read-only mapping, not registered: %.1f GB/s\n",
              to_device(gpu, view, kGiB, 4));
  for (const int threads : {1, 2, 4}) ask_bounce_ring(gpu, view, bytes, threads);
  ::munmap(view, bytes);
  ::munmap(own, bytes);
  ::close(read_only);
  ::close(fd);
}

// Whether a call comes back while a kernel runs. The kernel is ended after kSpinSeconds.
class Spinning {
 public:
  Spinning() {
    CUmodule module = nullptr;
    const auto loaded = CU(cuModuleLoadData)(&module, kSpin);
    if (loaded != CUDA_SUCCESS) {
      std::printf("calls beside a running kernel: not asked, the kernel does not load: %s\n",
                  result_name(loaded));
      return;
    }
    CU_MUST(cuModuleGetFunction, &kernel_, module, "spin");
    void* page = nullptr;
    CU_MUST(cuMemHostAlloc, &page, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
    flag_ = static_cast<unsigned int*>(page);
    CU_MUST(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
  }
  template <class Call>
  void ask(const char* what, Call call) {
    if (kernel_ == nullptr) return;
    *flag_ = 0;
    CUdeviceptr flag = 0;
    CU_MUST(cuMemHostGetDevicePointer, &flag, const_cast<unsigned int*>(flag_), 0);
    void* arguments[] = {&flag};
    CU_MUST(cuLaunchKernel, kernel_, 1, 1, 1, 1, 1, 1, 0, stream_, arguments, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double begin = seconds();
    std::atomic<bool> back = false;
    bool waited = false;
    std::thread watch([&] {
      while (seconds() - begin < kSpinSeconds && !back)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      waited = !back;
      *flag_ = 1;
    });
    const CUresult result = call();
    const double took = seconds() - begin;
    back = true;
    watch.join();
    CU_MUST(cuStreamSynchronize, stream_);
    std::printf("%s%s beside a running kernel: %s after %.4f s\n", waited ? "!! waits: " : "", what,
                result_name(result), took);
  }

 private:
  CUfunction kernel_ = nullptr;
  CUstream stream_ = nullptr;
  volatile unsigned int* flag_ = nullptr;
};

void ask_waits(const Gpu& gpu) {
  Spinning spinning;
  auto* memory = static_cast<char*>(::mmap(nullptr, kSmall, PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  spinning.ask("cuMemHostRegister",
               [&] { return CU(cuMemHostRegister)(memory, kSmall, CU_MEMHOSTREGISTER_PORTABLE); });
  spinning.ask("cuMemHostUnregister", [&] { return CU(cuMemHostUnregister)(memory); });
  ::munmap(memory, kSmall);
  CUdeviceptr device = 0;
  spinning.ask("cuMemAlloc", [&] { return CU(cuMemAlloc)(&device, kSmall); });
  spinning.ask("cuMemFree", [&] { return CU(cuMemFree)(device); });
  void* host = nullptr;
  spinning.ask("cuMemAllocHost", [&] { return CU(cuMemAllocHost)(&host, kSmall); });
  spinning.ask("cuMemFreeHost", [&] { return CU(cuMemFreeHost)(host); });
  CUevent event = nullptr;
  spinning.ask("cuEventCreate for other processes", [&] {
    return CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  });
  spinning.ask("cuEventDestroy", [&] { return CU(cuEventDestroy)(event); });
  CUipcMemHandle handle;
  spinning.ask("cuIpcGetMemHandle", [&] { return CU(cuIpcGetMemHandle)(&handle, gpu.memory); });
  CUstream stream = nullptr;
  spinning.ask("cuStreamCreate",
               [&] { return CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING); });
  spinning.ask("cuStreamDestroy", [&] { return CU(cuStreamDestroy)(stream); });
  if (CU(cuMemCreate) == nullptr) return;
  Shareable shared;
  spinning.ask("cuMemCreate, cuMemMap and cuMemSetAccess",
               [&] { return shared.create(gpu.device, kSmall); });
  spinning.ask("cuMemExportToShareableHandle", [&] {
    const int fd = shared.exported();
    if (fd >= 0) ::close(fd);
    return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  });
  spinning.ask("cuMemUnmap and cuMemRelease", [&] { return shared.release(); });
}

int run(std::size_t bytes) {
  // Children are made before CUDA is used, because CUDA does not survive a fork.
  OtherProcesses others;
  if (!open_driver()) return 3;
  Gpu gpu;
  CU_MUST(cuInit, 0);
  CU_MUST(cuDeviceGet, &gpu.device, 0);
  CUcontext context = nullptr;
  CU_MUST(cuDevicePrimaryCtxRetain, &context, gpu.device);
  CU_MUST(cuCtxSetCurrent, context);
  char name[96] = {};
  CU_MUST(cuDeviceGetName, name, static_cast<int>(sizeof name) - 1, gpu.device);
  int version = 0;
  CU_MUST(cuDriverGetVersion, &version);
  std::printf("GPU 0: %s, driver for CUDA %d.%d\n", name, version / 1000, version % 1000 / 10);
  CU_MUST(cuStreamCreate, &gpu.stream, CU_STREAM_NON_BLOCKING);
  CU_MUST(cuMemAlloc, &gpu.memory, kGiB);
  ask_attributes(gpu);
  others.ask(gpu.device);
  ask_waits(gpu);
  ask_ceilings(gpu);
  for (const bool huge : {false, true}) ask_host_memory(gpu, bytes, huge);
  return 0;
}

}  // namespace
}  // namespace wsync::probe

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::size_t gib = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 4;
  if (gib < 1 || gib > 1024) {
    std::fprintf(stderr, "gpu_probe: %s is not a number of GiB from 1 to 1024\n", arguments[1]);
    return 2;
  }
  return wsync::probe::run(gib << 30U);
}
