// Attention of new tokens over keys and values in blocks.
//
// Thread: any; the cache is not changed meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "inference_side/reference_engine/generation/batch.h"
#include "inference_side/reference_engine/generation/key_value_cache.h"
#include "shared/moe/matrix.h"

namespace wsync::engine::generation {

// Causal grouped-query attention as moe::attention(), of the tokens of one slice: row i of
// query[tokens, heads * head_dim] is the slice's token i, which sees all positions up to its own.
// Keys and values of all of them, its own too, are in the slice's blocks. `out` as query; `scores`
// is room for one row of scores, and grows to it.
void attend(const KeyValueCache& cache, std::uint32_t layer, const SequenceSlice& slice,
            moe::ConstMatrix query, moe::Matrix out, std::vector<float>& scores);

}  // namespace wsync::engine::generation
