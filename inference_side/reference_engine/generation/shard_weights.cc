#include "inference_side/reference_engine/generation/shard_weights.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::engine::generation {
namespace {

tl::unexpected<Error> refuse_tensor(const std::string& why) {
  return fail(ErrorCode::kInvalidInput, why);
}

Result<> check_parameter(const moe::Parameter& expected, const Manifest& manifest) {
  const auto found = manifest.find(expected.name);
  const TensorInfo wanted{.name = expected.name, .dtype = DType::kBF16, .shape = expected.shape};
  if (!found)
    return refuse_tensor(
        fmt::format("{} is missing; it is a parameter of config.json's model", describe(wanted)));
  const TensorInfo& tensor = manifest.tensor(*found);
  if (tensor.shape != expected.shape)
    return refuse_tensor(fmt::format("{}: expected shape {} according to config.json",
                                     describe(tensor), shape_text(expected.shape)));
  if (tensor.dtype != DType::kBF16)
    return refuse_tensor(fmt::format(
        "{}: an engine generates with BF16 weights only; save the checkpoint as BF16 (a "
        "step_N of `wsync train`: with --resume step_N --export DIRECTORY)",
        describe(tensor)));
  return {};
}

// Checks that the manifest contains exactly the parameters of the model. Its order is then the
// model's order, because the order of a manifest is a function of the names.
Result<> check_tensors(const moe::ModelSpec& spec, const Manifest& manifest) {
  const std::vector<moe::Parameter> parameters = moe::all_parameters(spec);
  std::unordered_set<std::string_view> known;
  for (const moe::Parameter& parameter : parameters) {
    WSYNC_TRY(check_parameter(parameter, manifest));
    known.insert(parameter.name);
  }
  if (spec.tied_embeddings) known.insert(moe::kHead);
  for (const TensorInfo& tensor : manifest.tensors())
    if (!known.contains(tensor.name))
      return refuse_tensor(
          fmt::format("{}: config.json's model has no such parameter", describe(tensor)));
  return {};
}

}  // namespace

Result<ShardSizes> share_of(const moe::ModelSpec& spec, std::uint32_t rank,
                            std::uint32_t world_size) {
  if (world_size == 0 || rank >= world_size)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("rank {} of {}: expected a rank below the number of ranks", rank, world_size));
  for (const auto& [what, count] : {std::pair{"num_attention_heads", spec.heads},
                                    std::pair{"num_key_value_heads", spec.key_value_heads},
                                    std::pair{"moe_intermediate_size", spec.expert_hidden},
                                    std::pair{"vocab_size", spec.vocabulary}})
    if (count % world_size != 0)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("'{}' is {}, which cannot be divided equally among {} ranks; choose "
                              "a number of ranks that divides it",
                              what, count, world_size));
  return ShardSizes{.rank = rank,
                    .world_size = world_size,
                    .heads = spec.heads / world_size,
                    .key_value_heads = spec.key_value_heads / world_size,
                    .expert_hidden = spec.expert_hidden / world_size,
                    .vocabulary = spec.vocabulary / world_size};
}

Result<ModelTensors> find_tensors(const moe::ModelSpec& spec, const Manifest& manifest) {
  WSYNC_TRY(check_tensors(spec, manifest));
  const auto index_of = [&](const std::string& name) { return manifest.find(name).value(); };
  ModelTensors tensors{.embedding = index_of(moe::kEmbedding),
                       .final_norm = index_of(moe::kFinalNorm),
                       .head = index_of(spec.tied_embeddings ? moe::kEmbedding : moe::kHead),
                       .layers = {}};
  for (std::uint32_t number = 0; number < spec.layers; ++number) {
    // Same order as layer_parameters().
    const std::vector<moe::Parameter> parameters = moe::layer_parameters(spec, number);
    auto next = parameters.begin();
    LayerTensors layer;
    layer.layer = manifest.layer(index_of(next->name));
    for (std::uint32_t* index :
         {&layer.input_norm, &layer.query, &layer.key, &layer.value, &layer.output,
          &layer.query_norm, &layer.key_norm, &layer.post_norm, &layer.router})
      *index = index_of((next++)->name);
    layer.experts.resize(spec.experts);
    for (ExpertTensors& expert : layer.experts)
      for (std::uint32_t* index : {&expert.gate, &expert.up, &expert.down})
        *index = index_of((next++)->name);
    WSYNC_CHECK(next == parameters.end(), "every parameter of a layer has its place");
    tensors.layers.push_back(std::move(layer));
  }
  return tensors;
}

}  // namespace wsync::engine::generation
