// The parts of the model that a rank of a tensor-parallel replica holds, and their position in the
// manifest. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "shared/weights/manifest.h"

namespace wsync::engine::generation {

// Sizes of one rank's share of everything that is divided. The rank holds the heads and tokens of
// the vocabulary in [rank * share, (rank + 1) * share), and likewise the inner columns of every
// expert, or, of fused experts, whole experts.
struct ShardSizes {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t heads = 0;
  std::uint32_t key_value_heads = 0;
  std::uint32_t expert_hidden = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t first_expert = 0, experts = 0;  // experts of which the rank has weights
};
// Returns kInvalidInput, with the name of the quantity, if a quantity cannot be divided equally
// among the ranks. `spec` must have passed check_spec().
[[nodiscard]] Result<ShardSizes> share_of(const moe::ModelSpec& spec, std::uint32_t rank,
                                          std::uint32_t world_size, moe::ExpertForm form);
// How the manifest has the experts, by the names of its tensors.
[[nodiscard]] moe::ExpertForm expert_form_of(const Manifest& manifest);

// One matrix of an expert: the index of its tensor in the manifest, and its first byte in the
// rank's part of the tensor.
struct ExpertMatrix {
  std::uint32_t tensor = 0;
  std::size_t begin = 0;
};
struct ExpertTensors {
  ExpertMatrix gate, up, down;
};
// Indices of tensors in the manifest.
struct LayerTensors {
  std::uint32_t layer = 0;  // layer of the manifest
  std::uint32_t input_norm = 0, query = 0, key = 0, value = 0, output = 0;
  std::uint32_t query_norm = 0, key_norm = 0, post_norm = 0, router = 0;
  std::vector<ExpertTensors> experts;  // those of the rank, from ShardSizes::first_expert on
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
// head, which is not read. `sizes`: share_of() the same model in the form of the manifest.
[[nodiscard]] Result<ModelTensors> find_tensors(const moe::ModelSpec& spec, const ShardSizes& sizes,
                                                const Manifest& manifest);

}  // namespace wsync::engine::generation
