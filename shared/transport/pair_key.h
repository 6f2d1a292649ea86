// The key of a pair of ends: of one source and one receiver, under one fence. Both ends of a
// connection prove that they have it.
//
// The source has a secret. The key is derived of it, of the fence and of the name of the receiver.
// So the source need not be told who will come: the receiver names itself and the fence, and the
// source derives the same key. The coordinator has the secrets of all sources and gives each
// receiver its key, over the encrypted control channel.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::transport {

// The fence of the round, as in the control messages and in the arena's header.
struct StreamFence {
  std::uint64_t epoch = 0;
  std::array<std::uint64_t, 2> run_id{};
  friend bool operator==(const StreamFence&, const StreamFence&) = default;
  friend auto operator<=>(const StreamFence&, const StreamFence&) = default;
};

// 256 random bits, of a source or of a pair. Never logged.
using PairSecret = std::array<std::byte, 32>;

// Whose key it is. It travels in the clear, when a connection begins.
struct PairIdentity {
  StreamFence fence;
  std::string receiver;  // at most kPairReceiverBytes
  friend bool operator==(const PairIdentity&, const PairIdentity&) = default;
};
inline constexpr std::size_t kPairReceiverBytes = 256;

// Returns std::nullopt if these are not as many bytes as a secret has.
[[nodiscard]] std::optional<PairSecret> pair_secret_of(std::span<const std::byte> bytes);

struct PairKey {
  PairIdentity identity;
  PairSecret secret{};
};

// The form in which the identity travels.
[[nodiscard]] std::string to_text(const PairIdentity& identity);
// Returns std::nullopt for everything that to_text() does not make.
[[nodiscard]] std::optional<PairIdentity> parse_pair_identity(std::string_view text);

// New random bits of the operating system.
[[nodiscard]] PairSecret make_pair_secret();
// The key by which `identity` receives from the source with this secret. HKDF of SHA-256 (RFC
// 5869), so a receiver learns neither the secret nor the key of another receiver or fence.
[[nodiscard]] PairKey derive_pair_key(const PairSecret& source, PairIdentity identity);

}  // namespace wsync::transport
