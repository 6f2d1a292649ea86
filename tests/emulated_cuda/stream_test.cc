// Contexts, streams, events, kernels and faults of the emulated driver.
#include <gmock/gmock.h>
#include <thread>

#include "shared/device/cuda/kernels_body.h"
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
using ::wsync::device::cuda::kCopyPiecesKernel;
using ::wsync::device::cuda::KernelPiece;
using ::wsync::device::cuda::KernelSum;
using ::wsync::device::cuda::kThreadsPerBlock;

TEST(EmulatedCudaStreams, NeedAContext) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report,
                ElementsAre(HasSubstr("no context is current"), HasSubstr("of another context"),
                            HasSubstr("default streams are not emulated"),
                            HasSubstr("of two contexts"), HasSubstr("nobody retains"),
                            HasSubstr("no such context"), HasSubstr("has been destroyed")));
    return;
  }
  CUcontext gone = nullptr;
  CUstream destroyed = nullptr;
  {
    const Session first;
    const auto& cuda = first.cuda;
    CUcontext popped = nullptr;
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuda.cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, first.context);
    EXPECT_EQ(cuda.cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda.cuCtxPushCurrent(popped), CUDA_SUCCESS);
    memory = first.allocate(1);
    CUevent event = nullptr;
    EXPECT_EQ(cuda.cuEventCreate(&event, 0), CUDA_SUCCESS);
    {
      const Session second(1);
      EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 1, first.stream), CUDA_ERROR_INVALID_HANDLE);
      EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 1, nullptr), CUDA_ERROR_INVALID_HANDLE);
      EXPECT_EQ(cuda.cuEventRecord(event, second.stream), CUDA_ERROR_INVALID_HANDLE);
      // Copies between devices need no peer access.
      EXPECT_EQ(cuda.cuMemsetD8Async(memory, 7, 1, second.stream), CUDA_SUCCESS);
      EXPECT_THAT(second.read(memory, 1), ElementsAre(7));
      gone = second.context;
    }
    EXPECT_EQ(cuda.cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda.cuCtxPushCurrent(gone), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda.cuEventDestroy(event), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuStreamCreate(&destroyed, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuStreamDestroy(destroyed), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuStreamQuery(destroyed), CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST(EmulatedCudaStreams, ReportAContextThatGoesWithWhatIsInIt) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report,
                ElementsAre(HasSubstr("goes with 1 memories, 0 streams and 0 events")));
    return;
  }
  const Session session;
  EXPECT_NE(session.allocate(1), 0U);
}

