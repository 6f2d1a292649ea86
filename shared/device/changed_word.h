// How one word of a WordBlock (device.h) is described in 32 bits: which word of the block it is,
// which of its bytes the memory holds, and which of these are written. NVRTC and g++ both compile
// it. Pure; any thread.
#pragma once

#include <cstdint>

namespace wsync::device {

// Numbers of words are below this one.
inline constexpr std::uint32_t kWordNumbers = std::uint32_t{1} << 15U;
inline constexpr std::uint32_t kChangedBytesShift = 15;
inline constexpr std::uint32_t kHeldBytesShift = 23;
inline constexpr std::uint32_t kEdgeWord = std::uint32_t{1} << 31U;
inline constexpr std::uint32_t kAllBytes = 0xff;

struct ChangedWord {
  std::uint32_t number = 0;           // counted from the first word of the block
  std::uint32_t changed = kAllBytes;  // bit k: byte k of the word is written; only held ones are
  std::uint32_t held = kAllBytes;     // bit k: the memory holds byte k of the word
  bool is_edge = false;               // its sums are counted as those of a cut word (SplitSum)
};

[[nodiscard]] constexpr std::uint32_t pack(const ChangedWord& word) noexcept {
  return word.number | word.changed << kChangedBytesShift | word.held << kHeldBytesShift |
         (word.is_edge ? kEdgeWord : 0U);
}

}  // namespace wsync::device
