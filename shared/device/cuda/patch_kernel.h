// The interface between the host and the kernel that changes single words in place, as a patch
// needs it: name, arguments and launch dimensions, beside those of kernels.h. NVRTC and g++ both
// compile it. Pure; any thread.
//
// One launch executes a whole batch (Stream::change_words). The words of each block are divided
// into units of kWordsPerUnit, numbered across all blocks, and one warp executes one unit. A thread
// executes whole words: it reads a word, writes what changes of it, and reads it again. No other
// thread writes to the same bytes, because no word is in a batch twice.
//
// The table and the sums are passed as for wsync_copy_pieces.
#pragma once

#include <cstdint>

#include "shared/device/changed_word.h"
#include "shared/device/cuda/kernels.h"

namespace wsync::device::cuda {

// extern "C" void wsync_change_words(const KernelWords* blocks, std::uint32_t count,
//                                    std::uint64_t units, KernelSum* sums)
//
// `blocks` and `sums` are device addresses. No dynamic shared memory.
inline constexpr const char* kChangeWordsKernel = "wsync_change_words";

// A WordBlock (device.h) with device addresses. word_table.h makes the table, which contains only
// blocks with words, in ascending order of first_unit. To execute the kernel's body on the host
// (change_words_on_host() in patch_body.h), translate the four addresses in a copy of the table and
// nothing else.
struct KernelWords {
  std::uint64_t to = 0;      // where the block begins in its memory
  std::uint64_t values = 0;  // 8 bytes for each word, at a multiple of 8
  std::uint64_t heads = 0;   // 4 bytes for each word (ChangedWord); 0: dense, word i is number i
  std::uint64_t places = 0;  // 4 bytes for each word: its first held byte, counted from `to`;
                             // 0: word number n begins at byte 8 * n
  std::uint64_t seed = 0;    // of the tensor
  std::uint64_t first_word = 0;  // number of the block's first word in the tensor
  std::uint64_t first_unit = 0;  // number of units in the preceding blocks
  std::uint32_t words = 0;       // at least 1
  std::uint32_t sum = 0;  // KernelSum 2 * sum is of the words before, 2 * sum + 1 of those after
};
static_assert(sizeof(KernelWords) == 64);

// A unit is 8 words for each lane. A sparse block of which 0.1 % of the BF16 elements change is one
// unit.
inline constexpr std::uint32_t kWordsPerUnit = 256;

}  // namespace wsync::device::cuda
