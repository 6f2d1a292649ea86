// Destinations of a rank that lie in one another. Two tensors with exactly the same memory are tied
// weights: several names of one memory. Two that overlap in part can never both be right, because
// one of them is written over the other. A load would not notice it, since it sums what it reads.
//
// Pure; any thread.
#pragma once

#include <span>

#include "inference_side/engine_link/engine.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/error.h"
#include "shared/base/split_sum.h"

namespace wsync::engine {

// The tensors of each memory that several of them have. Sorts the destinations by address, which
// may be addresses of a GPU. Returns kInvalidInput, with both names and the bytes, if two
// destinations overlap in part, or if two tensors with the same memory are not alike: both are
// whole tensors or the same ranges of one shape, and neither is converted.
[[nodiscard]] Result<SameMemory> find_same_memory(std::span<const RankTensor> tensors);

// The sum of the rank's part of a tensor as it is in `memory`, which has shard.bytes() bytes of
// host memory. It is that of the groups of which a load has read the part.
[[nodiscard]] SplitSum held_sum(const reload::LoadTensor& tensor,
                                std::span<const std::byte> memory);

}  // namespace wsync::engine
