#include "shared/base/unix_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <mutex>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <vector>

#include "shared/base/limits.h"

namespace wsync {
namespace {

constexpr int kListenBacklog = 128;

Result<sockaddr_un> address_of(const std::string& path) {
  WSYNC_TRY(check_socket_path(path));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> new_socket(bool non_blocking) {
  UniqueFd fd = UniqueFd::made_by([&] {
    return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (non_blocking ? SOCK_NONBLOCK : 0), 0);
  });
  if (!fd.valid()) return fail_errno("socket", errno);
  return fd;
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool is_gone(int errno_value) {
  return errno_value == EPIPE || errno_value == ECONNRESET || errno_value == ENOTCONN;
}

Result<> wait_for(int socket, short events, TimePoint deadline) {
  for (;;) {
    // Rounded up, so that the deadline has really passed when poll() times out.
    const std::int64_t left_ms =
        std::clamp<std::int64_t>(((deadline - now()).count() + 999'999) / 1'000'000, 0, 1 << 30);
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left_ms));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail_errno("poll", errno);
    if (ready == 0 && now() >= deadline)
      return fail(ErrorCode::kDeadline, events == POLLIN
                                            ? "the peer sent nothing before the deadline"
                                            : "the peer read nothing before the deadline");
  }
}

// A lock file that this process holds.
struct HeldFile {
  dev_t device;
  ino_t inode;
  pid_t holder;  // a forked child has the list of its parent, but none of its locks
};
// The lock files that this process holds. A ForkGate keeps a child from getting the list in the
// middle of a change, or its lock while somebody holds it. The list is never destroyed, because a
// lock may be released after main() has returned.
class HeldFiles {
 public:
  HeldFiles() : lock_(mutex()) {}
  std::vector<HeldFile>* operator->() const { return &files(); }
  std::vector<HeldFile>& operator*() const { return files(); }

 private:
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::vector<HeldFile>& files() {
    static auto& files = *new std::vector<HeldFile>;
    return files;
  }
  const ForkGate gate_;
  const std::lock_guard<std::mutex> lock_;
};

bool is_same_file(const HeldFile& file, const struct stat& status) {
  return file.device == status.st_dev && file.inode == status.st_ino && file.holder == ::getpid();
}

void note_held(int lock_fd) {
  struct stat status{};
  if (::fstat(lock_fd, &status) != 0) return;
  HeldFiles()->push_back({.device = status.st_dev, .inode = status.st_ino, .holder = ::getpid()});
}

void forget_held(int lock_fd) {
  struct stat status{};
  if (::fstat(lock_fd, &status) != 0) return;
  const HeldFiles held;
  std::erase_if(*held, [&](const HeldFile& file) { return is_same_file(file, status); });
}

// Whether this process holds the lock of the file that is open as `fd`.
bool is_held_here(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return false;
  const HeldFiles held;
  return std::ranges::any_of(*held,
                             [&](const HeldFile& file) { return is_same_file(file, status); });
}

// Set once, before locks are acquired; see name_lock_holder().
std::string own_command;

// The content of a lock file: the process id, and the command behind a space, if it has one.
LockHolder read_holder(int lock_fd) {
  std::array<char, 64> text{};
  const ssize_t n = ::pread(lock_fd, text.data(), text.size() - 1, 0);
  if (n <= 0) return {};
  const std::string_view all(text.data(), static_cast<std::size_t>(n));
  const std::size_t space = all.find(' ');
  return {.process = std::string(all.substr(0, space)),
          .command = space == std::string_view::npos ? "" : std::string(all.substr(space + 1))};
}

std::string holder_of(int lock_fd) { return read_holder(lock_fd).to_string(); }

// Returns whether `path` still names the file that is open as fd.
bool still_names(const std::string& path, int fd) {
  struct stat by_path{};
  struct stat by_fd{};
  return ::lstat(path.c_str(), &by_path) == 0 && ::fstat(fd, &by_fd) == 0 &&
         by_path.st_ino == by_fd.st_ino && by_path.st_dev == by_fd.st_dev;
}

}  // namespace

std::string LockHolder::to_string() const {
  if (process.empty()) return "another process";
  return fmt::format("process {}{}", process, command.empty() ? "" : fmt::format(" ({})", command));
}

void name_lock_holder(std::string command) { own_command = std::move(command); }

std::optional<LockHolder> lock_holder(const std::string& path) {
  const UniqueFd lock(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!lock.valid()) return std::nullopt;
  LockHolder holder = read_holder(lock.get());
  pid_t pid = 0;
  const char* const end = holder.process.data() + holder.process.size();
  if (std::from_chars(holder.process.data(), end, pid).ec != std::errc() || pid <= 0)
    return std::nullopt;
  if (::kill(pid, 0) != 0 && errno != EPERM) return std::nullopt;
  return holder;
}

Result<> check_socket_path(const std::string& path) {
  if (path.empty() || path.front() != '/')
    return fail(ErrorCode::kInvalidInput,
                fmt::format("socket path '{}' is not absolute: begin it with /", path));
  if (path.back() == '/' || path.find('\0') != std::string::npos)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("socket path '{}' does not name a file", path));
  if (path.size() > kSocketPathBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("socket path '{}' has {} bytes, the kernel allows {}: choose a shorter "
                            "directory",
                            path, path.size(), kSocketPathBytes));
  return {};
}

Result<> make_private_directory(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST)
      return fail_errno(fmt::format("create directory {}", part), errno);
    if (slash == std::string::npos) break;
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return fail_errno(fmt::format("stat {}", path), errno);
  if (!S_ISDIR(status.st_mode))
    return fail(ErrorCode::kRefused, fmt::format("{} is not a directory", path));
  if (status.st_uid != ::geteuid())
    return fail(ErrorCode::kRefused,
                fmt::format("directory {} belongs to user {}, but this process runs as user {}: "
                            "choose a directory that this user owns",
                            path, status.st_uid, ::geteuid()));
  if ((status.st_mode & 077U) != 0)
    return fail(ErrorCode::kRefused, fmt::format("directory {} has mode {:04o}, but other users "
                                                 "must not reach what is in it: set its mode to "
                                                 "0700 (chmod)",
                                                 path, status.st_mode & 07777U));
  return {};
}

