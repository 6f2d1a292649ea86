// What a rank of a tensor-parallel replica has of the model, and where in the manifest it is. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "shared/weights/manifest.h"

namespace wsync::engine::generation {

// A rank's share of what is divided. It has heads, inner columns of experts and tokens of the
// vocabulary [rank * share, (rank + 1) * share).
struct ShardSizes {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t heads = 0;
  std::uint32_t key_value_heads = 0;
  std::uint32_t expert_hidden = 0;
  std::uint32_t vocabulary = 0;
};
// kInvalidInput names what the ranks cannot share equally. `spec` as checked by check_spec().
[[nodiscard]] Result<ShardSizes> share_of(const moe::ModelSpec& spec, std::uint32_t rank,
                                          std::uint32_t world_size);

// Indices of tensors in the manifest.
struct ExpertTensors {
  std::uint32_t gate = 0, up = 0, down = 0;
};
struct LayerTensors {
  std::uint32_t layer = 0;  // of the manifest
  std::uint32_t input_norm = 0, query = 0, key = 0, value = 0, output = 0;
  std::uint32_t query_norm = 0, key_norm = 0, post_norm = 0, router = 0;
  std::vector<ExpertTensors> experts;
};
struct ModelTensors {
  std::uint32_t embedding = 0;
  std::uint32_t final_norm = 0;
  std::uint32_t head = 0;  // the embedding, where they are tied
  std::vector<LayerTensors> layers;
};
// kInvalidInput, naming it, for a parameter that is missing, has another shape or is not BF16, and
// for a tensor that is no parameter of the model: what is ignored would change the logits. A model
// with tied embeddings may have a head of its own, which is not read.
[[nodiscard]] Result<ModelTensors> find_tensors(const moe::ModelSpec& spec,
                                                const Manifest& manifest);

}  // namespace wsync::engine::generation
