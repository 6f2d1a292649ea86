// What ranks send each other over Gloo, which matches what is sent and received by slot.
//
// A message has two slots: of its length, 8 bytes, and of its payload, when it is not empty. The
// size is a part of the latter: Gloo would write past the end of memory that is too small, and ends
// the process when it sees that.
#pragma once

#include <array>
#include <cstdint>

#include "shared/base/error.h"
#include "shared/process_group/gloo/gloo_group.h"

namespace wsync::collective::gloo {

inline constexpr unsigned kNumberBits = 24;  // of a pair's messages, which keeps them in order
inline constexpr std::uint64_t kReasonSlot = ~0ULL;

[[nodiscard]] constexpr std::uint64_t length_slot(std::uint64_t number) {
  return number % (1ULL << kNumberBits);
}
[[nodiscard]] constexpr std::uint64_t payload_slot(std::uint64_t number, std::uint64_t bytes) {
  return 1ULL << 63U | bytes << kNumberBits | length_slot(number);
}
static_assert(kGlooMessageBytes < 1ULL << (63U - kNumberBits));

// What a rank that breaks the group sends to every other one.
struct Farewell {
  ErrorCode code = ErrorCode::kInternal;
  std::uint32_t bytes = 0;
  std::array<char, 1024> text{};
};

}  // namespace wsync::collective::gloo
