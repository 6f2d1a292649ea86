// Finds the bytes in which two ranges of memory differ, at about the speed of memory where they are
// equal. Bytes are compared as bits. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shared/base/stream_copy.h"

namespace wsync::patch {

inline constexpr std::size_t kStripeBytes = 64;
inline constexpr std::size_t kDifferenceBytes = 4096;

// One mask for each stripe of 64 bytes. Bit i says whether its byte i differs.
using DifferenceMasks = std::array<std::uint64_t, kDifferenceBytes / kStripeBytes>;

// Compares kDifferenceBytes at both addresses, which may have any alignment. Bit i of the result
// says whether stripe i differs; if none does, `masks` is not specified. All kinds give the same.
[[nodiscard]] std::uint64_t find_differences(const std::byte* a, const std::byte* b,
                                             DifferenceMasks& masks,
                                             CopyKind kind = best_copy_kind()) noexcept;

}  // namespace wsync::patch
