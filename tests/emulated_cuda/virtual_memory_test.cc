// Memory of the emulated driver that is made, mapped and made accessible by separate calls, and its
// descriptors in other processes.
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shared/device/cuda/kernels.h"
#include "tests/emulated_cuda/in_process.h"

namespace {

namespace cuda_kernels = wsync::device::cuda;
using emulated_cuda_test::Cuda;
using emulated_cuda_test::Gate;
using emulated_cuda_test::in_process;
using emulated_cuda_test::Session;
using emulated_cuda_test::some_bytes;
using emulated_cuda_test::succeeded;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::size_t kBlock = std::size_t{2} << 20U;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

CUmemAllocationProp properties(int device = 0) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = kDescriptor;
  wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return wanted;
}

CUmemAccessDesc access(CUmemAccess_flags flags, int device = 0) {
  return {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
}

CUmemGenericAllocationHandle make(const Cuda& cuda, std::size_t bytes = kBlock, int device = 0) {
  const auto wanted = properties(device);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda.cuMemCreate(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
  return handle;
}

CUdeviceptr reserve(const Cuda& cuda, std::size_t bytes = kBlock) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda.cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address % kBlock, 0U);
  return address;
}

// Reserves addresses, maps there, and gives device 0 access.
CUdeviceptr map(const Cuda& cuda, CUmemGenericAllocationHandle handle, CUmemAccess_flags flags,
                std::size_t bytes = kBlock) {
  const CUdeviceptr address = reserve(cuda, bytes);
  const auto allowed = access(flags);
  EXPECT_EQ(cuda.cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemSetAccess(address, bytes, &allowed, 1), CUDA_SUCCESS);
  return address;
}

void unmap(const Cuda& cuda, CUdeviceptr address, std::size_t bytes = kBlock) {
  EXPECT_EQ(cuda.cuMemUnmap(address, bytes), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemAddressFree(address, bytes), CUDA_SUCCESS);
}

int descriptor_of(const Cuda& cuda, CUmemGenericAllocationHandle handle) {
  int fd = -1;
  EXPECT_EQ(cuda.cuMemExportToShareableHandle(&fd, handle, kDescriptor, 0), CUDA_SUCCESS);
  EXPECT_GE(fd, 0);
  return fd;
}

CUresult import(const Cuda& cuda, int fd, CUmemGenericAllocationHandle* handle) {
  return cuda.cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kDescriptor);
}

