#include "bench/gpu_probe/other_process.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace wsync::probe {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20U;

// What a child maps.
struct Order {
  bool by_descriptor = false;
  CUipcMemHandle memory = {};
  CUipcEventHandle event = {};
};

void send(int socket, const Order& order, int fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec io{.iov_base = const_cast<Order*>(&order), .iov_len = sizeof order};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, 0) < 0) std::perror("sendmsg");
}

bool receive(int socket, Order& order, int& fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec io{.iov_base = &order, .iov_len = sizeof order};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, 0) != static_cast<ssize_t>(sizeof order)) return false;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message))
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return true;
}

// Reads the first byte twice: at once, and after the parent has freed its own.
int read_twice(int socket, CUdeviceptr at, const char* way) {
  unsigned char first = 0;
  const auto result = CU(cuMemcpyDtoH)(&first, at, 1);
  std::printf("    %s: the first byte reads as %#x (%s)\n", way, first, result_name(result));
  std::fflush(stdout);
  char go = 0;
  if (::write(socket, &go, 1) != 1 || ::read(socket, &go, 1) != 1) return 4;
  first = 0;
  const auto again = CU(cuMemcpyDtoH)(&first, at, 1);
  std::printf("    %s: after its owner has freed it, it reads as %#x (%s)\n", way, first,
              result_name(again));
  std::fflush(stdout);
  return result == CUDA_SUCCESS ? 0 : 1;
}

