// Batch: what the ranks of a replica compute in one forward step. The leader plans it (scheduler.h)
// and sends it to the followers, which keep nothing of a sequence but the keys and values in their
// blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"
#include "shared/base/bytes.h"

namespace wsync::engine::generation {

// Consecutive tokens of one sequence. Keys and values of all positions before them lie in the
// blocks.
struct SequenceSlice {
  std::uint32_t first_position = 0;
  std::vector<Token> tokens;          // at first_position and on; one at least
  std::vector<std::uint32_t> blocks;  // block i has positions [i * n, (i + 1) * n), n its tokens
  bool wants_logits = false;          // of its last token
  friend bool operator==(const SequenceSlice&, const SequenceSlice&) = default;
};

// Without slices there is nothing to compute.
struct Batch {
  std::vector<SequenceSlice> slices;
  [[nodiscard]] std::size_t tokens() const noexcept;
  [[nodiscard]] std::size_t logits() const noexcept;  // slices that want them
  friend bool operator==(const Batch&, const Batch&) = default;
};

// What a batch may not exceed.
struct BatchLimits {
  std::uint32_t vocabulary = 0;
  std::uint32_t max_positions = 0;
  std::uint32_t blocks = 0;  // that a rank has
  std::uint32_t block_tokens = 0;
  std::uint32_t tokens = 0;  // of one step
};

// kInvalidInput, naming the slice, the value and what is allowed, unless each slice has a token,
// all of its tokens are of the vocabulary and at positions that there are, its blocks are different
// ones that a rank has and cover its positions, all tokens together are not more than a step's, and
// no two slices write to one position of a block. Every limit is above zero.
[[nodiscard]] Result<> check_batch(const Batch& batch, const BatchLimits& limits);

// Little-endian.
[[nodiscard]] Bytes encode(const Batch& batch);
// kInvalidInput unless the bytes are what encode() makes of a batch that check_batch() takes.
[[nodiscard]] Result<Batch> decode_batch(std::span<const std::byte> bytes,
                                         const BatchLimits& limits);

}  // namespace wsync::engine::generation