Result<LockFile> LockFile::acquire(const std::string& path, const std::string& what, Naming naming,
                                   const std::string& advice) {
  for (;;) {
    UniqueFd fd = UniqueFd::made_by(
        [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600); });
    if (!fd.valid()) return fail_errno(fmt::format("open {}", path), errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return fail_errno(fmt::format("lock {}", path), errno);
      const std::string& held = what.empty() ? path : what;
      if (is_held_here(fd.get()))
        return fail(ErrorCode::kBusy,
                    fmt::format("{} is held by this process ({}) already: close what holds it "
                                "first, or use another path",
                                held, ::getpid()));
      return fail(ErrorCode::kBusy,
                  fmt::format("{} is held by {}: stop it, or use another path{}{}", held,
                              holder_of(fd.get()), advice.empty() ? "" : "; ", advice));
    }
    // The last holder may have removed the file between our open() and our flock().
    if (!still_names(path, fd.get())) continue;
    note_held(fd.get());
    LockFile lock(std::move(fd),
                  path);  // from here on its destructor removes the file after an error
    const std::string own =
        fmt::format("{}{}{}", ::getpid(), own_command.empty() ? "" : " ", own_command);
    if (::ftruncate(lock.fd_.get(), 0) != 0 ||
        ::pwrite(lock.fd_.get(), own.data(), own.size(), 0) != static_cast<ssize_t>(own.size())) {
      const bool is_full = errno == ENOSPC || errno == EDQUOT;
      if (!is_full || naming == Naming::kRequired)
        return fail_errno(fmt::format("write {}", path), errno);
    }
    return lock;
  }
}

