#include "tests/emulated_nccl/rendezvous.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace emulated_nccl {
namespace {

constexpr int kPollMilliseconds = 5;
constexpr char kPrefix[] = "wsync-emulated-nccl-";

// As NCCL 2.30 and newer.
constexpr int kOldestSharing = 23000;
bool shared_gpus() {
  const char* set = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int version = 0;
  ncclGetVersion(&version);
  return set != nullptr && std::string_view(set) == "1" && version >= kOldestSharing;
}

// Its name begins with a zero byte: abstract, gone with its last descriptor.
struct Address {
  sockaddr_un at{};
  socklen_t bytes = 0;
};

Address address_of(const ncclUniqueId& id) {
  Address address;
  address.at.sun_family = AF_UNIX;
  const std::size_t length = ::strnlen(id.internal, sizeof address.at.sun_path - 1);
  std::memcpy(address.at.sun_path + 1, id.internal, length);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

bool readable(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, kPollMilliseconds) > 0;
}

bool send_answer(int socket, ncclResult_t result, int fd) {
  iovec part{.iov_base = &result, .iov_len = sizeof result};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof result;
}

ncclResult_t receive_answer(int socket, int& fd) {
  ncclResult_t result = ncclSystemError;
  iovec part{.iov_base = &result, .iov_len = sizeof result};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof result) return ncclRemoteError;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return result;
}

// The maker's side of one id.
class Listener {
 public:
  explicit Listener(int socket) : socket_(socket), thread_([this] { serve(); }) {}
  ~Listener() {
    stop_.store(true);
    thread_.join();
    for (const Guest& guest : guests_) ::close(guest.socket);
    ::close(socket_);
  }
  bool over() const { return over_.load(); }

 private:
  struct Guest {
    int socket = -1;
    Hello hello;
    ncclResult_t result = ncclSuccess;
  };

  void serve() {
    while (!stop_.load()) {
      if (!readable(socket_)) continue;
      Guest guest{.socket = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC)};
      if (guest.socket < 0) continue;
      if (::recv(guest.socket, &guest.hello, sizeof guest.hello, 0) != sizeof guest.hello) {
        ::close(guest.socket);
        continue;
      }
      guests_.push_back(guest);
      if (guests_.size() == guests_.front().hello.size) break;
    }
    if (!stop_.load()) answer();
    over_.store(true);
  }

  // As NCCL: those who see the fault say so, the others only that somebody did.
  void judge() {
    const auto same_gpu = [](const Guest& a, const Guest& b) {
      return !shared_gpus() && a.hello.gpu == b.hello.gpu;
    };
    bool bad = false;
    for (Guest& a : guests_)
      for (const Guest& b : guests_)
        if (&a != &b && (same_gpu(a, b) || a.hello.rank == b.hello.rank))
          a.result = ncclInvalidUsage;
    for (const Guest& guest : guests_) bad = bad || guest.result != ncclSuccess;
    for (Guest& guest : guests_)
      if (bad && guest.result == ncclSuccess) guest.result = ncclRemoteError;
  }

  void answer() {
    judge();
    const int fd = ::memfd_create("emulated nccl", MFD_CLOEXEC);
    const bool sized = fd >= 0 && ::ftruncate(fd, sizeof(Segment)) == 0;
    for (const Guest& guest : guests_) {
      const ncclResult_t result = sized ? guest.result : ncclSystemError;
      send_answer(guest.socket, result, result == ncclSuccess ? fd : -1);
    }
    if (fd >= 0) ::close(fd);
  }

  const int socket_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> over_ = false;
  std::vector<Guest> guests_;
  std::thread thread_;
};

struct Listeners {
  std::mutex mutex;
  std::vector<std::unique_ptr<Listener>> all;
};
Listeners& listeners() {
  static Listeners& one = *new Listeners;
  return one;
}

int connect_to(const ncclUniqueId& id) {
  const Address address = address_of(id);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address.at), address.bytes) == 0)
    return socket;
  ::close(socket);
  return -1;
}

}  // namespace

ncclResult_t make_unique_id(ncclUniqueId& id) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return ncclSystemError;
  id = {};
  const std::string name = kPrefix + std::to_string(::getpid()) + "-" + std::to_string(random);
  std::copy(name.begin(), name.end(), id.internal);
  const Address address = address_of(id);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket < 0) return ncclSystemError;
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address.at), address.bytes) != 0 ||
      ::listen(socket, static_cast<int>(kMaxRanks)) != 0) {
    ::close(socket);
    return ncclSystemError;
  }
  const std::lock_guard lock(listeners().mutex);
  std::erase_if(listeners().all, [](const auto& listener) { return listener->over(); });
  listeners().all.push_back(std::make_unique<Listener>(socket));
  return ncclSuccess;
}

ncclResult_t meet(const ncclUniqueId& id, const Hello& hello, const std::atomic<bool>& stop,
                  Segment*& segment) {
  const int socket = connect_to(id);
  if (socket < 0) return ncclRemoteError;
  ncclResult_t result = ncclInProgress;
  int fd = -1;
  if (::send(socket, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) result = ncclRemoteError;
  while (result == ncclInProgress && !stop.load())
    if (readable(socket)) result = receive_answer(socket, fd);
  ::close(socket);
  if (result == ncclSuccess) {
    void* at = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) result = ncclSystemError;
    if (at != MAP_FAILED) segment = static_cast<Segment*>(at);
  }
  if (fd >= 0) ::close(fd);
  return result;
}

void stop_listening() {
  const std::lock_guard lock(listeners().mutex);
  listeners().all.clear();
}

}  // namespace emulated_nccl