TEST(EmulatedCudaStreams, AreNoDriverOfAForkedChild) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("forked off")));
    return;
  }
  const Session session;
  const pid_t child = ::fork();
  if (child == 0) {
    CUdeviceptr memory = 0;
    ::_exit(session.cuda.cuMemAlloc(&memory, 1) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(EmulatedCudaStreams, WaitForEventsOfOthers) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_DELAY_US", "200"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  CUstream other = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuda.cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -5), CUDA_SUCCESS);
  ASSERT_EQ(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuEventQuery(event), CUDA_SUCCESS);  // never recorded
  const CUdeviceptr memory = session.allocate(2);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 2, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  Gate gate(cuda, session.stream);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 5, 1, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuEventRecord(event, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyAsync(memory + 1, memory, 1, other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  gate.open();
  EXPECT_EQ(cuda.cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamQuery(other), CUDA_SUCCESS);
  EXPECT_THAT(session.read(memory, 2), ElementsAre(5, 5));
  EXPECT_EQ(cuda.cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCudaStreams, FinishTheirWorkWhenDestroyed) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  CUstream other = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuda.cuStreamCreate(&other, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  const CUdeviceptr memory = session.allocate(1);
  Gate gate(cuda, other);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 9, 1, other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuEventRecord(event, other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamDestroy(other), CUDA_SUCCESS);
  gate.open();
  EXPECT_EQ(cuda.cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_THAT(session.read(memory, 1), ElementsAre(9));
  EXPECT_EQ(cuda.cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

// ---- kernels ----

struct Kernels {
  explicit Kernels(const Cuda& driver) : cuda(driver) {
    EXPECT_EQ(cuda.cuModuleLoadData(&module, "// PTX"), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuModuleGetFunction(&copy_pieces, module, kCopyPiecesKernel), CUDA_SUCCESS);
  }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels() { (void)cuda.cuModuleUnload(module); }

  // One piece in one unit; the table and the sums are device memory.
  CUresult launch(CUdeviceptr table, CUdeviceptr sums, CUstream stream, unsigned blocks = 1) const {
    std::uint32_t count = 1;
    std::uint64_t unit_bytes = 65536;
    std::uint64_t units = 1;
    void* parameters[] = {&table, &count, &unit_bytes, &units, &sums};
    return cuda.cuLaunchKernel(copy_pieces, blocks, 1, 1, kThreadsPerBlock, 1, 1, 0, stream,
                               parameters, nullptr);
  }

  const Cuda& cuda;
  CUmodule module = nullptr;
  CUfunction copy_pieces = nullptr;
};

template <class T>
std::vector<unsigned char> bytes_of(const T& value) {
  std::vector<unsigned char> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

TEST(EmulatedCudaKernels, CopyAndAddUp) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_DELAY_US", "200"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  constexpr std::size_t kPieceBytes = 1003;
  const Session session;
  const auto& cuda = session.cuda;
  const Kernels kernels(cuda);
  const CUdeviceptr memory = session.allocate(8192);
  const auto source = some_bytes(kPieceBytes);
  const KernelPiece piece{
      .to = memory + 4096, .from = memory, .row_bytes = kPieceBytes, .rows = 1, .sum = 0};
  session.write(memory, source);
  session.write(memory + 2048, bytes_of(piece));
  EXPECT_EQ(cuda.cuMemsetD8Async(memory + 2304, 0, sizeof(KernelSum), session.stream),
            CUDA_SUCCESS);
  EXPECT_EQ(kernels.launch(memory + 2048, memory + 2304, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(session.read(memory + 4096, kPieceBytes), source);
  // The same by a call of the kernel's body.
  std::vector<unsigned char> target(kPieceBytes);
  KernelPiece direct = piece;
  direct.to = reinterpret_cast<std::uint64_t>(target.data());
  direct.from = reinterpret_cast<std::uint64_t>(source.data());
  KernelSum sum;
  wsync::device::cuda::run_pieces_on_host(&direct, 1, 65536, 1, &sum);
  EXPECT_NE(sum.counters[0], 0U);
  EXPECT_EQ(session.read(memory + 2304, sizeof(KernelSum)), bytes_of(sum));
  EXPECT_EQ(cuda.emulated_cuda_count("kernel launch"), 1U);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCudaKernels, AreNotLaunchedInAnotherShape) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(
        ended->report,
        ElementsAre(HasSubstr("no_such_kernel is not emulated"), HasSubstr("neither a fat binary"),
                    HasSubstr("in a shape"), HasSubstr("module has been unloaded")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  CUfunction function = nullptr;
  {
    const Kernels kernels(cuda);
    CUmodule module = nullptr;
    EXPECT_EQ(cuda.cuModuleGetFunction(&function, kernels.module, "no_such_kernel"),
              CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuda.cuModuleLoadData(&module, "no module"), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(kernels.launch(0, 0, session.stream, 0), CUDA_ERROR_INVALID_VALUE);
    function = kernels.copy_pieces;
  }
  int threads = 0;
  EXPECT_EQ(cuda.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
            CUDA_ERROR_INVALID_HANDLE);
}

struct BadPiece {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t rows;
  std::uint64_t stride;
};

void run_bad_piece(const BadPiece& bad) {
  const Session session;
  const auto& cuda = session.cuda;
  const Kernels kernels(cuda);
  const CUdeviceptr memory = session.allocate(4096);
  const KernelPiece piece{.to = 0,
                          .from = memory + bad.offset,
                          .row_bytes = bad.bytes,
                          .rows = bad.rows,
                          .from_stride = bad.stride,
                          .sum = 0};
  session.write(memory, bytes_of(piece));
  EXPECT_EQ(kernels.launch(memory, memory + 64, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr more = 0;
  EXPECT_EQ(cuda.cuMemAlloc(&more, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 1, session.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(EmulatedCudaKernels, ThatReadOutsideFailTheContext) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("reach outside of memory")));
    return;
  }
  run_bad_piece({.offset = 4000, .bytes = 97, .rows = 1, .stride = 0});
}

TEST(EmulatedCudaKernels, ThatReadOutsideByTheirStrideFailTheContext) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("reach outside of memory")));
    return;
  }
  run_bad_piece({.offset = 0, .bytes = 16, .rows = 5, .stride = 1024});
}

TEST(EmulatedCudaKernels, FailAtAnAddressThatIsNoMultipleOfTheAccess) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("begins 8 bytes behind a multiple of 16")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const Kernels kernels(cuda);
  CUfunction read = nullptr;
  EXPECT_EQ(cuda.cuModuleGetFunction(&read, kernels.module, wsync::device::cuda::kReadBytesKernel),
            CUDA_SUCCESS);
  const CUdeviceptr memory = session.allocate(4096);
  session.write(memory, some_bytes(4096));
  CUdeviceptr from = memory + 1032;
  std::uint64_t granules = 4;
  CUdeviceptr folded = memory;
  void* arguments[] = {&from, &granules, &folded};
  EXPECT_EQ(cuda.cuLaunchKernel(read, 1, 1, 1, kThreadsPerBlock, 1, 1, 0, session.stream, arguments,
                                nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_MISALIGNED_ADDRESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_ERROR_MISALIGNED_ADDRESS);
}

TEST(EmulatedCudaKernels, ReachAnotherDeviceOnlyAsItsPeer) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("peer access is not enabled")));
    return;
  }
  const Session first;
  const auto& cuda = first.cuda;
  const CUdeviceptr there = first.allocate(16);
  const Session second(1);
  const Kernels kernels(cuda);
  const CUdeviceptr memory = second.allocate(4096);
  const KernelPiece piece{.to = memory + 1024, .from = there, .row_bytes = 16, .rows = 1};
  second.write(memory, bytes_of(piece));
  second.write(there, some_bytes(16));
  EXPECT_EQ(cuda.cuCtxEnablePeerAccess(first.context, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuCtxEnablePeerAccess(first.context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(kernels.launch(memory, 0, second.stream), CUDA_SUCCESS);
  EXPECT_EQ(second.read(memory + 1024, 16), some_bytes(16));
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
  // The other way it has not been enabled.
  EXPECT_EQ(cuda.cuCtxPushCurrent(first.context), CUDA_SUCCESS);
  const Kernels kernels_there(cuda);
  const CUdeviceptr table = first.allocate(sizeof(KernelPiece));
  EXPECT_EQ(cuda.cuCtxPushCurrent(second.context), CUDA_SUCCESS);
  const CUdeviceptr far = second.allocate(16);
  EXPECT_EQ(cuda.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  const KernelPiece back{.to = there, .from = far, .row_bytes = 16, .rows = 1};
  first.write(table, bytes_of(back));
  EXPECT_EQ(kernels_there.launch(table, 0, first.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(first.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuMemFree(far), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuMemFree(table), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuMemFree(there), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
}

// ---- faults ----

TEST(EmulatedCudaFaults, AreThoseOfTheEnvironment) {
  if (const auto ended =
          in_process({{"WSYNC_EMULATED_CUDA_FAULTS",
                       "cuMemAlloc:2:CUDA_ERROR_OUT_OF_MEMORY,cuStreamQuery:2+:hang,copy:2:flip,"
                       "cuMemHostRegister_v2:*:CUDA_ERROR_NOT_PERMITTED"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(16);
  CUdeviceptr second = 0;
  EXPECT_EQ(cuda.cuMemAlloc(&second, 16), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda.cuMemAlloc(&second, 16), CUDA_SUCCESS);
  unsigned char byte = 0;
  EXPECT_EQ(cuda.cuMemHostRegister(&byte, 1, 0), CUDA_ERROR_NOT_PERMITTED);
  const auto bytes = some_bytes(16);
  session.write(memory, bytes);
  EXPECT_EQ(cuda.cuMemcpyDtoDAsync(second, memory, 16, session.stream), CUDA_SUCCESS);
  auto flipped = bytes;
  flipped[8] ^= 1U;
  EXPECT_EQ(session.read(second, 16), flipped);
  EXPECT_EQ(session.read(memory, 16), bytes);
  EXPECT_EQ(cuda.cuStreamQuery(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamQuery(session.stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.cuStreamQuery(session.stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(second), CUDA_SUCCESS);
}

TEST(EmulatedCudaFaults, CanFailWorkOfAStream) {
  if (const auto ended =
          in_process({{"WSYNC_EMULATED_CUDA_FAULTS", "memset:2:CUDA_ERROR_LAUNCH_FAILED"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(1);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 1, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 1, session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuda.cuStreamQuery(session.stream), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_ERROR_LAUNCH_FAILED);
}

// A stream that hangs is destroyed all the same, and holds up neither others nor the end.
TEST(EmulatedCudaFaults, CanHangAStream) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_FAULTS", "memset:1:hang"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("is freed while queued work uses it"),
                                           HasSubstr("goes with 1 memories")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(1);
  CUstream hung = nullptr;
  ASSERT_EQ(cuda.cuStreamCreate(&hung, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 1, 1, hung), CUDA_SUCCESS);
  session.write(memory, {5});
  EXPECT_THAT(session.read(memory, 1), ElementsAre(5));
  EXPECT_EQ(cuda.cuStreamQuery(hung), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.cuStreamDestroy(hung), CUDA_SUCCESS);
  // Who frees it waits for ever.
  std::thread([&cuda, context = session.context, memory] {
    (void)cuda.cuCtxSetCurrent(context);
    (void)cuda.cuMemFree(memory);
  }).detach();
  EXPECT_TRUE(soon([] { return !report_lines().empty(); }));
}

}  // namespace
