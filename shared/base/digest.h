// XXH3-128 digests. They detect accidents, not attackers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync {

// 128-bit digest. to_string() returns 32 lower-case hex digits, high half first (the canonical form
// of `xxhsum -H2`).
struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
  friend auto operator<=>(const Digest&, const Digest&) = default;
  [[nodiscard]] std::string to_string() const;
  // kInvalidInput unless text is 32 hex digits.
  [[nodiscard]] static Result<Digest> parse(std::string_view text);
};

// Returns the XXH3-128 digest (seed 0) of one span.
[[nodiscard]] Digest digest_of(std::span<const std::byte> bytes) noexcept;

// Computes the XXH3-128 digest (seed 0) of a sequence of spans. Not thread-safe.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(Digester&&) noexcept;
  Digester& operator=(Digester&&) noexcept;
  void update(std::span<const std::byte> bytes) noexcept;
  void update(const Digest& digest) noexcept;  // its 16 canonical bytes
  void update(std::string_view text) noexcept;
  void update(std::uint64_t value) noexcept;  // 8 little-endian bytes
  [[nodiscard]] Digest finish() const noexcept;
  void reset() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wsync
