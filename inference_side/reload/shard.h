// Shard: the position of the block of a tensor that one rank takes, in the bytes of the whole
// tensor. It is described by nested strides, so that a column range of a matrix with a million rows
// needs a few numbers and not a million segments. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::reload {

// The rank's own bytes ("shard bytes") are the block in row-major order, dense. They come from
// `run_count()` runs of `run_bytes()` consecutive bytes of the tensor. The runs are in ascending
// order, so any interval of the tensor's bytes corresponds to one interval of shard bytes.
class Shard {
 public:
  // A half-open interval of bytes.
  struct Interval {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }
    friend bool operator==(const Interval&, const Interval&) = default;
  };
  // A range of consecutive bytes of the tensor.
  struct Run {
    std::uint64_t offset = 0;  // inside the tensor
    std::uint64_t bytes = 0;   // to the end of the run
  };

  // `element_bits` is the size of one element (4 for sub-byte types), `shape` the shape of the
  // whole tensor in elements. Returns kInvalidInput, with the dimension, if a range is outside of
  // the shape, if two ranges name the same dimension, or if a boundary is not at a whole byte. The
  // tensor itself must be within limits::kModelBytesMax (checked by the manifest).
  [[nodiscard]] static Result<Shard> make(std::uint64_t element_bits,
                                          std::span<const std::uint64_t> shape,
                                          std::span<const control::DimRange> ranges);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return run_bytes_ * run_count_; }
  [[nodiscard]] std::uint64_t tensor_bytes() const noexcept { return tensor_bytes_; }
  [[nodiscard]] std::uint64_t run_bytes() const noexcept { return run_bytes_; }
  [[nodiscard]] std::uint64_t run_count() const noexcept { return run_count_; }
  // Whether the shard is one range of the tensor; true for an empty shard.
  [[nodiscard]] bool contiguous() const noexcept { return run_count_ <= 1; }
  // Ranges of equal length in the tensor, the same number of bytes apart.
  struct Rows {
    std::uint64_t offset = 0;  // of the first, inside the tensor
    std::uint64_t row_bytes = 0;
    std::uint64_t rows = 1;
    std::uint64_t stride = 0;  // 0 for a single row
    [[nodiscard]] std::uint64_t bytes() const noexcept { return row_bytes * rows; }
  };
  // The range of the tensor that starts at shard byte `at`, which is below bytes().
  [[nodiscard]] Run run_at(std::uint64_t at) const noexcept;
  // Rows for as many as possible of the `max` shard bytes from `at` on: either whole runs, or a
  // part of one run. `max` must not be 0, and at + max must not exceed bytes().
  [[nodiscard]] Rows rows_at(std::uint64_t at, std::uint64_t max) const noexcept;
  // Number of shard bytes that lie before byte `offset` of the tensor.
  [[nodiscard]] std::uint64_t bytes_before(std::uint64_t offset) const noexcept;
  // The shard bytes inside the tensor bytes [begin, end).
  [[nodiscard]] Interval clip(Interval tensor) const noexcept {
    return {.begin = bytes_before(tensor.begin), .end = bytes_before(tensor.end)};
  }

 private:
  struct Level {
    std::uint64_t count = 0;
    std::uint64_t stride_bytes = 0;  // in the tensor
    std::uint64_t shard_bytes = 0;   // shard bytes of one step
  };
  std::vector<Level> levels_;  // outermost first; empty when contiguous
  std::uint64_t begin_ = 0;    // offset of the first run in the tensor
  std::uint64_t run_bytes_ = 0;
  std::uint64_t run_count_ = 0;
  std::uint64_t tensor_bytes_ = 0;
};

}  // namespace wsync::reload
