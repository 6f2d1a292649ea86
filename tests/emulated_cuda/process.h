// What the system says of another process.
#pragma once

#include <cstdint>

namespace emulated_cuda {

struct Process {
  bool lives = false;         // and has not only to be reaped
  std::uint64_t started = 0;  // tells it from a later one of the same number
};
[[nodiscard]] Process process_of(int id);

}  // namespace emulated_cuda