Result<LockFile> LockFile::seize(const std::string& path) {
  auto lock = acquire(fmt::format("{}.{}", path, ::getpid()));
  if (!lock) return lock;
  // The rename replaces the holder's file in one step. still_names() is false for the holder from
  // then on.
  if (::rename(lock->path_.c_str(), path.c_str()) != 0)
    return fail_errno(fmt::format("take over {}", path), errno);
  lock->path_ = path;
  return lock;
}

bool LockFile::is_ours() const { return still_names(path_, fd_.get()); }

std::optional<std::string> LockFile::taken_by() const {
  if (is_ours()) return std::nullopt;
  const UniqueFd other(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!other.valid()) return std::nullopt;  // removed, and nobody holds it
  return holder_of(other.get());
}

LockFile::~LockFile() {
  if (!fd_.valid()) return;
  if (still_names(path_, fd_.get())) ::unlink(path_.c_str());
  forget_held(fd_.get());
}

namespace {

// A socket whose lock file nobody holds is left over from a process that has ended, or it belongs
// to a program that has no lock files.
Result<> check_nobody_listens(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  std::string who = "another program has made it";
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return fail_errno("socket to look at " + path, errno);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      if (const auto peer = peer_credentials(fd.get()); peer && peer->pid > 0)
        who = fmt::format("process {} listens there", peer->pid);
      break;
    }
    if (errno == ECONNREFUSED || errno == ENOENT) return {};
    if (errno != EPROTOTYPE) break;  // it is of the type, and somebody has it: EAGAIN, EACCES
  }
  return fail(ErrorCode::kBusy,
              fmt::format("{} is a socket that is not of wsync, and {}: stop that program, or use "
                          "another path",
                          path, who));
}

}  // namespace

Result<SocketPath> SocketPath::claim(const std::string& path, Claim how,
                                     const std::string& advice) {
  WSYNC_TRY(check_socket_path(path));
  WSYNC_TRY(make_private_directory(parent_of(path)));
  bool is_held = false;  // by another process of wsync, whose socket is taken with the lock
  auto lock = [&] {
    auto acquired = LockFile::acquire(path + ".lock", path, LockFile::Naming::kRequired, advice);
    is_held = !acquired && acquired.error().code() == ErrorCode::kBusy;
    return is_held && how == Claim::kTakeOver ? LockFile::seize(path + ".lock")
                                              : std::move(acquired);
  }();
  if (!lock) return fail(lock.error());
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode))
      return fail(
          ErrorCode::kRefused,
          fmt::format("{} exists and is not a socket: remove it, or use another path", path));
    if (!is_held) WSYNC_TRY(check_nobody_listens(path));
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return fail_errno(fmt::format("remove stale socket {}", path), errno);
  } else if (errno != ENOENT) {
    return fail_errno(fmt::format("stat {}", path), errno);
  }
  return SocketPath(std::move(*lock), path);
}

SocketPath::~SocketPath() {
  if (lock_.held() && !lock_.taken_by()) ::unlink(path_.c_str());
}

bool is_claimed(const std::string& path) { return lock_holder(path + ".lock").has_value(); }

Result<PeerCredentials> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return fail_errno("read peer credentials", errno);
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid};
}

Result<ListeningSocket> ListeningSocket::bind(const std::string& path, Claim how) {
  auto claimed = WSYNC_TRY(SocketPath::claim(path, how));
  auto fd = WSYNC_TRY(new_socket(true));
  const auto address = address_of(path);
  if (!address) return fail(address.error());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return fail_errno(fmt::format("bind {}", path), errno);
  if (::listen(fd.get(), kListenBacklog) != 0)
    return fail_errno(fmt::format("listen on {}", path), errno);
  return ListeningSocket(std::move(claimed), std::move(fd));
}

