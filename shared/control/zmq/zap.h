// The question that libzmq asks before it admits a connection (ZeroMQ RFC 27, ZAP), and its answer.
// Pure: the socket that carries them is in socket.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::control {

// A router asks in this domain, and answers nothing in another one.
inline constexpr std::string_view kZapDomain = "wsync";
inline constexpr std::size_t kZapRequestParts = 7;  // with one credential, as CURVE has
inline constexpr std::size_t kZapReplyParts = 6;

enum class ZapStatus : std::uint8_t {
  kAdmitted,  // 200
  kRefused,   // 400
  kBroken,    // 500: not a question of this protocol
};

struct ZapRequest {
  std::string id;          // the answer repeats it
  std::string address;     // of the peer
  std::string public_key;  // of the peer, Z85; the peer has proven that it has the secret half
};

// The parts of a question without its empty delimiter. kInvalidInput, with what was expected, for
// another version, domain or mechanism, and for credentials that are not one key.
[[nodiscard]] Result<ZapRequest> parse_zap_request(std::span<const std::string> parts);
// The parts of the answer, without the delimiter. `user` goes with each message of the connection;
// it is left out unless the status is kAdmitted.
[[nodiscard]] std::array<std::string, kZapReplyParts> zap_reply(const std::string& id,
                                                                ZapStatus status,
                                                                const std::string& user);

}  // namespace wsync::control
