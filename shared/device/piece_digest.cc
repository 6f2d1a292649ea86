#include "shared/device/piece_digest.h"

#include <bit>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/device/granule.h"

namespace wsync::device {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

PieceDigest add(const PieceDigest& sum, const PieceDigest& part) noexcept {
  PieceDigest result{.low = sum.low + part.low, .high = sum.high + part.high};
  if (result.low < part.low) ++result.high;
  return result;
}

PieceDigest digest_sum(std::span<const std::byte> bytes, std::uint64_t position) noexcept {
  WSYNC_CHECK(position % kDigestGranule == 0, "what is digested is cut into granules");
  // Consecutive granules go to separate sums, so that no addition waits for the carry of the
  // previous one.
  constexpr std::size_t kChains = 4;
  PieceDigest sums[kChains];
  std::uint64_t i = position / kDigestGranule;
  const std::byte* at = bytes.data();
  std::uint64_t left = bytes.size();
  for (; left >= kChains * kDigestGranule; left -= kChains * kDigestGranule) {
    std::uint64_t words[2 * kChains];
    std::memcpy(words, at, sizeof words);
    for (std::size_t k = 0; k < kChains; ++k)
      granule::add(i + k, words[2 * k], words[2 * k + 1], sums[k].low, sums[k].high);
    at += sizeof words;
    i += kChains;
  }
  PieceDigest sum = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
  for (; left > 0; ++i) {
    std::uint64_t words[2] = {0, 0};
    const std::uint64_t n = left < kDigestGranule ? left : kDigestGranule;
    std::memcpy(words, at, n);
    granule::add(i, words[0], words[1], sum.low, sum.high);
    at += n;
    left -= n;
  }
  return sum;
}

PieceDigest finish_digest(const PieceDigest& sum, std::uint64_t bytes) noexcept {
  // The keys distinguish trailing zero granules from missing ones. Only the length distinguishes
  // the number of valid bytes in the last granule.
  PieceDigest result = sum;
  granule::add(~bytes, bytes, ~bytes, result.low, result.high);
  return result;
}

PieceDigest piece_digest(std::span<const std::byte> bytes) noexcept {
  return finish_digest(digest_sum(bytes, 0), bytes.size());
}

std::uint64_t fold(const PieceDigest& digest) noexcept {
  return granule::key(digest.low) ^ digest.high;
}

std::string to_string(const PieceDigest& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

}  // namespace wsync::device
