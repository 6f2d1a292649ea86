#include "shared/transport/memfd/packet.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/transport/limits.h"

namespace wsync::transport::memfd {
namespace {

constexpr int kBacklog = 128;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  WSYNC_TRY(check_socket_path(path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> new_socket() {
  UniqueFd fd = UniqueFd::made_by(
      [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!fd.valid()) return fail_errno("make a Unix socket", errno);
  return fd;
}

constexpr std::size_t kDescriptorsMax = 2;  // of a packet

// Takes every descriptor out of a message.
std::vector<UniqueFd> take_descriptors(msghdr& message) {
  std::vector<UniqueFd> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

Result<> send_packet(int socket, const Frame& frame, std::string_view text,
                     const Descriptors& descriptors) {
  auto header = encode_frame(frame);
  std::array<iovec, 2> parts{iovec{header.data(), header.size()},
                             iovec{const_cast<char*>(text.data()), text.size()}};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (descriptors.memory >= 0) {
    const std::array<int, kDescriptorsMax> sent{descriptors.memory, descriptors.patch};
    const std::size_t bytes = (descriptors.patch >= 0 ? 2 : 1) * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(part), sent.data(), bytes);
  }
  ssize_t n = 0;
  do n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return {};
  return fail(ErrorCode::kPeerLost, fmt::format("send on the host link: {}", std::strerror(errno)));
}

Result<std::optional<Packet>> receive_packet(int socket) {
  std::array<std::byte, kFrameBytes> header;
  std::string text(limits::kStreamTextBytes, '\0');
  std::array<iovec, 2> parts{iovec{header.data(), header.size()}, iovec{text.data(), text.size()}};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  do n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (n < 0) return fail(ErrorCode::kPeerLost, fmt::format("host link: {}", std::strerror(errno)));
  if (n == 0) return fail(ErrorCode::kPeerLost, "the other end of the host link has gone");
  std::vector<UniqueFd> descriptors = take_descriptors(message);
  const auto size = static_cast<std::size_t>(n);
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return fail(ErrorCode::kResourceExhausted,
                "host link: the descriptor that came with a packet could not be taken: raise the "
                "limit of open files of this process (ulimit -n), or let its sandbox pass "
                "descriptors");
  if (size < kFrameBytes || (message.msg_flags & MSG_TRUNC) != 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("host link: a packet of {} bytes is no frame of {}", size, kFrameBytes));
  auto frame = WSYNC_TRY(decode_frame(header));
  Packet packet{.frame = frame};
  text.resize(size - kFrameBytes);
  const std::uint64_t text_bytes = frame.type == FrameType::kFailure ? frame.bytes : 0;
  const bool has_memory = frame.type == FrameType::kArena || frame.type == FrameType::kChanges;
  const std::size_t least = has_memory ? 1 : 0;
  const std::size_t most = least + (frame.type == FrameType::kArena && !frame.base.none() ? 1 : 0);
  if (text.size() != text_bytes || descriptors.size() < least || descriptors.size() > most)
    return fail(ErrorCode::kInvalidInput,
                "host link: text or descriptors do not belong to the frame's type");
  packet.text = std::move(text);
  if (!descriptors.empty()) packet.fd = std::move(descriptors[0]);
  if (descriptors.size() > 1) packet.patch = std::move(descriptors[1]);
  return packet;
}

Result<Listener> listen_at(const std::string& path, Claim how, const std::string& advice) {
  const auto address = address_of(path);
  if (!address) return fail(address.error());
  auto claimed = WSYNC_TRY(SocketPath::claim(path, how, advice));
  auto socket = WSYNC_TRY(new_socket());
  const auto* any = reinterpret_cast<const sockaddr*>(&*address);
  // Before bind(), the mode of the socket itself becomes the mode of its path.
  if (::fchmod(socket.get(), 0600) != 0 || ::bind(socket.get(), any, sizeof *address) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return fail_errno("listen at " + path, errno);
  return Listener{.path = std::move(claimed), .socket = std::move(socket)};
}

Result<UniqueFd> connect_to(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return fail(address.error());
  auto socket = new_socket();
  if (!socket) return socket;
  const auto* any = reinterpret_cast<const sockaddr*>(&*address);
  if (::connect(socket->get(), any, sizeof *address) != 0)
    return fail(ErrorCode::kPeerLost, fmt::format("connect to {}: {}", path, std::strerror(errno)));
  return socket;
}

Result<PeerCredentials> same_user(int socket) {
  auto peer = peer_credentials(socket);
  if (!peer) return peer;
  if (peer->uid != ::geteuid() && peer->uid != 0)
    return fail(ErrorCode::kRefused, fmt::format("process {} belongs to user {}, expected {}",
                                                 peer->pid, peer->uid, ::geteuid()));
  return peer;
}

}  // namespace wsync::transport::memfd
