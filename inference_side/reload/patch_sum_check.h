// Compares what the ranks of a replica have changed by a patch with the patch. Of each tensor, a
// rank returns the sums of the words in its own memory that the patch touches, as they were before
// and as they are now. Both are compared, each for itself:
//
//   * A rank that holds a whole tensor must have the sums of the tensor's blocks.
//   * Ranks that hold the same ranges must have the same sums.
//   * If the parts of the ranks make up the tensor without overlap, their sums make up those of the
//     blocks. Touched words that the parts cut are added from the held versions, each once, and
//     each rank's share of them is compared on its own.
//   * Parts that overlap otherwise, or do not make up the tensor, are compared with the held
//   versions.
//
// If something differs, the held versions show which rank it is. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "inference_side/reload/load_plan.h"
#include "inference_side/reload/sum_check.h"
#include "shared/base/split_sum.h"
#include "shared/control/messages.h"
#include "shared/weights/patch/patch.h"

namespace wsync::reload {

// What one rank has changed. All lists are in the order of its hello, and equally long.
struct PatchedRank {
  std::uint32_t rank = 0;
  std::span<const LoadTensor> tensors;            // of its load plan for the target
  std::span<const control::EngineTensor> ranges;  // of its hello
  std::span<const SplitSum> before;
  std::span<const SplitSum> after;
};

// The patch that they were given. Borrowed.
struct AppliedPatch {
  const patch::Layout* layout = nullptr;
  const patch::PatchReader* reader = nullptr;
  // The bytes of a tensor of the manifest in the base and in the target. `base` is empty if the
  // bytes of the base are not here: the ranks must not cut words of its tensors then.
  std::function<std::span<const std::byte>(std::uint32_t tensor)> base;
  std::function<std::span<const std::byte>(std::uint32_t tensor)> target;
};

// Whether check_patch_sums() would read the bytes of the base for these ranks, because their parts
// of a tensor cut words, overlap, or do not make up the tensor. Their sums are not read.
[[nodiscard]] bool needs_bytes_of_base(std::span<const PatchedRank> ranks);

// `ranks`: all ranks of the replica. `read_bytes` are those of the blocks that were read in the
// held versions, apart from words that ranges cut.
[[nodiscard]] SumCheck check_patch_sums(const AppliedPatch& patch,
                                        std::span<const PatchedRank> ranks);

}  // namespace wsync::reload
