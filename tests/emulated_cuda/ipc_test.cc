// Memory and events of the emulated driver in two processes.
#include <csignal>
#include <functional>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "tests/emulated_cuda/in_process.h"

namespace {

using emulated_cuda_test::Gate;
using emulated_cuda_test::in_process;
using emulated_cuda_test::Session;
using emulated_cuda_test::some_bytes;
using emulated_cuda_test::succeeded;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBlock = std::size_t{2} << 20U;

// One end of a socket between the two: messages of one fixed type at a time.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  template <class T>
  void send(const T& message) const {
    EXPECT_EQ(::write(fd_, &message, sizeof message), static_cast<ssize_t>(sizeof message));
  }
  template <class T>
  [[nodiscard]] T receive() const {
    T message{};
    EXPECT_EQ(::recv(fd_, &message, sizeof message, MSG_WAITALL),
              static_cast<ssize_t>(sizeof message));
    return message;
  }
  // A byte that says: go on.
  void go() const { send<char>('g'); }
  void await_go() const { EXPECT_EQ(receive<char>(), 'g'); }

 private:
  int fd_;
};

// Runs the importer in a forked child, before either has a driver, and the exporter here; returns
// the child's status, as of waitpid().
int run_pair(const std::function<void(const Line&)>& importer,
             const std::function<void(const Line&, pid_t)>& exporter) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    importer(Line(ends[1]));
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(ends[1]);
  exporter(Line(ends[0]), child);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

CUdeviceptr open_memory(const Session& session, const CUipcMemHandle& handle) {
  CUdeviceptr memory = 0;
  EXPECT_EQ(session.cuda.cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_SUCCESS);
  return memory;
}

CUipcMemHandle export_memory(const Session& session, CUdeviceptr memory) {
  CUipcMemHandle handle{};
  EXPECT_EQ(session.cuda.cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
  return handle;
}

CUresult try_to_open(const Session& session, const CUipcMemHandle& handle) {
  CUdeviceptr memory = 0;
  return session.cuda.cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

TEST(EmulatedCudaIpc, SharesMemoryBetweenProcesses) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const auto importer = [](const Line& line) {
    const Session session;
    const auto& cuda = session.cuda;
    const auto handle = line.receive<CUipcMemHandle>();
    const CUdeviceptr memory = open_memory(session, handle);
    EXPECT_EQ(open_memory(session, handle), memory);  // counted
    EXPECT_EQ(session.read(memory, 100), some_bytes(100));
    session.write(memory + 50, some_bytes(10, 77));
    EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuIpcCloseMemHandle(memory), CUDA_SUCCESS);
    EXPECT_EQ(session.read(memory, 1), some_bytes(1));
    EXPECT_EQ(cuda.cuIpcCloseMemHandle(memory), CUDA_SUCCESS);
    line.go();
  };
  const int status = run_pair(importer, [](const Line& line, pid_t) {
    const Session session;
    const CUdeviceptr memory = session.allocate(kBlock);
    session.write(memory, some_bytes(100));
    EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
    line.send(export_memory(session, memory));
    line.await_go();
    EXPECT_EQ(session.read(memory + 50, 10), some_bytes(10, 77));
    EXPECT_EQ(session.cuda.cuMemFree(memory), CUDA_SUCCESS);
  });
  EXPECT_EQ(status, 0);
}

