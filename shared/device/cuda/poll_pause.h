// How long a thread that waits for a GPU sleeps between two questions.
#pragma once

#include <algorithm>
#include <chrono>

namespace wsync::device::cuda {

// At least `shortest`, and 1 % of what has been waited, 1 ms at most: so what is waited for is seen
// at most 1 % later, and a GPU that hangs does not take a third of a core until it is given up.
// Thread: any.
[[nodiscard]] constexpr std::chrono::nanoseconds poll_pause(
    std::chrono::nanoseconds waited, std::chrono::nanoseconds shortest) noexcept {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(1);
  constexpr int kPartOfTheWait = 100;
  return std::clamp(waited / kPartOfTheWait, shortest, kLongest);
}

}  // namespace wsync::device::cuda
