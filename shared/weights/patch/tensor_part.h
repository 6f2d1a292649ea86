// TensorPart: which bytes of a tensor one rank holds, and where they lie in its memory: a box, rows
// or columns for example, dense in row-major order. Immutable; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::patch {

// Indices [begin, begin + length) of dimension `dim`.
struct PartRange {
  std::uint32_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
};

class TensorPart {
 public:
  // The part of the tensor with these ranges; dimensions without a range are complete.
  // kInvalidInput if a range is outside of the shape, if two name one dimension, or if a boundary
  // is not at a whole byte.
  [[nodiscard]] static Result<TensorPart> create(const TensorInfo& tensor,
                                                 std::span<const PartRange> ranges);

  // Size of the part.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return run_bytes_ * runs_; }
  [[nodiscard]] std::uint64_t tensor_bytes() const noexcept { return tensor_bytes_; }
  // Bytes that follow one another in the tensor and in the part.
  struct Run {
    std::uint64_t begin = 0;  // in the tensor
    std::uint64_t end = 0;
    std::uint64_t offset = 0;  // of `begin` in the part
  };
  // The first run that ends after byte `at` of the tensor; std::nullopt if there is none.
  [[nodiscard]] std::optional<Run> run_from(std::uint64_t at) const noexcept;

 private:
  TensorPart() = default;
  struct Level {
    std::uint64_t count = 0;         // indices that the part has
    std::uint64_t stride_bytes = 0;  // of one index, in the tensor
    std::uint64_t begin_bytes = 0;   // of the first of them
    std::uint64_t runs = 0;          // in one index
  };
  std::vector<Level> levels_;    // outermost first; of the dimensions outside of runs
  std::uint64_t run_begin_ = 0;  // in one index of the innermost level
  std::uint64_t run_bytes_ = 0;
  std::uint64_t runs_ = 0;
  std::uint64_t tensor_bytes_ = 0;
};

// Asks a part for runs at ascending bytes. Not thread-safe.
class RunCursor {
 public:
  explicit RunCursor(const TensorPart& part) : part_(&part), run_(part.run_from(0)) {}
  // The first run that ends after byte `at` of the tensor, or nullptr. `at` never decreases.
  [[nodiscard]] const TensorPart::Run* at(std::uint64_t at) noexcept {
    if (run_ && at >= run_->end) run_ = part_->run_from(at);
    return run_ ? &*run_ : nullptr;
  }

 private:
  const TensorPart* part_;
  std::optional<TensorPart::Run> run_;
};

}  // namespace wsync::patch