TEST(EmulatedCudaIpc, RefusesHandlesThatNobodyCanOpen) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(
        ended->report,
        ElementsAre(HasSubstr("no multiple of 2 MiB"), HasSubstr("is not the beginning"),
                    HasSubstr("in the process that exported it"), HasSubstr("flags must be"),
                    HasSubstr("no handle"), HasSubstr("no interprocess event")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const CUdeviceptr memory = session.allocate(kBlock - 1);
  CUipcMemHandle handle = export_memory(session, memory);
  EXPECT_EQ(cuda.cuIpcGetMemHandle(&handle, memory + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_to_open(session, handle), CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr opened = 0;
  EXPECT_EQ(cuda.cuIpcOpenMemHandle(&opened, handle, 0), CUDA_ERROR_INVALID_VALUE);
  handle.reserved[0] ^= 1;
  EXPECT_EQ(try_to_open(session, handle), CUDA_ERROR_INVALID_VALUE);
  CUevent event = nullptr;
  CUipcEventHandle event_handle{};
  EXPECT_EQ(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuIpcGetEventHandle(&event_handle, event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda.cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
}

TEST(EmulatedCudaIpc, RefusesHandlesOfWhatIsGone) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  // The one that goes is the child here: it exports.
  const auto goes = [](const Line& line) {
    const Session session;
    const CUdeviceptr freed = session.allocate(kBlock);
    const CUdeviceptr kept = session.allocate(kBlock);
    session.write(kept, some_bytes(10));
    EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
    line.send(export_memory(session, freed));
    line.send(export_memory(session, kept));
    EXPECT_EQ(session.cuda.cuMemFree(freed), CUDA_SUCCESS);
    line.go();
    line.await_go();
    ::raise(SIGKILL);
  };
  const int status = run_pair(goes, [](const Line& line, pid_t child) {
    const Session session;
    const auto freed = line.receive<CUipcMemHandle>();
    const auto kept = line.receive<CUipcMemHandle>();
    line.await_go();
    EXPECT_EQ(try_to_open(session, freed), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr memory = open_memory(session, kept);
    line.go();
    siginfo_t info{};  // it has died, and is still to be reaped
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    // What is mapped stays; nothing more can be opened.
    EXPECT_EQ(session.read(memory, 10), some_bytes(10));
    EXPECT_EQ(session.cuda.cuIpcCloseMemHandle(memory), CUDA_SUCCESS);
    EXPECT_EQ(try_to_open(session, kept), CUDA_ERROR_INVALID_VALUE);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(EmulatedCudaIpc, ReportsMemoryThatIsFreedWhileAnotherHasItOpen) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("is freed while 1 other processes"),
                                           HasSubstr("exported and has freed"),
                                           HasSubstr("goes with 1 memories")));
    return;
  }
  const auto importer = [](const Line& line) {
    const Session session;
    const CUdeviceptr memory = open_memory(session, line.receive<CUipcMemHandle>());
    line.go();
    line.await_go();
    EXPECT_EQ(session.cuda.cuMemsetD8Async(memory, 0, 1, session.stream), CUDA_ERROR_INVALID_VALUE);
  };
  const int status = run_pair(importer, [](const Line& line, pid_t) {
    const Session session;
    const CUdeviceptr memory = session.allocate(kBlock);
    line.send(export_memory(session, memory));
    line.await_go();
    EXPECT_EQ(session.cuda.cuMemFree(memory), CUDA_SUCCESS);
    line.go();
  });
  EXPECT_EQ(status, 0);
}

TEST(EmulatedCudaIpc, ForgetsAnImporterThatWasKilled) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const auto importer = [](const Line& line) {
    const Session session;
    EXPECT_NE(open_memory(session, line.receive<CUipcMemHandle>()), 0U);
    line.go();
    ::raise(SIGKILL);
  };
  const int status = run_pair(importer, [](const Line& line, pid_t child) {
    const Session session;
    const CUdeviceptr memory = session.allocate(kBlock);
    line.send(export_memory(session, memory));
    line.await_go();
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(session.cuda.cuMemFree(memory), CUDA_SUCCESS);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(EmulatedCudaIpc, OrdersProcessesByEvents) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_DELAY_US", "200"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  struct Handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
  };
  const auto importer = [](const Line& line) {
    const Session session;
    const auto& cuda = session.cuda;
    const auto handles = line.receive<Handles>();
    const CUdeviceptr memory = open_memory(session, handles.memory);
    const CUdeviceptr own = session.allocate(8);
    CUevent event = nullptr;
    ASSERT_EQ(cuda.cuIpcOpenEventHandle(&event, handles.event), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuStreamWaitEvent(session.stream, event, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuMemcpyAsync(own, memory, 8, session.stream), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuStreamQuery(session.stream), CUDA_ERROR_NOT_READY);
    line.go();
    EXPECT_EQ(session.read(own, 8), some_bytes(8));
    EXPECT_EQ(cuda.cuEventDestroy(event), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuIpcCloseMemHandle(memory), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuMemFree(own), CUDA_SUCCESS);
    line.go();
  };
  const int status = run_pair(importer, [](const Line& line, pid_t) {
    const Session session;
    const auto& cuda = session.cuda;
    const CUdeviceptr memory = session.allocate(kBlock);
    CUevent event = nullptr;
    Handles handles{.memory = export_memory(session, memory), .event = {}};
    ASSERT_EQ(cuda.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
              CUDA_SUCCESS);
    ASSERT_EQ(cuda.cuIpcGetEventHandle(&handles.event, event), CUDA_SUCCESS);
    Gate gate(cuda, session.stream);
    session.write(memory, some_bytes(8));
    EXPECT_EQ(cuda.cuEventRecord(event, session.stream), CUDA_SUCCESS);
    line.send(handles);
    line.await_go();
    gate.open();
    line.await_go();
    EXPECT_EQ(cuda.cuEventDestroy(event), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuMemFree(memory), CUDA_SUCCESS);
  });
  EXPECT_EQ(status, 0);
}

TEST(EmulatedCudaIpc, CountsTheMemoryOfAllProcessesOfAMachine) {
  const auto machine = std::filesystem::temp_directory_path() /
                       ("emulated_cuda_machine." + std::to_string(::getpid()));
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_MACHINE", machine.string()},
                                     {"WSYNC_EMULATED_CUDA_MEMORY", "1000"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    std::uint64_t peaks[2] = {};
    std::ifstream(machine, std::ios::binary).read(reinterpret_cast<char*>(peaks), sizeof peaks);
    EXPECT_THAT(peaks, ElementsAre(900, 0));
    std::filesystem::remove(machine);
    return;
  }
  const auto free_bytes = [](const Session& session) {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(session.cuda.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  const auto other = [&](const Line& line) {
    const Session session;
    EXPECT_NE(session.allocate(600), 0U);
    line.go();
    line.await_go();
    ::raise(SIGKILL);
  };
  const int status = run_pair(other, [&](const Line& line, pid_t child) {
    const Session session;
    line.await_go();
    EXPECT_EQ(free_bytes(session), 400U);
    CUdeviceptr memory = 0;
    EXPECT_EQ(session.cuda.cuMemAlloc(&memory, 401), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(session.cuda.cuMemAlloc(&memory, 300), CUDA_SUCCESS);
    line.go();
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(free_bytes(session), 700U);
    EXPECT_EQ(session.cuda.cuMemFree(memory), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(session), 1000U);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
