// Compares what the ranks of a replica have loaded with the version that they were to load. Each
// rank returns the sum of its own bytes of each tensor, as it has read them while it copied:
//
//   * A rank that holds a whole tensor must have the tensor's sum.
//   * Ranks that hold the same ranges must have the same sum.
//   * If the parts of the ranks make up the tensor without overlap, their sums make up the
//   tensor's.
//     The words that these parts cut are added from the staged bytes, each once, and each rank's
//     share of them is compared on its own.
//   * Parts that overlap otherwise, or lack a rank that returns no sums, are compared with the
//     staged bytes, and those with the tensor's sum.
//
// If something differs, the staged bytes show which rank it is. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference_side/reload/load_plan.h"
#include "shared/base/split_sum.h"
#include "shared/control/messages.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/manifest.h"

namespace wsync::reload {

// What one rank has loaded. All lists are in the order of its hello, and equally long.
struct LoadedRank {
  std::uint32_t rank = 0;
  std::span<const LoadTensor> tensors;            // of its load plan for the version
  std::span<const control::EngineTensor> ranges;  // of its hello
  std::span<const SplitSum> sums;
};

// What was staged. Borrowed.
struct StagedSums {
  const Manifest* manifest = nullptr;
  const ContentDigests* digests = nullptr;  // as announced
  std::span<const std::byte> arena;
};

struct SumMismatch {
  std::string tensor;
  std::optional<std::uint32_t> rank;  // none: the staged bytes are not those of the version
  // In one sentence, without the name of the replica.
  std::string why;
};

struct SumCheck {
  std::optional<SumMismatch> mismatch;  // the first one
  // Bytes that were read for it, apart from words that ranges cut. 0 unless something differs, or
  // ranges overlap.
  std::uint64_t read_bytes = 0;
};

// `ranks`: all ranks of the replica that return sums. A rank that serves from the staged bytes has
// none.
[[nodiscard]] SumCheck check_sums(const StagedSums& staged, std::span<const LoadedRank> ranks);

}  // namespace wsync::reload
