// The wire format of a message, on every link: a fixed header, the replica's name, the fields.
//
//   offset  bytes  field
//        0      4  magic, kMagic
//        4      2  protocol version, kProtocolVersion
//        6      2  message type
//        8      4  payload length: bytes after the replica's name
//       12      4  rank
//       16     40  fence: epoch, run id (two words), fleet id (two words)
//       56      8  round
//       64      8  request
//       72      4  length of the replica's name
//       76      4  capabilities: the optional fields that the payload has (capability.h)
//       80      n  the replica's name
//     80+n      p  payload: the fields in the order of fields.h
//
// All integers are little-endian. Strings and lists begin with a u32 length. No other
// field is optional.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::control {

inline constexpr std::size_t kEnvelopeBytes = 80;
// Returns the largest size of one encoded message, in bytes.
[[nodiscard]] std::uint64_t encoded_bytes_max() noexcept;

struct Decoded {
  Envelope envelope;
  Message message;
};

// Returns the message type of the struct that a Message holds.
[[nodiscard]] MessageType type_of(const Message& message) noexcept;
// Returns the struct's name ("EngineHello"), or "unknown" for an invalid message type.
[[nodiscard]] std::string_view message_name(MessageType type) noexcept;

// Encodes one message. Sentences for people (reasons, failures) are shortened to
// limits::kSentenceBytes. Any other value over its limit is kInvalidInput, naming message and
// field.
[[nodiscard]] Result<Bytes> encode(const Envelope& envelope, const Message& message);

// Decodes exactly one message. Every byte must be used, and every length and enum is checked before
// memory is allocated for it. kRefused: the protocol version or the message type is unknown, so the
// peer is well-formed but newer or older; answer with an ErrorReply (see decode_envelope).
// The same for fields of a capability that this process lacks, and has therefore not named.
// kInvalidInput: anything else.
[[nodiscard]] Result<Decoded> decode(std::span<const std::byte> bytes);

// Decodes only the envelope of a message, whose type may be unknown, so that a refusal can echo its
// round and request. kInvalidInput or kRefused as decode().
[[nodiscard]] Result<Envelope> decode_envelope(std::span<const std::byte> bytes);

}  // namespace wsync::control
