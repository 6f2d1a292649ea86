// The work of one thread of wsync_change_words, in a form that a C++ compiler also accepts, as in
// kernels_body.h. Only the reduction of a warp's sums is specific to the GPU (kernels.cu).
#pragma once

#include <cstdint>

#include "shared/base/word_terms.h"
#include "shared/device/cuda/kernels_body.h"
#include "shared/device/cuda/patch_kernel.h"

namespace wsync::device::cuda {

// What a lane adds to the sums of whole words. The few words that the edges of a part cut are added
// one by one (add_counter()).
struct LaneChange {
  std::uint64_t product_before = 0;
  std::uint64_t sum_before = 0;
  std::uint64_t product_after = 0;
  std::uint64_t sum_after = 0;
};

// Returns counter `i` of the lane, in the order of the two KernelSums.
WSYNC_HOST_DEVICE inline std::uint64_t counter_of(const LaneChange& change, std::uint32_t i) {
  const std::uint64_t before = i == 0 ? change.product_before : change.sum_before;
  const std::uint64_t after = i == 2 ? change.product_after : change.sum_after;
  return i < 2 ? before : after;
}

// Where counter `i` of counter_of() is added in the two KernelSums of a tensor.
WSYNC_HOST_DEVICE inline unsigned long long* counter_at(KernelSum* pair, std::uint32_t i) {
  return &pair[i / 2].counters[i % 2];
}

// Any number of threads add to a counter concurrently.
WSYNC_HOST_DEVICE inline void add_counter(unsigned long long* counter, std::uint64_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(counter, value);
#else
  *counter += value;
#endif
}

// Reads what the same thread may have written, out of the memory: not what a register or the cache
// of the multiprocessor holds of it.
template <class T>
WSYNC_HOST_DEVICE inline T load_again(std::uint64_t address) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8)
    return __ldcv(reinterpret_cast<const unsigned long long*>(address));
  else
    return __ldcv(reinterpret_cast<const T*>(address));
#else
  return load<T>(address);
#endif
}

// 0xff in each byte k of which bit k of `bytes` is set.
WSYNC_HOST_DEVICE constexpr std::uint64_t byte_mask(std::uint32_t bytes) {
  constexpr std::uint64_t kEach = 0x0101010101010101;
  constexpr std::uint64_t kDiagonal = 0x8040201008040201;
  constexpr std::uint64_t kLow = 0x7f * kEach;
  const std::uint64_t bits = (bytes * kEach) & kDiagonal;  // byte k is 0 or its bit k
  return ((((bits & kLow) + kLow) | bits) >> 7U & kEach) * kAllBytes;
}

// A word as it was, and as it is afterwards.
struct WordChange {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
};

// The bytes of a word that is not held as a whole, or not at a multiple of its size. Those that are
// held lie one behind the other.
WSYNC_HOST_DEVICE WSYNC_NOINLINE inline WordChange change_bytes(std::uint64_t at,
                                                                std::uint32_t held,
                                                                std::uint32_t changed,
                                                                std::uint64_t value) {
  WordChange word;
  for (std::uint32_t k = 0; k < kSumWordBytes; ++k) {
    if ((held >> k & 1U) == 0) continue;
    word.before |= std::uint64_t{load<unsigned char>(at)} << (8 * k);
    if ((changed >> k & 1U) != 0) store(at, static_cast<unsigned char>(value >> (8 * k)));
    word.after |= std::uint64_t{load_again<unsigned char>(at)} << (8 * k);
    ++at;
  }
  return word;
}

WSYNC_HOST_DEVICE inline WordChange change_word(std::uint64_t at, std::uint64_t changed,
                                                std::uint64_t value) {
  WordChange word;
  word.before = load<std::uint64_t>(at);
  store(at, (word.before & ~changed) | (value & changed));
  word.after = load_again<std::uint64_t>(at);
  return word;
}

// Executes lane `lane` of unit `unit` of `block`, counted from the block's first unit, and adds to
// the lane's contribution to the two sums at `pair`.
WSYNC_HOST_DEVICE inline void change_lane(const KernelWords& block, std::uint64_t unit,
                                          std::uint32_t lane, KernelSum* pair, LaneChange& own) {
  const auto first = static_cast<std::uint32_t>(unit * kWordsPerUnit);
  const std::uint32_t left = block.words - first;
  const std::uint32_t end = first + (left < kWordsPerUnit ? left : kWordsPerUnit);
  for (std::uint32_t i = first + lane; i < end; i += kWarpLanes) {
    const std::uint32_t head =
        block.heads == 0 ? pack({.number = i})
                         : load<std::uint32_t>(block.heads + std::uint64_t{i} * sizeof(i));
    const auto value = load<std::uint64_t>(block.values + std::uint64_t{i} * kSumWordBytes);
    const std::uint32_t number = head % kWordNumbers;
    const std::uint32_t changed = head >> kChangedBytesShift & kAllBytes;
    const std::uint32_t held = head >> kHeldBytesShift & kAllBytes;
    const std::uint64_t at =
        block.to + (block.places == 0
                        ? std::uint64_t{number} * kSumWordBytes
                        : load<std::uint32_t>(block.places + std::uint64_t{i} * sizeof(i)));
    const WordChange word = held == kAllBytes && at % kSumWordBytes == 0
                                ? change_word(at, byte_mask(changed), value)
                                : change_bytes(at, held, changed, value);
    const std::uint64_t index = block.first_word + number;
    const std::uint64_t key = key_of(static_cast<std::uint32_t>(index % kSumKeyCount));
    const std::uint64_t factor = sum_factor(block.seed, index / kSumKeyCount);
    const std::uint64_t product_before = keyed_product(word.before, key) * factor;
    const std::uint64_t product_after = keyed_product(word.after, key) * factor;
    if ((head & kEdgeWord) == 0) {
      own.product_before += product_before;
      own.sum_before += word.before;
      own.product_after += product_after;
      own.sum_after += word.after;
    } else {
      add_counter(&pair[0].counters[2], product_before);
      add_counter(&pair[0].counters[3], word.before);
      add_counter(&pair[1].counters[2], product_after);
      add_counter(&pair[1].counters[3], word.after);
    }
  }
}

// Returns the index of the block that contains unit `unit`. `count` must be at least 1.
WSYNC_HOST_DEVICE inline std::uint32_t block_of(const KernelWords* blocks, std::uint32_t count,
                                                std::uint64_t unit) {
  std::uint32_t low = 0;
  std::uint32_t high = count;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (blocks[middle].first_unit <= unit)
      low = middle;
    else
      high = middle;
  }
  return low;
}

#ifndef __CUDACC__
// Executes a whole launch on the host, thread by thread, with the kernel's arguments in the same
// order. All addresses are host addresses: `blocks`, `sums`, and the four of every block.
inline void change_words_on_host(const KernelWords* blocks, std::uint32_t count,
                                 std::uint64_t units, KernelSum* sums) {
  for (std::uint64_t unit = 0; unit < units; ++unit) {
    const KernelWords& block = blocks[block_of(blocks, count, unit)];
    KernelSum* const pair = sums + std::size_t{2} * block.sum;
    for (std::uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      LaneChange own;
      change_lane(block, unit - block.first_unit, lane, pair, own);
      for (std::uint32_t i = 0; i < 4; ++i) add_counter(counter_at(pair, i), counter_of(own, i));
    }
  }
}
#endif

}  // namespace wsync::device::cuda
