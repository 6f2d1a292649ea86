// Checks a batch of Stream::change_words, and makes the table that the kernel reads, for every
// backend. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/device/cuda/patch_kernel.h"
#include "shared/device/device.h"

namespace wsync::device {

struct WordTable {
  std::vector<cuda::KernelWords> blocks;  // empty = nothing to launch
  std::uint64_t units = 0;
};

// `sums`: size of the span of sums, two for each index. Leaves out blocks without words.
// kInvalidInput for words outside of their memory, memory that may not be written, addresses that
// are no multiple of what lies there, an invalid sum index, or too many units.
[[nodiscard]] Result<WordTable> word_table(std::span<const WordBlock> blocks, std::size_t sums);

}  // namespace wsync::device
