// Packets of the host link: a frame, the text of a failure, and at most one descriptor. They use a
// Unix socket that keeps packet boundaries (SOCK_SEQPACKET). No call blocks.
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

// Sends one packet. `fd` is borrowed; -1 means none. kPeerLost if the peer is gone or does not
// read.
[[nodiscard]] Result<> send_packet(int socket, const Frame& frame, std::string_view text, int fd);

// Receives one packet; std::nullopt if none is available. kPeerLost at the end of the stream;
// kResourceExhausted if the descriptor of the packet could not be received; kInvalidInput if the
// packet is malformed (its descriptors are closed).
[[nodiscard]] Result<std::optional<Packet>> receive_packet(int socket);

// A socket that listens at `path`, only for this user. Errors as for SocketPath::claim().
struct Listener {
  SocketPath path;
  UniqueFd socket;
};
[[nodiscard]] Result<Listener> listen_at(const std::string& path, Claim how,
                                         const std::string& advice = {});

// Connects to `path`. kPeerLost if nobody serves it.
[[nodiscard]] Result<UniqueFd> connect_to(const std::string& path);

// Returns the process at the other end. kRefused if it belongs to another user, except for root.
[[nodiscard]] Result<PeerCredentials> same_user(int socket);

}  // namespace wsync::transport::memfd