Result<std::optional<AcceptedSocket>> ListeningSocket::accept() {
  for (;;) {
    UniqueFd fd = UniqueFd::made_by(
        [&] { return ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return std::nullopt;
      return fail_errno(fmt::format("accept on {}", path()), errno);
    }
    const auto peer = WSYNC_TRY(peer_credentials(fd.get()));
    if (peer.uid != ::geteuid())
      return fail(ErrorCode::kRefused,
                  fmt::format("connection to {} by process {} of user {}: only user {} may connect",
                              path(), peer.pid, peer.uid, ::geteuid()));
    return AcceptedSocket{.socket = std::move(fd), .peer = peer};
  }
}

Result<AcceptedSocket> ListeningSocket::accept(TimePoint deadline) {
  for (;;) {
    auto accepted = accept();
    if (!accepted && accepted.error().code() != ErrorCode::kRefused)
      return fail(std::move(accepted).error());
    if (accepted && accepted->has_value()) return std::move(**accepted);
    if (const auto ready = wait_readable(fd_.get(), deadline); !ready)
      return fail(ErrorCode::kDeadline, fmt::format("no process connected to {}", path()));
  }
}

Result<UniqueFd> connect_unix(const std::string& path, TimePoint deadline) {
  const auto address = address_of(path);
  if (!address) return fail(address.error());
  const std::int64_t left_us = (deadline - now()).count() / 1000;
  auto fd = WSYNC_TRY(new_socket(left_us <= 0));
  if (left_us > 0) {
    // The kernel limits the wait for room in the listener's queue by the send timeout.
    const timeval timeout{.tv_sec = left_us / 1'000'000, .tv_usec = left_us % 1'000'000};
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0)
      return fail_errno("set connect timeout", errno);
  }
  int connected = 0;
  do {
    connected = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  } while (connected != 0 && errno == EINTR && now() < deadline);
  if (connected != 0) {
    if (errno == EAGAIN || errno == EINTR)
      return fail(
          ErrorCode::kDeadline,
          fmt::format(
              "connect to {}: its queue is full, because the listener accepts no connections",
              path));
    if (errno == ECONNREFUSED)
      return fail(ErrorCode::kPeerLost,
                  fmt::format("connect to {}: no process listens there", path));
    return fail_errno(fmt::format("connect to {}", path), errno);
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    return fail_errno("make socket non-blocking", errno);
  const auto peer = WSYNC_TRY(peer_credentials(fd.get()));
  if (peer.uid != ::geteuid())
    return fail(
        ErrorCode::kRefused,
        fmt::format("{} is served by process {} of user {}, but this process runs as user {}", path,
                    peer.pid, peer.uid, ::geteuid()));
  return fd;
}

Result<std::pair<UniqueFd, UniqueFd>> unix_socket_pair() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0)
    return fail_errno("socketpair", errno);
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes,
                              std::span<const int> fds) {
  if (fds.size() > limits::kFdsPerFrame)
    return fail(ErrorCode::kInvalidInput, fmt::format("{} descriptors in one message, at most {}",
                                                      fds.size(), limits::kFdsPerFrame));
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(limits::kFdsPerFrame * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return 0;
    if (is_gone(errno)) return fail(ErrorCode::kPeerLost, "the peer closed the connection");
    return fail_errno("send", errno);
  }
}

Result<std::size_t> receive_some(int socket, std::span<std::byte> buffer,
                                 std::vector<UniqueFd>& fds) {
  iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(limits::kFdsPerFrame * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  std::vector<UniqueFd> received;  // owned before anything can fail
  // Held until the UniqueFds own the descriptors (fork_guard.h).
  std::optional<ForkGate> gate(std::in_place);
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN) return 0;
    if (is_gone(errno)) return fail(ErrorCode::kPeerLost, "the peer closed the connection");
    return fail_errno("receive", errno);
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.emplace_back(fd);
    }
  }
  gate.reset();
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the peer's descriptors did not all arrive: at most {} may come with "
                            "one message, and this process must be able to open them",
                            limits::kFdsPerFrame));
  if (n == 0) return fail(ErrorCode::kPeerLost, "the peer closed the connection");
  std::move(received.begin(), received.end(), std::back_inserter(fds));
  return static_cast<std::size_t>(n);
}

Result<> wait_readable(int socket, TimePoint deadline) {
  return wait_for(socket, POLLIN, deadline);
}
Result<> wait_writable(int socket, TimePoint deadline) {
  return wait_for(socket, POLLOUT, deadline);
}

}  // namespace wsync
