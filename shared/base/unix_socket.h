// Pathname Unix stream sockets: private directories, one lock file per path, descriptor passing and
// peer credentials.
//
// Every socket created here is non-blocking and close-on-exec. The *_some functions never wait; the
// functions with a deadline wait until it. Errors: kPeerLost if the other side is gone, kDeadline
// if the deadline has passed, kBusy if the path belongs to a running process, kInvalidInput for
// paths and peers that break a rule.
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

// Maximum length of a socket path in bytes. The kernel's sun_path holds one more for the final
// zero.
inline constexpr std::size_t kSocketPathBytes = 107;

// kInvalidInput unless `path` is absolute and short enough to be bound.
[[nodiscard]] Result<> check_socket_path(const std::string& path);

// Creates `path` and its missing parents with mode 0700. kRefused if the last directory exists but
// belongs to another user or is accessible to others.
[[nodiscard]] Result<> make_private_directory(const std::string& path);

// Who holds a lock, as it has written itself into the lock file.
struct LockHolder {
  std::string process;  // its process id, in its own pid namespace; empty: unknown
  std::string command;  // "wsync push": a command that ends by itself; empty: any other process
  // For display: "process 12 (wsync push)".
  [[nodiscard]] std::string to_string() const;
};
// Says of this process that it is a command that ends by itself, so that others wait for its locks.
// Not synchronised: call it before locks are acquired.
void name_lock_holder(std::string command);
// Returns the live process of this host that has written itself into the lock file, and has not
// removed it; std::nullopt if there is none. Takes no lock, so that it is in nobody's way.
[[nodiscard]] std::optional<LockHolder> lock_holder(const std::string& path);

// An exclusive lock on a file. It is held until destruction or until the process ends in any way.
// The file is removed with the lock; a file that a killed process left is reused.
class LockFile {
 public:
  // Whether the file must name this process, for others to show. Without it a full disk is no
  // error: the lock itself needs no room.
  enum class Naming : std::uint8_t { kRequired, kIfRoom };
  // kBusy while another holder lives; the sentence names its process id, and `what` the lock
  // protects (empty: the file itself). `advice` follows it behind a semicolon if that holder is
  // another process. Never waits.
  [[nodiscard]] static Result<LockFile> acquire(const std::string& path,
                                                const std::string& what = {},
                                                Naming naming = Naming::kRequired,
                                                const std::string& advice = {});
  // The same, but takes the lock over from a live holder: a new file of ours replaces its file. The
  // old holder can detect this with taken_by().
  [[nodiscard]] static Result<LockFile> seize(const std::string& path);
  LockFile(LockFile&&) noexcept = default;
  LockFile& operator=(LockFile&&) = delete;
  ~LockFile();
  [[nodiscard]] bool held() const noexcept { return fd_.valid(); }  // false after a move
  // Returns false once somebody has seized the lock, even if it was released since, or once the
  // file was removed.
  [[nodiscard]] bool is_ours() const;
  // Returns who has seized the lock since, for display; std::nullopt while it is ours.
  [[nodiscard]] std::optional<std::string> taken_by() const;

 private:
  LockFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

// What to do if a live process holds a path.
enum class Claim : std::uint8_t {
  kIfFree,    // fail with kBusy
  kTakeOver,  // take the path over: the holder keeps its connections, new ones come to us
};

// The right to bind a socket at a path. The directory is private, `<path>.lock` is held, and a
// socket that a killed process left at the path has been removed. Destruction removes the socket
// file, then releases the lock. It does neither if the path was taken over.
class SocketPath {
 public:
  // kBusy while another process holds the path and `how` is kIfFree, and if the socket of a program
  // that is not of wsync is there, which is never taken over; kRefused if something other than a
  // socket exists there.
  // `advice`: as for LockFile::acquire().
  [[nodiscard]] static Result<SocketPath> claim(const std::string& path, Claim how = Claim::kIfFree,
                                                const std::string& advice = {});
  SocketPath(SocketPath&&) noexcept = default;
  SocketPath& operator=(SocketPath&&) = delete;
  ~SocketPath();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // Returns who has taken the path over, for display; std::nullopt while it is ours.
  [[nodiscard]] std::optional<std::string> taken_by() const { return lock_.taken_by(); }

 private:
  SocketPath(LockFile lock, std::string path) : lock_(std::move(lock)), path_(std::move(path)) {}
  LockFile lock_;
  std::string path_;
};

// Whether a live process of this host holds the path, as SocketPath has it. It may not listen yet.
[[nodiscard]] bool is_claimed(const std::string& path);

// The process at the other end, as the kernel reports it (SO_PEERCRED).
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
  // Returns the next connection, or std::nullopt if none is pending. kRefused if the peer runs as
  // another user (the connection is closed); kResourceExhausted if this process has no descriptors
  // left (the connection stays queued).
  [[nodiscard]] Result<std::optional<AcceptedSocket>> accept();
  // Waits for a connection of this user. Connections of other users are closed and skipped.
  [[nodiscard]] Result<AcceptedSocket> accept(TimePoint deadline);
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_.path(); }

 private:
  ListeningSocket(SocketPath path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  SocketPath path_;
  UniqueFd fd_;
};

// Connects to the listener at `path`, which must run as this user. A deadline in the past means one
// attempt without waiting. kNotFound if the path does not exist; kPeerLost if nobody listens there;
// kDeadline if the listener's queue stayed full; kRefused if another user listens.
[[nodiscard]] Result<UniqueFd> connect_unix(const std::string& path, TimePoint deadline);

// Returns two connected sockets of this process.
[[nodiscard]] Result<std::pair<UniqueFd, UniqueFd>> unix_socket_pair();

// Sends the bytes that fit now and returns their number. 0 means that nothing fitted and no
// descriptor was sent. The descriptors (at most limits::kFdsPerFrame, borrowed) are sent with the
// first byte.
[[nodiscard]] Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes,
                                            std::span<const int> fds = {});
// Receives the available bytes and returns their number; 0 if there are none yet. Descriptors are
// appended to `fds`, close-on-exec. kPeerLost at the end of the stream. kInvalidInput if more than
// limits::kFdsPerFrame descriptors arrive in one piece; all descriptors of that piece are closed.
[[nodiscard]] Result<std::size_t> receive_some(int socket, std::span<std::byte> buffer,
                                               std::vector<UniqueFd>& fds);

// Waits until there is something to receive (or the peer is gone).
[[nodiscard]] Result<> wait_readable(int socket, TimePoint deadline);
// Waits until something can be sent (or the peer is gone).
[[nodiscard]] Result<> wait_writable(int socket, TimePoint deadline);

}  // namespace wsync