std::size_t free_bytes(const Cuda& cuda) {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cuda.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

TEST(EmulatedCudaMapped, IsMadeMappedAndMadeAccessible) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_DELAY_US", "200"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const std::size_t before = free_bytes(cuda);
  const auto wanted = properties();
  std::size_t granularity = 0;
  EXPECT_EQ(cuda.cuMemGetAllocationGranularity(&granularity, &wanted,
                                               CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, kBlock);
  const auto handle = make(cuda, 2 * kBlock);
  EXPECT_EQ(free_bytes(cuda), before - 2 * kBlock);
  const CUdeviceptr memory = map(cuda, handle, kReadWrite, 2 * kBlock);
  const CUdeviceptr again = map(cuda, handle, kRead, 2 * kBlock);  // the same bytes
  EXPECT_NE(again, memory);
  session.write(memory + 100, some_bytes(1000));
  EXPECT_EQ(session.read(again + 100, 1000), some_bytes(1000));
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cuda.cuMemGetAddressRange(&base, &bytes, memory + kBlock + 5), CUDA_SUCCESS);
  EXPECT_EQ(base, memory);
  EXPECT_EQ(bytes, 2 * kBlock);
  int value = -1;
  EXPECT_EQ(cuda.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(
      cuda.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory),
      CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(session.read(again + 100, 1000), some_bytes(1000)) << "the mappings keep it";
  unmap(cuda, memory, 2 * kBlock);
  EXPECT_EQ(cuda.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemGetAddressRange(&base, &bytes, memory), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(free_bytes(cuda), before - 2 * kBlock);
  unmap(cuda, again, 2 * kBlock);
  EXPECT_EQ(free_bytes(cuda), before);
}

TEST(EmulatedCudaMapped, ReportsCallsThatTheDocumentationRefuses) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(
        ended->report,
        ElementsAre(HasSubstr("cuMemCreate: 2097153 bytes are no whole"),
                    HasSubstr("not pinned memory"), HasSubstr("cuMemCreate: flags"),
                    HasSubstr("no whole pages"), HasSubstr("no power of two"),
                    HasSubstr("not inside a reserved range"), HasSubstr("no whole granules"),
                    HasSubstr("flags and offset must be 0"),
                    HasSubstr("cuMemMap: no handle of memory"), HasSubstr("are mapped already"),
                    HasSubstr("cuMemSetAccess: 2097152 bytes"), HasSubstr("no access is described"),
                    HasSubstr("no device 7"), HasSubstr("cuMemUnmap: 2097152 bytes"),
                    HasSubstr("freed while memory is mapped"), HasSubstr("is not the beginning"),
                    HasSubstr("cuMemAddressFree: 2097152 bytes"),
                    HasSubstr("are no reserved range"), HasSubstr("cuMemRelease: no handle")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  auto wanted = properties();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda.cuMemCreate(&handle, kBlock + 1, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  wanted.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_EQ(cuda.cuMemCreate(&handle, kBlock, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  wanted = properties();
  EXPECT_EQ(cuda.cuMemCreate(&handle, kBlock, &wanted, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemCreate(&handle, std::size_t{2} << 30U, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  handle = make(cuda, 2 * kBlock);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda.cuMemAddressReserve(&address, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemAddressReserve(&address, kBlock, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  address = reserve(cuda, 2 * kBlock);
  EXPECT_EQ(cuda.cuMemMap(address + kBlock, 2 * kBlock, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemMap(address, kBlock + 4096, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemMap(address, kBlock, kBlock, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemMap(address, kBlock, 0, handle + 16, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemMap(address, 2 * kBlock, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemMap(address, 2 * kBlock, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  auto allowed = access(kReadWrite);
  EXPECT_EQ(cuda.cuMemSetAccess(address, kBlock, &allowed, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemSetAccess(address, 2 * kBlock, &allowed, 0), CUDA_ERROR_INVALID_VALUE);
  allowed.location.id = 7;
  EXPECT_EQ(cuda.cuMemSetAccess(address, 2 * kBlock, &allowed, 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda.cuMemUnmap(address, kBlock), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemAddressFree(address, 2 * kBlock), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemUnmap(address, 2 * kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemAddressFree(address, kBlock), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemAddressFree(address, 2 * kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemAddressFree(address, 2 * kBlock), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

TEST(EmulatedCudaMapped, CanBeMappedInPiecesAndAgain) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const auto first = make(cuda);
  const auto second = make(cuda);
  const CUdeviceptr address = reserve(cuda, 2 * kBlock);
  EXPECT_EQ(cuda.cuMemMap(address, kBlock, 0, first, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemMap(address + kBlock, kBlock, 0, second, 0), CUDA_SUCCESS);
  const auto allowed = access(kReadWrite);
  EXPECT_EQ(cuda.cuMemSetAccess(address, 2 * kBlock, &allowed, 1), CUDA_SUCCESS);
  session.write(address, some_bytes(10));
  session.write(address + kBlock, some_bytes(10, 50));
  EXPECT_EQ(session.read(address, 10), some_bytes(10));
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemUnmap(address, 2 * kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemMap(address, kBlock, 0, second, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemSetAccess(address, kBlock, &allowed, 1), CUDA_SUCCESS);
  EXPECT_EQ(session.read(address, 10), some_bytes(10, 50));
  EXPECT_EQ(cuda.cuMemUnmap(address, kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemAddressFree(address, 2 * kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(second), CUDA_SUCCESS);
}

// Each way to write where a device may only read, or to use what it may not access. Every error
// sticks to its context, hence a process for each.
void expect_illegal(const char* test_says, const std::function<void(const Session&)>& body) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr(test_says)));
    return;
  }
  const Session session;
  body(session);
  EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(EmulatedCudaMapped, ACopyIntoWhatIsReadOnlyIsIllegal) {
  expect_illegal("a copy writes to memory that device 0 may only read", [](const Session& session) {
    const auto handle = make(session.cuda);
    const CUdeviceptr memory = map(session.cuda, handle, kRead);
    EXPECT_EQ(session.read(memory, 3), (std::vector<unsigned char>{0, 0, 0}));
    session.write(memory, some_bytes(10));
    EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    unmap(session.cuda, memory);
    EXPECT_EQ(session.cuda.cuMemRelease(handle), CUDA_SUCCESS);
  });
}

TEST(EmulatedCudaMapped, FillingWhatIsReadOnlyIsIllegal) {
  expect_illegal("a copy writes to memory that device 0 may only read", [](const Session& session) {
    const auto handle = make(session.cuda);
    const CUdeviceptr memory = map(session.cuda, handle, kRead);
    EXPECT_EQ(session.cuda.cuMemsetD8Async(memory, 1, 5, session.stream), CUDA_SUCCESS);
    EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    unmap(session.cuda, memory);
    EXPECT_EQ(session.cuda.cuMemRelease(handle), CUDA_SUCCESS);
  });
}

TEST(EmulatedCudaMapped, WhatIsMappedIsNotAccessibleYet) {
  expect_illegal("uses memory that device 0 may not access", [](const Session& session) {
    const auto handle = make(session.cuda);
    const CUdeviceptr memory = reserve(session.cuda);
    EXPECT_EQ(session.cuda.cuMemMap(memory, kBlock, 0, handle, 0), CUDA_SUCCESS);
    session.write(memory, some_bytes(10));
    EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    unmap(session.cuda, memory);
    EXPECT_EQ(session.cuda.cuMemRelease(handle), CUDA_SUCCESS);
  });
}

TEST(EmulatedCudaMapped, AKernelThatWritesToWhatIsReadOnlyIsIllegal) {
  expect_illegal("may only read", [](const Session& session) {
    const auto& cuda = session.cuda;
    const auto handle = make(cuda);
    const CUdeviceptr memory = map(cuda, handle, kRead);
    const CUdeviceptr other = session.allocate(4096);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    ASSERT_EQ(cuda.cuModuleLoadData(&module, "// PTX"), CUDA_SUCCESS);
    ASSERT_EQ(cuda.cuModuleGetFunction(&function, module, cuda_kernels::kReadBytesKernel),
              CUDA_SUCCESS);
    const auto launch = [&](CUdeviceptr from, CUdeviceptr folded) {
      std::uint64_t granules = 1;
      void* parameters[] = {&from, &granules, &folded};
      EXPECT_EQ(cuda.cuLaunchKernel(function, 1, 1, 1, cuda_kernels::kThreadsPerBlock, 1, 1, 0,
                                    session.stream, parameters, nullptr),
                CUDA_SUCCESS);
      return cuda.cuStreamSynchronize(session.stream);
    };
    EXPECT_EQ(launch(memory, other), CUDA_SUCCESS) << "reading is allowed";
    EXPECT_EQ(launch(other, memory), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuda.cuModuleUnload(module), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuda.cuMemFree(other), CUDA_ERROR_ILLEGAL_ADDRESS);
    unmap(cuda, memory);
    EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
  });
}

TEST(EmulatedCudaMapped, OtherDevicesReachItOnlyAsItSays) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("an address is not of the context"),
                                           HasSubstr("device 1 may not access")));
    return;
  }
  const Session session(0);
  const auto& cuda = session.cuda;
  const Session other(1);  // current from now on
  const auto handle = make(cuda);
  const CUdeviceptr memory = map(cuda, handle, kReadWrite);
  const CUdeviceptr there = other.allocate(100);
  other.write(there, some_bytes(100));
  // The driver carries the bytes over, without access of one device to both sides.
  EXPECT_EQ(
      cuda.cuMemcpyPeerAsync(memory, session.context, there, other.context, 100, other.stream),
      CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyPeerAsync(memory, other.context, there, other.context, 100, other.stream),
            CUDA_ERROR_INVALID_VALUE);
  const auto allowed = access(kRead, 1);
  EXPECT_EQ(cuda.cuMemSetAccess(memory, kBlock, &allowed, 1), CUDA_SUCCESS);
  EXPECT_EQ(other.read(memory, 100), some_bytes(100));
  const auto denied = access(CU_MEM_ACCESS_FLAGS_PROT_NONE, 1);
  EXPECT_EQ(cuda.cuMemSetAccess(memory, kBlock, &denied, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemcpyAsync(there, memory, 10, other.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuStreamSynchronize(other.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.cuMemFree(there), CUDA_ERROR_ILLEGAL_ADDRESS);
  unmap(cuda, memory);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
}

TEST(EmulatedCudaMapped, ReportsMemoryThatIsUnmappedWhileWorkUsesIt) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("is unmapped while queued work uses it"),
                                           HasSubstr("which has been unmapped")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  const auto handle = make(cuda);
  const CUdeviceptr memory = map(cuda, handle, kReadWrite);
  const auto bytes = some_bytes(100);
  Gate gate(cuda, session.stream);
  EXPECT_EQ(cuda.cuMemcpyHtoDAsync(memory, bytes.data(), bytes.size(), session.stream),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemUnmap(memory, kBlock), CUDA_SUCCESS) << "it does not wait";
  gate.open();
  EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemsetD8Async(memory, 0, 1, session.stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemAddressFree(memory, kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
}

TEST(EmulatedCudaMapped, ReportsWhatIsLeftAtTheEnd) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, UnorderedElementsAre(HasSubstr("1 mappings are not unmapped"),
                                                    HasSubstr("2 handles of memory"),
                                                    HasSubstr("1 reserved ranges")));
    return;
  }
  const Session session;
  static_cast<void>(map(session.cuda, make(session.cuda), kRead));
  static_cast<void>(make(session.cuda));
}

TEST(EmulatedCudaMapped, CanLackDescriptors) {
  if (const auto ended = in_process({{"WSYNC_EMULATED_CUDA_DESCRIPTORS", "0"}})) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("without a request for descriptors")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  int value = -1;
  EXPECT_EQ(cuda.cuDeviceGetAttribute(
                &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  auto wanted = properties();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda.cuMemCreate(&handle, kBlock, &wanted, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(import(cuda, 0, &handle), CUDA_ERROR_NOT_SUPPORTED);
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  EXPECT_EQ(cuda.cuMemCreate(&handle, kBlock, &wanted, 0), CUDA_SUCCESS);
  int fd = -1;
  EXPECT_EQ(cuda.cuMemExportToShareableHandle(&fd, handle, kDescriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
}

// ---- two processes ----

// One end of a socket between the two.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  // A byte that says: go on.
  void go() const { send(-1); }
  void await_go() const { EXPECT_EQ(receive(), -1); }
  // A byte, and the descriptor unless it is -1.
  void send(int fd) const {
    char byte = 'g';
    iovec part{.iov_base = &byte, .iov_len = 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    EXPECT_EQ(::sendmsg(fd_, &message, 0), 1);
  }
  [[nodiscard]] int receive() const {
    char byte = 0;
    int fd = -1;
    iovec part{.iov_base = &byte, .iov_len = 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    EXPECT_EQ(::recvmsg(fd_, &message, 0), 1);
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message); header != nullptr)
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
  }

 private:
  int fd_;
};

// Runs the importer in a forked child, before either has a driver, and the exporter here; returns
// the child's status, as of waitpid().
int run_pair(const std::function<void(const Line&)>& child_does,
             const std::function<void(const Line&, pid_t)>& parent_does) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    child_does(Line(ends[1]));
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(ends[1]);
  parent_does(Line(ends[0]), child);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Waits until a process has died, which is then still to be reaped.
void await_death(pid_t process) {
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT), 0);
}

// Imports the memory of a descriptor, which it closes, and maps it for reading.
CUdeviceptr open_memory(const Cuda& cuda, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(import(cuda, fd, &handle), CUDA_SUCCESS);
  ::close(fd);
  const CUdeviceptr memory = map(cuda, handle, kRead);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
  return memory;
}

TEST(EmulatedCudaMapped, IsReadByAnotherProcessAlsoAfterItsOwnerHasFreedIt) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const auto importer = [](const Line& line) {
    const Session session;
    const CUdeviceptr memory = open_memory(session.cuda, line.receive());
    EXPECT_EQ(session.read(memory, 100), some_bytes(100));
    line.go();
    line.await_go();  // the owner has written again
    EXPECT_EQ(session.read(memory, 100), some_bytes(100, 9));
    line.go();
    line.await_go();  // the owner has freed it
    EXPECT_EQ(session.read(memory, 100), some_bytes(100, 9));
    unmap(session.cuda, memory);
  };
  const int status = run_pair(importer, [](const Line& line, pid_t) {
    const Session session;
    const auto& cuda = session.cuda;
    const auto handle = make(cuda);
    const CUdeviceptr memory = map(cuda, handle, kReadWrite);
    session.write(memory, some_bytes(100));
    EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
    const int fd = descriptor_of(cuda, handle);
    line.send(fd);
    ::close(fd);
    line.await_go();
    session.write(memory, some_bytes(100, 9));
    EXPECT_EQ(cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
    line.go();
    line.await_go();
    unmap(cuda, memory);
    EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
    line.go();
  });
  EXPECT_EQ(status, 0);
}

TEST(EmulatedCudaMapped, OutlivesAnOwnerThatIsKilled) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const auto owner = [](const Line& line) {
    const Session session;
    const auto handle = make(session.cuda);
    const CUdeviceptr memory = map(session.cuda, handle, kReadWrite);
    session.write(memory, some_bytes(10));
    EXPECT_EQ(session.cuda.cuStreamSynchronize(session.stream), CUDA_SUCCESS);
    line.send(descriptor_of(session.cuda, handle));
    line.await_go();
    ::raise(SIGKILL);
  };
  const int status = run_pair(owner, [](const Line& line, pid_t child) {
    const Session session;
    const int fd = line.receive();
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    const CUdeviceptr memory = open_memory(session.cuda, fd);
    line.go();
    await_death(child);
    EXPECT_EQ(session.read(memory, 10), some_bytes(10));
    unmap(session.cuda, memory);
    const CUdeviceptr again = open_memory(session.cuda, copy);  // the descriptor keeps it too
    EXPECT_EQ(session.read(again, 10), some_bytes(10));
    unmap(session.cuda, again);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(EmulatedCudaMapped, ForgetsAnImporterThatWasKilled) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, IsEmpty());
    return;
  }
  const auto importer = [](const Line& line) {
    const Session session;
    EXPECT_NE(open_memory(session.cuda, line.receive()), 0U);
    line.go();
    ::raise(SIGKILL);
  };
  const int status = run_pair(importer, [](const Line& line, pid_t child) {
    const Session session;
    const auto& cuda = session.cuda;
    const std::size_t before = free_bytes(cuda);
    const auto handle = make(cuda);
    const CUdeviceptr memory = map(cuda, handle, kReadWrite);
    const int fd = descriptor_of(cuda, handle);
    line.send(fd);
    ::close(fd);
    line.await_go();
    await_death(child);
    unmap(cuda, memory);
    EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(cuda), before);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(EmulatedCudaMapped, RefusesDescriptorsOfSomethingElse) {
  if (const auto ended = in_process()) {
    EXPECT_TRUE(succeeded(*ended));
    EXPECT_THAT(ended->report, ElementsAre(HasSubstr("the descriptor is not open")));
    return;
  }
  const Session session;
  const auto& cuda = session.cuda;
  CUmemGenericAllocationHandle handle = 0;
  const int plain = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const int empty = ::memfd_create("empty", MFD_CLOEXEC);
  const int other = ::memfd_create("other", MFD_CLOEXEC);
  EXPECT_EQ(::ftruncate(other, static_cast<off_t>(kBlock + 4096)), 0);
  for (const int fd : {plain, empty, other})
    EXPECT_EQ(import(cuda, fd, &handle), CUDA_ERROR_INVALID_VALUE);
  for (const int fd : {plain, empty, other}) ::close(fd);
  EXPECT_EQ(import(cuda, plain, &handle), CUDA_ERROR_INVALID_VALUE);
  // More than there is, of which an importer cannot know.
  const auto own = make(cuda);
  const int fd = descriptor_of(cuda, own);
  EXPECT_EQ(import(cuda, fd, &handle), CUDA_SUCCESS);
  ::close(fd);
  const CUdeviceptr address = reserve(cuda, 2 * kBlock);
  EXPECT_EQ(cuda.cuMemMap(address, 2 * kBlock, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.cuMemAddressFree(address, 2 * kBlock), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda.cuMemRelease(own), CUDA_SUCCESS);
}

TEST(EmulatedCudaMapped, CountsTheMemoryOfAllProcessesOfAMachine) {
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
  const auto other = [](const Line& line) {
    const Session session;
    EXPECT_NE(session.allocate(600), 0U);
    line.go();
    line.await_go();
    ::raise(SIGKILL);
  };
  const int status = run_pair(other, [](const Line& line, pid_t child) {
    const Session session;
    line.await_go();
    EXPECT_EQ(free_bytes(session.cuda), 400U);
    CUdeviceptr memory = 0;
    EXPECT_EQ(session.cuda.cuMemAlloc(&memory, 401), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(session.cuda.cuMemAlloc(&memory, 300), CUDA_SUCCESS);
    line.go();
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(free_bytes(session.cuda), 700U);
    EXPECT_EQ(session.cuda.cuMemFree(memory), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(session.cuda), 1000U);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
