// WordSum: the sum by which the bytes of a tensor are compared everywhere: in the trainer's arena,
// on the wire, in the copies of sidecars, and in the memory of engines and GPUs. It is additive:
// the sum of a tensor is the sum of the sums of its parts, in any order and with any division, so
// that whoever reads or copies a part can compute its share in the same loop.
//
//   words      the bytes of the tensor as little-endian 64-bit words; the last one is padded with
//              zeros. Word i belongs to block i / 512 (4 KiB).
//   product    the sum over all blocks b of m(b) times the sum over the words w of the block of
//              low32(x) * high32(x), where x = w ^ k(i mod 512)
//   sum        the sum of all words
//   keys       k: the first 512 numbers of the generator splitmix64 from the state "wsync"
//   factors    m(b) = mix(seed + (b + 1) * 0x9e3779b97f4a7c15) | 1, where `mix` is the output
//              function of splitmix64 and `seed` is that of the tensor
//
// All arithmetic is mod 2^64. The generator is that of Steele, Lea and Flood (Fast Splittable
// Pseudorandom Number Generators, OOPSLA 2014). The product of halves of a keyed word is that of
// the hash family NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999, section 4.2). A
// change of a single word always changes `sum`. Words that change places within a block are found
// by their keys, blocks by their factors, and tensors that are taken for each other by their seeds.
// Words that change in several places so that `sum` stays the same are missed with a probability of
// about 2^-32 for two words of a block, less for more. It finds accidents, not attackers.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/word_terms.h"

namespace wsync {

struct WordSum {
  std::uint64_t product = 0;
  std::uint64_t sum = 0;
  WordSum& operator+=(const WordSum& part) noexcept {
    product += part.product;
    sum += part.sum;
    return *this;
  }
  WordSum& operator-=(const WordSum& part) noexcept {
    product -= part.product;
    sum -= part.sum;
    return *this;
  }
  friend WordSum operator+(WordSum a, const WordSum& b) noexcept { return a += b; }
  friend bool operator==(const WordSum&, const WordSum&) = default;
};

// Where bytes lie in what is summed.
struct SumPlace {
  std::uint64_t seed = 0;      // of the tensor
  std::uint64_t position = 0;  // of the first byte in the tensor: a multiple of kSumWordBytes
};

// The seed of a tensor: XXH3-64 of its name.
[[nodiscard]] std::uint64_t seed_of(std::string_view tensor_name) noexcept;
// The digest of a tensor of that many bytes with this sum. The length tells trailing zeros from
// missing bytes of the last word.
[[nodiscard]] Digest digest_of(const WordSum& sum, std::uint64_t bytes) noexcept;
// 64 bits of it, for messages that carry one number for each of many parts.
[[nodiscard]] std::uint64_t fold(const WordSum& sum, std::uint64_t bytes) noexcept;

}  // namespace wsync
