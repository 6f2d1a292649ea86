// Batch: what the ranks of a replica compute in one forward step. The leader plans it (scheduler.h)
// and sends it to the followers. A follower keeps no state of a sequence except the keys and values
// in its blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"
#include "shared/base/bytes.h"

namespace wsync::engine::generation {

// Consecutive tokens of one sequence. The keys and values of all earlier positions are already in
// the blocks.
struct SequenceSlice {
  std::uint32_t first_position = 0;
  std::vector<Token> tokens;  // from first_position on; at least one
  // Block i holds positions [i * n, (i + 1) * n), n = tokens in a block.
  std::vector<std::uint32_t> blocks;
  bool wants_logits = false;  // of the slice's last token
  friend bool operator==(const SequenceSlice&, const SequenceSlice&) = default;
};

// A batch without slices computes nothing.
struct Batch {
  std::vector<SequenceSlice> slices;
  [[nodiscard]] std::size_t tokens() const noexcept;
  [[nodiscard]] std::size_t logits() const noexcept;  // number of slices that want logits
  friend bool operator==(const Batch&, const Batch&) = default;
};

// Limits of a batch.
struct BatchLimits {
  std::uint32_t vocabulary = 0;
  std::uint32_t max_positions = 0;
  std::uint32_t blocks = 0;  // blocks of a rank
  std::uint32_t block_tokens = 0;
  std::uint32_t tokens = 0;  // tokens in one step
};

// Checks a batch against `limits`, each of which must be above zero. Returns kInvalidInput, with
// the slice, the value and the allowed range, unless all of this holds: each slice has a token; its
// tokens are in the vocabulary and at valid positions; its blocks exist, are distinct and cover its
// positions; the total number of tokens is within the limit of a step; no two slices write to the
// same position of a block.
[[nodiscard]] Result<> check_batch(const Batch& batch, const BatchLimits& limits);

// Little-endian.
[[nodiscard]] Bytes encode(const Batch& batch);
// Returns kInvalidInput unless the bytes are the encoding of a batch that passes check_batch().
[[nodiscard]] Result<Batch> decode_batch(std::span<const std::byte> bytes,
                                         const BatchLimits& limits);

}  // namespace wsync::engine::generation
