// The parts of the model that a rank of a tensor-parallel replica holds, and their position in the
// manifest. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "shared/weights/manifest.h"

namespace wsync::engine::generation {

// Sizes of one rank's share of everything that is divided. The rank holds the heads, inner columns
// of experts and tokens of the vocabulary in [rank * share, (rank + 1) * share).
struct ShardSizes {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t heads = 0;
  std::uint32_t key_value_heads = 0;
  std::uint32_t expert_hidden = 0;
  std::uint32_t vocabulary = 0;
};
// Returns kInvalidInput, with the name of the quantity, if a quantity cannot be divided equally
// among the ranks. `spec` must have passed check_spec().
[[nodiscard]] Result<ShardSizes> share_of(const moe::ModelSpec& spec, std::uint32_t rank,
                                          std::uint32_t world_size);

// Indices of tensors in the manifest.
struct ExpertTensors {
  std::uint32_t gate = 0, up = 0, down = 0;
};
struct LayerTensors {
  std::uint32_t layer = 0;  // layer of the manifest
  std::uint32_t input_norm = 0, query = 0, key = 0, value = 0, output = 0;
  std::uint32_t query_norm = 0, key_norm = 0, post_norm = 0, router = 0;
  std::vector<ExpertTensors> experts;
};
struct ModelTensors {
  std::uint32_t embedding = 0;
  std::uint32_t final_norm = 0;
  std::uint32_t head = 0;  // equal to the embedding if they are tied
  std::vector<LayerTensors> layers;
};
// Returns kInvalidInput, with the name, for a parameter that is missing, has another shape or is
// not BF16, and for a tensor that is not a parameter of the model. Such a tensor is not ignored,
// because ignoring it would change the logits. A model with tied embeddings may have a separate
// head, which is not read.
[[nodiscard]] Result<ModelTensors> find_tensors(const moe::ModelSpec& spec,
                                                const Manifest& manifest);

}  // namespace wsync::engine::generation
