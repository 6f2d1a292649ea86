#include "shared/base/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "shared/base/check.h"

namespace wsync {

std::string Digest::to_string() const { return fmt::format("{:016x}{:016x}", high, low); }

Result<Digest> Digest::parse(std::string_view text) {
  Digest digest;
  if (text.size() != 32)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("digest '{}' has {} characters; expected 32 hex digits", text, text.size()));
  for (std::size_t i = 0; i < 32; ++i) {
    const char c = text[i];
    std::uint64_t nibble = 0;
    if (c >= '0' && c <= '9')
      nibble = static_cast<std::uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      nibble = static_cast<std::uint64_t>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      nibble = static_cast<std::uint64_t>(c - 'A' + 10);
    else
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("digest '{}' has a character that is not a hex digit", text));
    std::uint64_t& half = i < 16 ? digest.high : digest.low;
    half = (half << 4U) | nibble;
  }
  return digest;
}

Digest digest_of(std::span<const std::byte> bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

struct Digester::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }
};

Digester::Digester() : state_(std::make_unique<State>()) {
  WSYNC_CHECK(state_->xxh != nullptr, "out of memory for a digest state");
  reset();
}
Digester::~Digester() = default;
Digester::Digester(Digester&&) noexcept = default;
Digester& Digester::operator=(Digester&&) noexcept = default;

void Digester::update(std::span<const std::byte> bytes) noexcept {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
void Digester::update(const Digest& digest) noexcept {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH128_hash_t{digest.low, digest.high});
  update(std::as_bytes(std::span(canonical.digest)));
}
void Digester::update(std::string_view text) noexcept {
  update(std::as_bytes(std::span(text.data(), text.size())));
}
void Digester::update(std::uint64_t value) noexcept { update(std::as_bytes(std::span(&value, 1))); }
Digest Digester::finish() const noexcept {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {.low = hash.low64, .high = hash.high64};
}
void Digester::reset() noexcept { XXH3_128bits_reset(state_->xxh); }

}  // namespace wsync