int child(int socket) {
  Order order;
  int fd = -1;
  if (!receive(socket, order, fd)) return 2;
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (!open_driver()) return 3;
  CU_MUST(cuInit, 0);
  CU_MUST(cuDeviceGet, &device, 0);
  CU_MUST(cuDevicePrimaryCtxRetain, &context, device);
  CU_MUST(cuCtxSetCurrent, context);
  if (order.by_descriptor) {
    Shareable memory;
    auto result = memory.import(device, kBytes, fd, CU_MEM_ACCESS_FLAGS_PROT_READ);
    std::printf("    descriptor: mapped for reading: %s\n", result_name(result));
    if (result != CUDA_SUCCESS) {
      result = memory.import(device, kBytes, fd, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      std::printf("    !! descriptor: mapped for reading and writing: %s\n", result_name(result));
      return result == CUDA_SUCCESS ? read_twice(socket, memory.at(), "descriptor") : 1;
    }
    return read_twice(socket, memory.at(), "descriptor");
  }
  CUdeviceptr at = 0;
  const auto opened = CU(cuIpcOpenMemHandle)(&at, order.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  CUevent event = nullptr;
  const auto event_opened = CU(cuIpcOpenEventHandle)(&event, order.event);
  std::printf("    IPC handle: memory %s, event %s\n", result_name(opened),
              result_name(event_opened));
  if (opened != CUDA_SUCCESS) return 1;
  return read_twice(socket, at, "IPC handle");
}

constexpr int kNotAsked = 5;

// A child in a PID namespace of its own, with a /proc of that namespace, as in a container. Its
// number there is neither 1 nor that of the parent.
int child_elsewhere(int socket) {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    std::printf("    unshare(CLONE_NEWPID | CLONE_NEWNS): %s\n", std::strerror(errno));
    return kNotAsked;
  }
  const int first = ::fork();
  if (first == 0) {
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
      std::printf("    mount of /proc: %s\n", std::strerror(errno));
      std::fflush(stdout);
      ::_exit(kNotAsked);
    }
    for (int i = 0; i < 20; ++i) {
      const int none = ::fork();
      if (none == 0) ::_exit(0);
      ::waitpid(none, nullptr, 0);
    }
    const int inner = ::fork();
    if (inner == 0) ::_exit(child(socket));
    int status = 0;
    ::waitpid(inner, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ::waitpid(first, &status, 0);
  return WEXITSTATUS(status);
}

}  // namespace

CUresult Shareable::map(CUdevice device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = flags;
  auto result = CU(cuMemAddressReserve)(&at_, bytes_, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = CU(cuMemMap)(at_, bytes_, 0, handle_, 0);
  if (result == CUDA_SUCCESS) result = CU(cuMemSetAccess)(at_, bytes_, &access, 1);
  return result;
}

CUresult Shareable::create(CUdevice device, std::size_t bytes) {
  bytes_ = bytes;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const auto result = CU(cuMemCreate)(&handle_, bytes, &wanted, 0);
  return result == CUDA_SUCCESS ? map(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) : result;
}

CUresult Shareable::import(CUdevice device, std::size_t bytes, int fd, CUmemAccess_flags access) {
  bytes_ = bytes;
  const auto result = CU(cuMemImportFromShareableHandle)(
      &handle_, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return result == CUDA_SUCCESS ? map(device, access) : result;
}

int Shareable::exported() const {
  int fd = -1;
  const auto result =
      CU(cuMemExportToShareableHandle)(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? fd : -1;
}

CUresult Shareable::release() {
  auto result = CU(cuMemUnmap)(at_, bytes_);
  if (result == CUDA_SUCCESS) result = CU(cuMemAddressFree)(at_, bytes_);
  if (result == CUDA_SUCCESS) result = CU(cuMemRelease)(handle_);
  return result;
}

OtherProcesses::OtherProcesses() {
  for (int i = 0; i < 4; ++i) {
    int pair[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
      std::perror("socketpair");
      return;
    }
    const int pid = ::fork();
    if (pid == 0) {
      ::close(pair[0]);
      for (const auto& other : children_) ::close(other.socket);
      ::_exit(i % 2 == 0 ? child(pair[1]) : child_elsewhere(pair[1]));
    }
    ::close(pair[1]);
    children_.push_back({.pid = pid, .socket = pair[0]});
  }
}

void OtherProcesses::ask(CUdevice device) {
  constexpr const char* kWays[] = {
      "IPC handle, same PID namespace", "IPC handle, another PID namespace",
      "descriptor, same PID namespace", "descriptor, another PID namespace"};
  const bool has_descriptors = CU(cuMemCreate) != nullptr;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    const auto& [pid, socket] = children_[i];
    Order order{.by_descriptor = i >= 2};
    CUdeviceptr plain = 0;
    CUevent event = nullptr;
    Shareable memory;
    int fd = -1;
    if (order.by_descriptor && has_descriptors) {
      must(memory.create(device, kBytes), "cuMemCreate and its mapping");
      CU_MUST(cuMemsetD8, memory.at(), 0xa5, kBytes);
      fd = memory.exported();
    } else if (!order.by_descriptor) {
      CU_MUST(cuMemAlloc, &plain, kBytes);
      CU_MUST(cuMemsetD8, plain, 0x5a, kBytes);
      CU_MUST(cuIpcGetMemHandle, &order.memory, plain);
      CU_MUST(cuEventCreate, &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
      CU_MUST(cuIpcGetEventHandle, &order.event, event);
    }
    CU_MUST(cuCtxSynchronize);
    std::printf("%s\n", kWays[i]);
    if (order.by_descriptor && !has_descriptors) {
      std::printf("    not asked: this driver has no cuMemCreate\n");
      ::close(socket);
      ::waitpid(pid, nullptr, 0);
      continue;
    }
    send(socket, order, fd);
    char ready = 0;
    if (::read(socket, &ready, 1) == 1) {
      // The documentation leaves open what an importer of an IPC handle then reads.
      if (order.by_descriptor) must(memory.release(), "cuMemUnmap, cuMemAddressFree, cuMemRelease");
      if (plain != 0) CU_MUST(cuMemFree, plain);
      (void)!::write(socket, &ready, 1);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::printf("  %s\n", code == 0           ? "works"
                          : code == kNotAsked ? "not asked"
                                              : "!! does not work");
    if (fd >= 0) ::close(fd);
    ::close(socket);
  }
  if (!has_descriptors) return;
  Shareable asleep;
  must(asleep.create(device, kBytes), "cuMemCreate and its mapping");
  CUdeviceptr base = 0;
  std::size_t size = 0;
  unsigned int type = 0;
  const auto range = CU(cuMemGetAddressRange)(&base, &size, asleep.at() + kBytes / 2);
  std::printf("memory of cuMemCreate: cuMemGetAddressRange %s, size %zu\n", result_name(range),
              size);
  CU_MUST(cuMemUnmap, asleep.at(), kBytes);
  const auto known =
      CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, asleep.at());
  const auto ranged = CU(cuMemGetAddressRange)(&base, &size, asleep.at());
  std::printf("%safter cuMemUnmap: cuPointerGetAttribute %s, cuMemGetAddressRange %s\n",
              known == CUDA_SUCCESS && ranged == CUDA_SUCCESS ? "!! " : "", result_name(known),
              result_name(ranged));
}

}  // namespace wsync::probe
