// The messages between ranks over Gloo, which matches sends and receives by slot.
//
// A message has two slots: one for its length (8 bytes) and, if it is not empty, one for its
// payload. The number of the payload slot includes the size: Gloo would write past the end of a
// buffer that is too small, and ends the process when it detects that.
#pragma once

#include <array>
#include <cstdint>

#include "shared/base/error.h"
#include "shared/process_group/gloo/gloo_group.h"

namespace wsync::collective::gloo {

inline constexpr unsigned kNumberBits = 24;  // message number of a pair; keeps them in order
inline constexpr std::uint64_t kReasonSlot = ~0ULL;

[[nodiscard]] constexpr std::uint64_t length_slot(std::uint64_t number) {
  return number % (1ULL << kNumberBits);
}
[[nodiscard]] constexpr std::uint64_t payload_slot(std::uint64_t number, std::uint64_t bytes) {
  return 1ULL << 63U | bytes << kNumberBits | length_slot(number);
}
static_assert(kGlooMessageBytes < 1ULL << (63U - kNumberBits));

// Sent by a rank that breaks the group to every other rank.
struct Farewell {
  ErrorCode code = ErrorCode::kInternal;
  std::uint32_t bytes = 0;
  std::array<char, 1024> text{};
};

}  // namespace wsync::collective::gloo
