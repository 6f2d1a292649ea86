// Attention of new tokens over keys and values that are stored in blocks.
//
// Thread: any, if the cache does not change during the call.
#pragma once

#include <cstdint>
#include <vector>

#include "inference_side/reference_engine/generation/batch.h"
#include "inference_side/reference_engine/generation/key_value_cache.h"
#include "shared/moe/matrix.h"

namespace wsync::engine::generation {

// Causal grouped-query attention like moe::attention(), for the tokens of one slice. Row i of
// query[tokens, heads * head_dim] is token i of the slice. It attends to all positions up to its
// own. The keys and values of all these positions, including its own, are in the slice's blocks.
// `out` has the shape of query. `scores` is scratch memory for one row of scores, and grows as
// needed.
void attend(const KeyValueCache& cache, std::uint32_t layer, const SequenceSlice& slice,
            moe::ConstMatrix query, moe::Matrix out, std::vector<float>& scores);

}  // namespace wsync::engine::generation
