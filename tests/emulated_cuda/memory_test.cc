// Devices, memory and pinned memory of the emulated driver.
#include <atomic>
#include <functional>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <thread>

#include "shared/device/cuda/driver.h"
#include "tests/emulated_cuda/in_process.h"

namespace {

using emulated_cuda_test::Cuda;
using emulated_cuda_test::Gate;
using emulated_cuda_test::in_process;
using emulated_cuda_test::report_lines;
using emulated_cuda_test::Session;
using emulated_cuda_test::some_bytes;
using emulated_cuda_test::soon;
using emulated_cuda_test::succeeded;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::size_t kBytes = 10000;

TEST(EmulatedCuda, HasEveryFunctionThatIsAskedFor) {
  ASSERT_NE(emulated_cuda_test::library(), nullptr) << ::dlerror();
  const Cuda cuda;
#define EXPECT_MEMBER(name) EXPECT_NE(cuda.name, nullptr) << #name;
  EMULATED_CUDA_CALLS(EXPECT_MEMBER)
#undef EXPECT_MEMBER
  // And what the product looks up.
#define EXPECT_SYMBOL(name) \
  EXPECT_NE(::dlsym(emulated_cuda_test::library(), EMULATED_CUDA_NAME(name)), nullptr) << #name;
  WSYNC_CUDA_DRIVER_CALLS(EXPECT_SYMBOL)
#undef EXPECT_SYMBOL
}

TEST(EmulatedCuda, SaysItsDevices) {
  if (const auto ended =
          in_process({{"WSYNC_EMULATED_GPUS", "3"}, {"CUDA_VISIBLE_DEVICES", "2,0"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Cuda cuda;
  ASSERT_EQ(cuda.cuInit(0), CUDA_SUCCESS);
  int count = 0;
  EXPECT_EQ(cuda.cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  CUdevice device = -1;
  EXPECT_EQ(cuda.cuDeviceGet(&device, 1), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuda.cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  char text[64];
  EXPECT_EQ(cuda.cuDeviceGetName(text, sizeof text, 0), CUDA_SUCCESS);
  EXPECT_STREQ(text, "Emulated GPU");
  EXPECT_EQ(cuda.cuDeviceGetPCIBusId(text, sizeof text, 0), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000:12:00.0");
  CUuuid first{};
  CUuuid second{};
  EXPECT_EQ(cuda.cuDeviceGetUuid_v2(&first, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuDeviceGetUuid_v2(&second, 1), CUDA_SUCCESS);
  EXPECT_NE(std::memcmp(first.bytes, second.bytes, sizeof first.bytes), 0);
  std::size_t total = 0;
  EXPECT_EQ(cuda.cuDeviceTotalMem(&total, 0), CUDA_SUCCESS);
  EXPECT_EQ(total, std::size_t{1} << 30U);
  int can = 0;
  EXPECT_EQ(cuda.cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  const char* name = nullptr;
  EXPECT_EQ(cuda.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cuda.cuGetErrorName(static_cast<CUresult>(98), &name), CUDA_ERROR_INVALID_VALUE);
}

TEST(EmulatedCuda, CanBeAMachineWithoutAGpu) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_MODE", "none"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("cuDeviceGetCount: called before cuInit()")));
    return;
  }
  const Cuda cuda;
  EXPECT_EQ(cuda.cuInit(0), CUDA_ERROR_NO_DEVICE);
  int count = 0;
  EXPECT_EQ(cuda.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST(EmulatedCuda, CanBeADriverThatIsTooOld) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_MODE", "old"}})) {
    EXPECT_TRUE(succeeded(*ended));
    return;
  }
  const Session session;
  int version = 0;
  EXPECT_EQ(session.cuda.cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_LT(version, 12000);
  CUmodule module = nullptr;
  EXPECT_EQ(session.cuda.cuModuleLoadData(&module, "// PTX"), CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

TEST(EmulatedCuda, RefusesAVariableThatItCannotRead) {
  for (const auto* faults : {"cuMemAlloc_v2", "cuMemAlloc_v2:1:hang",
                             "cuMemAlloc_v2:0:CUDA_ERROR_UNKNOWN", "cuMemAlloc_v2:1:flip",
                             "cuMemAlloc_v2:x:CUDA_ERROR_OUT_OF_MEMORY", "cuInit:1:CUDA_ERROR_X"}) {
    if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_FAULTS", faults}})) {
      EXPECT_FALSE(succeeded(*ended)) << faults;
      continue;
    }
    const Session session;
    return;
  }
}

TEST(EmulatedCuda, TheProgramCannotReadDeviceMemory) {
  if (const auto ended = in_process()) {
    EXPECT_FALSE(succeeded(*ended));
#ifndef WSYNC_SANITIZED
    EXPECT_TRUE(WIFSIGNALED(ended->status) && WTERMSIG(ended->status) == SIGSEGV);
#endif
    return;
  }
  const Session session;
  const CUdeviceptr memory = session.allocate(kBytes);
  std::exit(*reinterpret_cast<volatile char*>(memory) == 0 ? 0 : 0);
}

TEST(EmulatedCuda, CopiesThereAndBack) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_DELAY_US", "300,5"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr one = session.allocate(kBytes);
  const CUdeviceptr two = session.allocate(kBytes);
  const auto bytes = some_bytes(kBytes);
  session.write(one, bytes);
  EXPECT_EQ(cuda.cuMemcpyDtoDAsync(two, one, kBytes, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyAsync(two + 10, one, 5, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemsetD8Async(two + 20, 0xab, 3, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemsetD32Async(two + 24, 0x01020304, 2, session.stream), CUDA_SUCCESS);
  auto expected = bytes;
  std::copy_n(bytes.begin(), 5, expected.begin() + 10);
  std::fill_n(expected.begin() + 20, 3, static_cast<unsigned char>(0xab));
  for (std::size_t i = 0; i < 8; ++i) expected[24 + i] = static_cast<unsigned char>(4 - i % 4);
  EXPECT_EQ(session.read(two, kBytes), expected);
  EXPECT_EQ(session.read(one, kBytes), bytes);
  EXPECT_EQ(cuda.cuMemFree(one), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(two), CUDA_SUCCESS);
}

TEST(EmulatedCuda, CountsMemory) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_MEMORY", "100000"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(60000);
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cuda.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 40000U);
  EXPECT_EQ(total, 100000U);
  CUdeviceptr more = 0;
  EXPECT_EQ(cuda.cuMemAlloc(&more, 40001), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda.cuMemAlloc(&more, 40000), CUDA_SUCCESS);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cuda.cuMemGetAddressRange(&base, &bytes, more + 39999), CUDA_SUCCESS);
  EXPECT_EQ(base, more);
  EXPECT_EQ(bytes, 40000U);
  EXPECT_EQ(cuda.cuMemGetAddressRange(&base, &bytes, more + 40000), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuda.cuMemFree(more), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 100000U);
}

TEST(EmulatedCuda, ReportsAddressesThatAreWrong) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(
        ended->report,
        ElementsAre(HasSubstr("reach outside of memory"), HasSubstr("are no memory of a device"),
                    HasSubstr("device memory where host memory is expected"), HasSubstr("overlap"),
                    HasSubstr("is not the beginning"), HasSubstr("which has been freed"),
                    HasSubstr("has been freed before")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(kBytes);
  auto bytes = some_bytes(kBytes);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory + 1, bytes.data(), kBytes, session.stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(bytes.data()), bytes.data(), 1,
                                   session.stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(
      cuda.cuMemcpyHtoDAsync(memory, reinterpret_cast<const void*>(memory), 1, session.stream),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemcpyDtoDAsync(memory, memory + 5, 6, session.stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemFree(memory + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyDtoHAsync(bytes.data(), memory, 1, session.stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
}

// Work of one device that waits until work of the other one has begun, as ranks of a broadcast do.
struct Meeting {
  std::atomic<int> begun = 0;
  std::atomic<bool> given_up = false;
  static CUresult meet(void* self) {
    auto& meeting = *static_cast<Meeting*>(self);
    ++meeting.begun;
    while (meeting.begun < 2 && !meeting.given_up) std::this_thread::yield();
    return CUDA_SUCCESS;
  }
};

TEST(EmulatedCuda, WhatGivesMemoryBackWaitsForPeersAndKeepsThemFromLaunching) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  CUcontext peer = nullptr;
  CUstream peer_stream = nullptr;
  EXPECT_EQ(cuda.cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuCtxEnablePeerAccess(peer, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuCtxPushCurrent(peer), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamCreate(&peer_stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUcontext was = nullptr;
  EXPECT_EQ(cuda.cuCtxPopCurrent(&was), CUDA_SUCCESS);
  auto bytes = some_bytes(kBytes);
  using Call = std::function<CUresult()>;
  for (const auto& [what, begin, end] : {
           std::tuple<const char*, Call, Call>{
               "cuMemHostUnregister",
               [&] { return cuda.cuMemHostRegister(bytes.data(), kBytes, 0); },
               [&] { return cuda.cuMemHostUnregister(bytes.data()); }},
           std::tuple<const char*, Call, Call>{
               "cuMemFree", [] { return CUDA_SUCCESS; },
               [&, memory = session.allocate(kBytes)] { return cuda.cuMemFree(memory); }},
       }) {
    SCOPED_TRACE(what);
    EXPECT_EQ(begin(), CUDA_SUCCESS);
    Meeting meeting;
    EXPECT_EQ(cuda.emulated_cuda_enqueue(peer_stream, Meeting::meet, nullptr, &meeting, "rank"),
              CUDA_SUCCESS);
    ASSERT_TRUE(soon([&] { return meeting.begun == 1; }));
    std::atomic<bool> over = false;
    std::thread gives_back([&, &give_back = end] {
      EXPECT_EQ(cuda.cuCtxSetCurrent(session.context), CUDA_SUCCESS);
      EXPECT_EQ(give_back(), CUDA_SUCCESS);
      over = true;
    });
    // The other rank cannot begin, as soon as the call waits.
    ASSERT_TRUE(soon([&] {
      const CUresult launched = cuda.emulated_cuda_enqueue(
          session.stream, [](void*) { return CUDA_SUCCESS; }, nullptr, nullptr, "other");
      return launched == CUDA_ERROR_NOT_READY;
    }));
    EXPECT_FALSE(over);
    meeting.given_up = true;
    gives_back.join();
  }
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuCtxPushCurrent(peer), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(peer_stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamDestroy(peer_stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuCtxPopCurrent(&was), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST(EmulatedCuda, ReportsMemoryThatIsFreedWhileWorkUsesIt) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("is freed while queued work uses it"),
                                           HasSubstr("no longer pinned while queued work")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(kBytes);
  auto bytes = some_bytes(kBytes);
  EXPECT_EQ(cuda.cuMemHostRegister(bytes.data(), kBytes, 0), CUDA_SUCCESS);
  Gate gate(cuda, session.stream);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, bytes.data(), kBytes, session.stream), CUDA_SUCCESS);
  // Both wait for the copy.
  const auto with_context = [&](const auto& call) {
    return std::thread([&cuda, &session, call] {
      EXPECT_EQ(cuda.cuCtxSetCurrent(session.context), CUDA_SUCCESS);
      EXPECT_EQ(call(), CUDA_SUCCESS);
    });
  };
  std::thread frees = with_context([&] { return cuda.cuMemFree(memory); });
  ASSERT_TRUE(soon([] { return !report_lines().empty(); }));
  gate.open();
  frees.join();
  Gate second(cuda, session.stream);
  const CUdeviceptr other = session.allocate(kBytes);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(other, bytes.data(), kBytes, session.stream), CUDA_SUCCESS);
  std::thread unregisters = with_context([&] { return cuda.cuMemHostUnregister(bytes.data()); });
  ASSERT_TRUE(soon([] { return report_lines().size() == 2; }));
  second.open();
  unregisters.join();
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(other), CUDA_SUCCESS);
}

// The documentation's difference between pinned and pageable sources.
TEST(EmulatedCuda, ReadsPinnedMemoryLaterAndPageableAtTheCall) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(2);
  void* pinned = nullptr;
  ASSERT_EQ(cuda.cuMemAllocHost(&pinned, 1), CUDA_SUCCESS);
  auto* const pinned_byte = static_cast<unsigned char*>(pinned);
  unsigned char pageable_byte = 1;
  *pinned_byte = 1;
  Gate gate(cuda, session.stream);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, pinned, 1, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory + 1, &pageable_byte, 1, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamQuery(session.stream), CUDA_ERROR_NOT_READY);
  *pinned_byte = 2;
  pageable_byte = 2;
  gate.open();
  EXPECT_THAT(session.read(memory, 2), ElementsAre(2, 1));
  EXPECT_EQ(cuda.emulated_cuda_count("pageable copy"), 2U);
  EXPECT_EQ(cuda.cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCuda, CopiesRowsOfTheHostAndLeavesWhatIsBetween) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("a pitch is smaller"), HasSubstr("outside"),
                                           HasSubstr("pinned by one call")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(8);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 9, 8, session.stream), CUDA_SUCCESS);
  std::vector<unsigned char> bytes = {1, 2, 3, 4, 5, 6, 7, 8};
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = bytes.data();
  rows.srcPitch = 3;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = memory;
  rows.dstPitch = 3;
  rows.WidthInBytes = 2;
  rows.Height = 3;
  EXPECT_EQ(cuda.cuMemcpy2DAsync(&rows, session.stream), CUDA_SUCCESS);
  EXPECT_THAT(session.read(memory, 8), ElementsAre(1, 2, 9, 4, 5, 9, 7, 8));
  rows.dstPitch = 1;
  EXPECT_EQ(cuda.cuMemcpy2DAsync(&rows, session.stream), CUDA_ERROR_INVALID_VALUE);
  rows.dstPitch = 4;
  EXPECT_EQ(cuda.cuMemcpy2DAsync(&rows, session.stream), CUDA_ERROR_INVALID_VALUE);
  rows.dstPitch = 3;
  EXPECT_EQ(cuda.cuMemHostRegister(bytes.data(), 5, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpy2DAsync(&rows, session.stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemHostUnregister(bytes.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCuda, PinsWholeRangesOnly) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report,
                ElementsAre(HasSubstr("pinned by one call"), HasSubstr("pinned only in part"),
                            HasSubstr("is not the beginning of registered"),
                            HasSubstr("is not the beginning of allocated")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(kBytes);
  auto bytes = some_bytes(kBytes);
  unsigned char* const at = bytes.data();
  EXPECT_EQ(cuda.cuMemHostRegister(at + 1000, 1000, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemHostRegister(at + 2000, 1000, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemHostRegister(at + 2999, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, at + 1000, 1000, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, at, 1000, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, at + 1000, 1001, session.stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, at, 1001, session.stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       reinterpret_cast<CUdeviceptr>(at + 1500)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       reinterpret_cast<CUdeviceptr>(at)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(cuda.cuMemHostUnregister(at + 1001), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuda.cuMemFreeHost(at + 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemHostUnregister(at + 1000), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemHostUnregister(at + 2000), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCuda, PinsMemoryOnlyAsItIsMapped) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_READ_ONLY_REGISTER", "1"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report,
                ElementsAre(HasSubstr("needs CU_MEMHOSTREGISTER_READ_ONLY"),
                            HasSubstr("registered for reading"), HasSubstr("is not mapped"),
                            HasSubstr("unmapped while it was registered")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(4096);
  void* const page = ::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_EQ(cuda.cuMemHostRegister(page, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, page, 4096, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyDtoHAsync(page, memory, 4096, session.stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  ::munmap(static_cast<char*>(page) + 4096, 4096);
  EXPECT_EQ(
      cuda.cuMemHostRegister(static_cast<char*>(page) + 4096, 4096, CU_MEMHOSTREGISTER_READ_ONLY),
      CUDA_ERROR_INVALID_VALUE);
  ::munmap(page, 4096);
  EXPECT_EQ(cuda.cuMemHostUnregister(page), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCuda, CanLackReadOnlyRegistration) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  auto bytes = some_bytes(kBytes);
  EXPECT_EQ(session.cuda.cuMemHostRegister(bytes.data(), kBytes, CU_MEMHOSTREGISTER_READ_ONLY),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST(EmulatedCuda, ReportsWhatIsLeftAtTheEnd) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report,
                UnorderedElementsAre(HasSubstr("1 device memories"), HasSubstr("1 pinned host"),
                                     HasSubstr("1 registered host"), HasSubstr("1 streams"),
                                     HasSubstr("1 events"), HasSubstr("1 modules"),
                                     HasSubstr("1 primary contexts")));
    return;
  }
  const Cuda cuda;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  static unsigned char bytes[64];
  EXPECT_EQ(cuda.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemAlloc(&memory, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemAllocHost(&pinned, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemHostRegister(bytes, sizeof bytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 1, 1, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuModuleLoadData(&module, "// PTX"), CUDA_SUCCESS);
}

}  // namespace
