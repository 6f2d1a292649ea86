#include "shared/base/word_sum.h"

#include <array>
#include <bit>
#include <span>
#include <xxhash.h>

namespace wsync {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

std::uint64_t seed_of(std::string_view tensor_name) noexcept {
  return XXH3_64bits(tensor_name.data(), tensor_name.size());
}

Digest digest_of(const WordSum& sum, std::uint64_t bytes) noexcept {
  const std::array<std::uint64_t, 3> words{sum.product, sum.sum, bytes};
  return digest_of(std::as_bytes(std::span(words)));
}

std::uint64_t fold(const WordSum& sum, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
  return splitmix(splitmix(splitmix(bytes + kStep) ^ sum.product) + kStep + sum.sum);
}

}  // namespace wsync
