// Packets of the host link: a frame, the text of a failure, and at most one descriptor, over a Unix
// socket that keeps packet boundaries (SOCK_SEQPACKET). No call blocks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/base/unix_socket.h"
#include "shared/transport/frame.h"

namespace wsync::transport::memfd {

struct Packet {
  Frame frame;
  std::string text;  // failure only
  UniqueFd fd;       // arena only
};

// `fd` is -1 for none; it is borrowed. kPeerLost when the peer has gone or does not read.
[[nodiscard]] Result<> send_packet(int socket, const Frame& frame, std::string_view text, int fd);

// One packet; nothing when none is there. kPeerLost at the end of the stream; kResourceExhausted
// when its descriptor could not be taken; kInvalidInput when the packet makes no sense (its
// descriptors are closed).
[[nodiscard]] Result<std::optional<Packet>> receive_packet(int socket);

// A socket that listens at `path`, for this user alone. Errors as SocketPath::claim().
struct Listener {
  SocketPath path;
  UniqueFd socket;
};
[[nodiscard]] Result<Listener> listen_at(const std::string& path, Claim how);

// Connects to `path`. kPeerLost when nobody serves there.
[[nodiscard]] Result<UniqueFd> connect_to(const std::string& path);

// The process at the other end: kRefused when it belongs to another user (root aside).
[[nodiscard]] Result<PeerCredentials> same_user(int socket);

}  // namespace wsync::transport::memfd
