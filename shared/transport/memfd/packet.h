// Packets of the host link: a frame, the text of a failure, and at most two descriptors. They use a
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
  UniqueFd fd;       // arena: its memory; changes: sealed memory (sealed_changes.h)
  UniqueFd patch;    // arena only, if its frame has a base: sealed memory; may be missing
};

// The descriptors of a packet that is sent, borrowed; -1 means none. Without the first no patch.
struct Descriptors {
  int memory = -1;  // Packet::fd
  int patch = -1;
};

// Sends one packet. kPeerLost if the peer is gone or does not read.
[[nodiscard]] Result<> send_packet(int socket, const Frame& frame, std::string_view text,
                                   const Descriptors& descriptors = {});

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
