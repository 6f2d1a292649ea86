// How much of each GPU's memory is taken: by this process, or, with WSYNC_EMULATED_CUDA_MACHINE, by
// all living processes that share that file. A GPU has one number on the machine for all of them.
#pragma once

#include <cstdint>

namespace emulated_cuda {

// The file's contents: little-endian, and zero at first. Tests read `peak`.
struct Usage {
  static constexpr int kMaxGpus = 16;
  static constexpr int kMaxProcesses = 256;
  std::uint64_t peak[kMaxGpus];  // the most that was ever taken at once
  struct Taken {
    std::uint64_t process;  // 0: nobody
    std::uint64_t started;
    std::uint64_t bytes[kMaxGpus];
  } of[kMaxProcesses];
};

// False when there is not so much left on GPU `number` of the machine.
[[nodiscard]] bool take(int number, std::uint64_t bytes);
void give_back(int number, std::uint64_t bytes);
[[nodiscard]] std::uint64_t taken(int number);

}  // namespace emulated_cuda
