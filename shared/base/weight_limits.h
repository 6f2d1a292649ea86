// Limits of weights: tensors, files, buckets.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kSafetensorsHeaderBytes =
    100'000'000;                                 // the reference reader's own limit
inline constexpr std::uint64_t kJsonDepth = 32;  // nesting of values that a lenient reader ignores
inline constexpr std::uint64_t kTensorCount = 1U << 20U;          // Kimi-K2 has 138,240
inline constexpr std::uint64_t kProblemCount = 2 * kTensorCount;  // all missing and all extra
inline constexpr std::uint64_t kTensorNameBytes = 1024;
inline constexpr std::uint64_t kTensorRank = 8;
inline constexpr std::uint64_t kCheckpointFileCount = 100'000;
inline constexpr std::uint64_t kIndexFileBytes = 256 * kMiB;
inline constexpr std::uint64_t kLeafBytes = 1 * kMiB;   // unit of the content digest
inline constexpr std::uint64_t kPieceAlignBytes = 256;  // of tensors in an arena, and of pieces
// A tensor of at least kPageAlignedTensorBytes begins at a multiple of kPageAlignBytes in an arena.
// Engines copy out of whole pages 8 % faster, and the padding is at most a sixteenth.
inline constexpr std::uint64_t kPageAlignBytes = 4 * kKiB;
inline constexpr std::uint64_t kPageAlignedTensorBytes = 64 * kKiB;
inline constexpr std::uint64_t kBucketBytesMin = 1 * kMiB;
inline constexpr std::uint64_t kBucketBytesMax = 8 * kGiB;
inline constexpr std::uint64_t kModelBytesMax = 1ULL << 44U;  // 16 TiB
inline constexpr std::uint64_t kStepMax = (1ULL << 63U) - 1;  // of a version; a next step fits
inline constexpr std::uint64_t kModelDimension = 1U << 24U;   // max of vocabulary, sizes, counts
// Ranges of tensors that ranks on other hosts serve, and transfer buckets of a version with parts.
inline constexpr std::uint64_t kPartRangeCount = 1U << 22U;
inline constexpr std::uint64_t kPartBucketCount = 1U << 22U;
// A tensor that is smaller travels to rank 0 with the report of its rank, instead of being a part.
inline constexpr std::uint64_t kCarriedTensorBytes = 16 * kKiB;
inline constexpr std::uint64_t kCarriedBytes = 64 * kMiB;  // of one rank, in one report

static_assert(kLeafBytes % kPieceAlignBytes == 0);
static_assert(kBucketBytesMin >= kLeafBytes, "a bucket holds at least one leaf");
static_assert(kPageAlignBytes % kPieceAlignBytes == 0);

}  // namespace wsync::limits
