// The emulated NCCL lets right use pass and reports wrong use. Each test has a process of its own,
// whose report is read when it has ended.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <thread>

#include "tests/emulated_cuda/in_process.h"

namespace emulated_nccl_test {
namespace {

using emulated_cuda_test::in_process;
using emulated_cuda_test::Session;
using emulated_cuda_test::some_bytes;
using emulated_cuda_test::succeeded;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Nccl {
#define EMULATED_NCCL_MEMBER(name) \
  decltype(&::name) name = reinterpret_cast<decltype(&::name)>(::dlsym(library(), #name));
  EMULATED_NCCL_MEMBER(ncclGetUniqueId)
  EMULATED_NCCL_MEMBER(ncclCommInitRankConfig)
  EMULATED_NCCL_MEMBER(ncclCommGetAsyncError)
  EMULATED_NCCL_MEMBER(ncclBroadcast)
  EMULATED_NCCL_MEMBER(ncclCommFinalize)
  EMULATED_NCCL_MEMBER(ncclCommDestroy)
  EMULATED_NCCL_MEMBER(ncclCommAbort)
#undef EMULATED_NCCL_MEMBER

  static void* library() {
    static void* const handle = ::dlopen(EMULATED_NCCL, RTLD_NOW | RTLD_LOCAL);
    return handle;
  }

  ncclUniqueId id() const {
    ncclUniqueId made{};
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    EXPECT_EQ(ncclGetUniqueId(&made), ncclSuccess);
    return made;
  }
  // On the device that is current.
  ncclComm_t begin(const ncclUniqueId& id, int size, int rank) const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = 16;
    ncclComm_t made = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&made, size, id, rank, &config), ncclInProgress);
    return made;
  }
  ncclResult_t state(ncclComm_t communicator) const {
    ncclResult_t now = ncclInProgress;
    EXPECT_EQ(ncclCommGetAsyncError(communicator, &now), ncclSuccess);
    return now;
  }
  ncclResult_t settle(ncclComm_t communicator) const {
    ncclResult_t now = state(communicator);
    while (now == ncclInProgress) {
      std::this_thread::yield();
      now = state(communicator);
    }
    return now;
  }
  ncclComm_t alone() const {
    const ncclComm_t made = begin(id(), 1, 0);
    EXPECT_EQ(settle(made), ncclSuccess);
    return made;
  }
  void leave(ncclComm_t communicator) const {
    EXPECT_EQ(ncclCommFinalize(communicator), ncclInProgress);
    EXPECT_EQ(settle(communicator), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(communicator), ncclSuccess);
  }
};

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

TEST(EmulatedNccl, TwoRanksBroadcastAndLeaveNothing) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const auto bytes = some_bytes(2'500'000);
  const Session first(0);
  const CUdeviceptr from = first.allocate(bytes.size());
  first.write(from, bytes);
  const Nccl nccl;
  const auto id = nccl.id();
  const auto root = nccl.begin(id, 2, 0);
  const Session second(1);
  const CUdeviceptr to = second.allocate(bytes.size());
  const auto other = nccl.begin(id, 2, 1);
  EXPECT_EQ(nccl.state(root), ncclInProgress);
  EXPECT_EQ(nccl.settle(root), ncclSuccess);
  EXPECT_EQ(nccl.settle(other), ncclSuccess);

  EXPECT_EQ(nccl.ncclBroadcast(pointer(from), pointer(from), bytes.size(), ncclUint8, 0, root,
                               first.stream),
            ncclInProgress);
  EXPECT_EQ(
      nccl.ncclBroadcast(nullptr, pointer(to), bytes.size(), ncclUint8, 0, other, second.stream),
      ncclInProgress);
  EXPECT_EQ(nccl.settle(root), ncclSuccess);
  EXPECT_EQ(nccl.settle(other), ncclSuccess);
  EXPECT_EQ(second.read(to, bytes.size()), bytes);
  nccl.leave(root);
  nccl.leave(other);
  EXPECT_EQ(first.cuda.cuMemFree(from), CUDA_SUCCESS);
  EXPECT_EQ(first.cuda.cuMemFree(to), CUDA_SUCCESS);
}

TEST(EmulatedNccl, ABroadcastWaitsForAMissingRankUntilItIsAborted) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session first(0);
  const Nccl nccl;
  const auto id = nccl.id();
  const auto waits = nccl.begin(id, 2, 0);
  const auto missing = [&] {
    const Session second(1);
    return nccl.begin(id, 2, 1);
  }();
  EXPECT_EQ(nccl.settle(waits), ncclSuccess);
  EXPECT_EQ(nccl.settle(missing), ncclSuccess);
  const CUdeviceptr to = first.allocate(16);
  EXPECT_EQ(nccl.ncclBroadcast(pointer(to), pointer(to), 16, ncclUint8, 1, waits, first.stream),
            ncclInProgress);
  EXPECT_EQ(nccl.settle(waits), ncclSuccess) << "it is on its stream";
  EXPECT_EQ(first.cuda.cuStreamQuery(first.stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(nccl.ncclCommAbort(waits), ncclSuccess);
  EXPECT_EQ(first.cuda.cuStreamSynchronize(first.stream), CUDA_SUCCESS);
  EXPECT_EQ(nccl.ncclCommAbort(missing), ncclSuccess);
  EXPECT_EQ(first.cuda.cuMemFree(to), CUDA_SUCCESS);
}

TEST(EmulatedNccl, TwoRanksOnOneGpuAreInvalidUsage) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_GPUS", "2"}})) {
    EXPECT_TRUE(succeeded(*ended));
    return;
  }
  const Session first(0);
  const Nccl nccl;
  const auto id = nccl.id();
  const auto one = nccl.begin(id, 3, 0);
  const auto twin = nccl.begin(id, 3, 1);
  const Session second(1);
  const auto other = nccl.begin(id, 3, 2);
  EXPECT_EQ(nccl.settle(one), ncclInvalidUsage);
  EXPECT_EQ(nccl.settle(twin), ncclInvalidUsage);
  EXPECT_EQ(nccl.settle(other), ncclRemoteError);
  for (const auto communicator : {one, twin, other})
    EXPECT_EQ(nccl.ncclCommAbort(communicator), ncclSuccess);
}

