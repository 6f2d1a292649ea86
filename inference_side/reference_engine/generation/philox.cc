#include "inference_side/reference_engine/generation/philox.h"

namespace wsync::engine::generation {
namespace {

// From the paper: the multipliers of a round, and the increments of the key after each round.
constexpr std::array<std::uint64_t, 2> kPhiloxMultipliers{0xD2511F53U, 0xCD9E8D57U};
constexpr std::array<std::uint32_t, 2> kPhiloxWeyl{0x9E3779B9U, 0xBB67AE85U};
constexpr int kPhiloxRounds = 10;

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = kPhiloxMultipliers[0] * counter[0];
    const std::uint64_t b = kPhiloxMultipliers[1] * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32U) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32U) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

}  // namespace wsync::engine::generation
