// Pathname Unix stream sockets: private directories, a lock file for each path, descriptors and
// credentials.
//
// Every socket made here is non-blocking and close-on-exec. The *_some functions never wait; the
// functions with a deadline wait with poll(). Errors: kPeerLost when the other side is gone,
// kDeadline when the time is up, kBusy when the path belongs to a running process, kInvalidInput
// for paths and peers that break a rule.
// Thread: free functions may be called from any thread; objects are not synchronised.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync {

// Bytes a socket path may have; the kernel's sun_path holds one more for the final zero.
inline constexpr std::size_t kSocketPathBytes = 107;

// kInvalidInput unless `path` is absolute and short enough to be bound.
[[nodiscard]] Result<> check_socket_path(const std::string& path);

// Creates `path` and its missing parents with mode 0700. kRefused when the last directory exists
// but belongs to another user or is open to others.
[[nodiscard]] Result<> make_private_directory(const std::string& path);

// An exclusive lock on a file, held until destruction or the end of the process, however it ends.
// The file is removed with the lock; one left behind by a killed process is taken over.
class LockFile {
 public:
  // kBusy, naming the holder's process id, while another holder lives. Never waits.
  [[nodiscard]] static Result<LockFile> acquire(const std::string& path);
  // The same, but a holder that lives is left behind: the file is replaced by one of ours, which it
  // can see by taken_by().
  [[nodiscard]] static Result<LockFile> seize(const std::string& path);
  LockFile(LockFile&&) noexcept = default;
  LockFile& operator=(LockFile&&) = delete;
  ~LockFile();
  [[nodiscard]] bool held() const noexcept { return fd_.valid(); }  // false once moved from
  // False once it was seized, also by somebody who has let it go since, or its file removed.
  [[nodiscard]] bool is_ours() const;
  // Who has seized the lock since, for people; nothing while it is ours.
  [[nodiscard]] std::optional<std::string> taken_by() const;

 private:
  LockFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

// What to do about a process that holds a path and lives.
enum class Claim : std::uint8_t {
  kIfFree,    // kBusy
  kTakeOver,  // leave it behind with its connections: new ones come to us
};

// The right to bind a socket at a path: its directory is private, `<path>.lock` is held, and a
// socket that a killed process left there is removed. Destruction removes the socket file, then
// lets the lock go; neither when the path was taken over.
class SocketPath {
 public:
  // kBusy while another process holds the path and is not to be left behind; kRefused when
  // something that is not a socket is there.
  [[nodiscard]] static Result<SocketPath> claim(const std::string& path,
                                                Claim how = Claim::kIfFree);
  SocketPath(SocketPath&&) noexcept = default;
  SocketPath& operator=(SocketPath&&) = delete;
  ~SocketPath();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // Who has taken the path over, for people; nothing while it is ours.
  [[nodiscard]] std::optional<std::string> taken_by() const { return lock_.taken_by(); }

 private:
  SocketPath(LockFile lock, std::string path) : lock_(std::move(lock)), path_(std::move(path)) {}
  LockFile lock_;
  std::string path_;
};

// Who is at the other end, as the kernel says (SO_PEERCRED).
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
[[nodiscard]] Result<PeerCredentials> peer_credentials(int socket);

struct AcceptedSocket {
  UniqueFd socket;
  PeerCredentials peer;
};

// A listening socket on a claimed path.
class ListeningSocket {
 public:
  [[nodiscard]] static Result<ListeningSocket> bind(const std::string& path,
                                                    Claim how = Claim::kIfFree);
  // The next connection; nothing when none waits. kRefused (the connection is closed) when the peer
  // runs as another user; kResourceExhausted when descriptors have run out (it stays queued).
  [[nodiscard]] Result<std::optional<AcceptedSocket>> accept();
  // Waits for a connection of this user; others are closed and waited past.
  [[nodiscard]] Result<AcceptedSocket> accept(TimePoint deadline);
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_.path(); }

 private:
  ListeningSocket(SocketPath path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  SocketPath path_;
  UniqueFd fd_;
};

// Connects to the listener at `path`, which must run as this user. A deadline in the past means
// "now or not at all". kNotFound: no such path; kPeerLost: nobody listens there; kDeadline: its
// queue stayed full; kRefused: another user listens.
[[nodiscard]] Result<UniqueFd> connect_unix(const std::string& path, TimePoint deadline);

// Two connected sockets of this process.
[[nodiscard]] Result<std::pair<UniqueFd, UniqueFd>> unix_socket_pair();

// Sends what fits now and returns its size; 0: nothing fitted, and no descriptor was sent. The
// descriptors (at most limits::kFdsPerFrame, borrowed) go with the first byte.
[[nodiscard]] Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes,
                                            std::span<const int> fds = {});
// Receives what is there; 0: nothing yet. Descriptors are appended to `fds`, close-on-exec. The
// end of the stream is kPeerLost. More descriptors than limits::kFdsPerFrame in one piece are
// kInvalidInput, and all of that piece are closed.
[[nodiscard]] Result<std::size_t> receive_some(int socket, std::span<std::byte> buffer,
                                               std::vector<UniqueFd>& fds);

// Waits until there is something to receive (or the peer is gone).
[[nodiscard]] Result<> wait_readable(int socket, TimePoint deadline);
// Waits until something can be sent (or the peer is gone).
[[nodiscard]] Result<> wait_writable(int socket, TimePoint deadline);

}  // namespace wsync