TEST(EmulatedNccl, UseAfterTheEndIsReported) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("ncclCommGetAsyncError: not a communicator"),
                                           HasSubstr("ncclCommAbort: not a communicator")));
    return;
  }
  const Session session;
  const Nccl nccl;
  const auto communicator = nccl.alone();
  EXPECT_EQ(nccl.ncclCommAbort(communicator), ncclSuccess);
  ncclResult_t error = ncclSuccess;
  EXPECT_EQ(nccl.ncclCommGetAsyncError(communicator, &error), ncclInvalidArgument);
  EXPECT_EQ(nccl.ncclCommAbort(communicator), ncclInvalidArgument);
}

TEST(EmulatedNccl, CallsWhileTheLastIsInProgressAreReported) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("ncclBroadcast: rank 0 of 1 is not ready"),
                                           HasSubstr("ncclCommDestroy: rank 0 of 1 has not been "
                                                     "finalized")));
    return;
  }
  const Session session;
  const Nccl nccl;
  const auto communicator = nccl.begin(nccl.id(), 1, 0);
  const CUdeviceptr memory = session.allocate(16);
  EXPECT_EQ(nccl.ncclBroadcast(pointer(memory), pointer(memory), 16, ncclUint8, 0, communicator,
                               session.stream),
            ncclInvalidArgument);
  EXPECT_EQ(nccl.settle(communicator), ncclSuccess);
  EXPECT_EQ(nccl.ncclCommFinalize(communicator), ncclInProgress);
  EXPECT_EQ(nccl.ncclCommDestroy(communicator), ncclInvalidArgument);
  EXPECT_EQ(nccl.settle(communicator), ncclSuccess);
  EXPECT_EQ(nccl.ncclCommDestroy(communicator), ncclSuccess);
  EXPECT_EQ(session.cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedNccl, TheWrongStreamAndNoContextAreReported) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_GPUS", "2"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("got a stream of another GPU"),
                                           HasSubstr("no context is current on this thread")));
    return;
  }
  const Session first(0);
  const Nccl nccl;
  const auto communicator = nccl.alone();
  const CUdeviceptr memory = first.allocate(16);
  {
    const Session second(1);
    EXPECT_EQ(nccl.ncclBroadcast(pointer(memory), pointer(memory), 16, ncclUint8, 0, communicator,
                                 second.stream),
              ncclInvalidArgument);
  }
  nccl.leave(communicator);
  EXPECT_EQ(first.cuda.cuMemFree(memory), CUDA_SUCCESS);
  std::thread([&] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = 16;
    ncclComm_t made = nullptr;
    EXPECT_EQ(nccl.ncclCommInitRankConfig(&made, 1, nccl.id(), 0, &config), ncclUnhandledCudaError);
    EXPECT_EQ(made, nullptr);
  }).join();
}

TEST(EmulatedNccl, ReportsAContextThatGoesBeforeTheLastRank) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("but the context of GPU 1 is gone")));
    return;
  }
  const Session first(0);
  const Nccl nccl;
  const auto id = nccl.id();
  const auto root = nccl.begin(id, 2, 0);
  {
    const Session second(1);
    const auto other = nccl.begin(id, 2, 1);
    EXPECT_EQ(nccl.settle(root), ncclSuccess);
    EXPECT_EQ(nccl.settle(other), ncclSuccess);
    nccl.leave(other);
  }
  nccl.leave(root);
}

TEST(EmulatedNccl, ReportsRanksThatMeetOnTheNetworkAndKernelsOfAnySize) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("NCCL_SOCKET_IFNAME is not lo"),
                                           HasSubstr("maxCTAs is not set")));
    return;
  }
  const Session session;
  const Nccl nccl;
  const ncclUniqueId good = nccl.id();
  ::unsetenv("NCCL_SOCKET_IFNAME");
  ncclUniqueId id{};
  EXPECT_EQ(nccl.ncclGetUniqueId(&id), ncclInvalidArgument);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&made, 1, good, 0, &config), ncclInvalidArgument);
  EXPECT_EQ(made, nullptr);
}

TEST(EmulatedNccl, ACommunicatorThatIsLeftIsReported) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report,
                ElementsAre(HasSubstr("rank 1 of 2: an NCCL communicator was neither")));
    return;
  }
  const Session session;
  const Nccl nccl;
  EXPECT_NE(nccl.begin(nccl.id(), 2, 1), nullptr);
}

}  // namespace
}  // namespace emulated_nccl_test
