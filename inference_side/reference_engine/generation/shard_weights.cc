#include "inference_side/reference_engine/generation/shard_weights.h"

#include <algorithm>
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
  const std::vector<moe::Parameter> parameters =
      moe::all_parameters(spec, expert_form_of(manifest));
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

// `next` are the parameters of the experts of one layer. `index_of` finds one in the manifest.
template <class Next, class IndexOf>
std::vector<ExpertTensors> experts_of(const moe::ModelSpec& spec, const ShardSizes& sizes,
                                      moe::ExpertForm form, Next& next, const IndexOf& index_of) {
  std::vector<ExpertTensors> experts(sizes.experts);
  if (form == moe::ExpertForm::kSeparate) {
    for (ExpertTensors& expert : experts)
      for (ExpertMatrix* matrix : {&expert.gate, &expert.up, &expert.down})
        matrix->tensor = index_of((next++)->name);
    return experts;
  }
  const std::uint32_t gate_up = index_of((next++)->name);
  const std::uint32_t down = index_of((next++)->name);
  const std::size_t bytes =
      std::size_t{spec.expert_hidden} * spec.hidden * dtype_bits(DType::kBF16) / 8;
  for (std::size_t e = 0; e < experts.size(); ++e)
    experts[e] = {.gate = {.tensor = gate_up, .begin = 2 * e * bytes},
                  .up = {.tensor = gate_up, .begin = (2 * e + 1) * bytes},
                  .down = {.tensor = down, .begin = e * bytes}};
  return experts;
}

}  // namespace

moe::ExpertForm expert_form_of(const Manifest& manifest) {
  const bool fused = std::ranges::any_of(manifest.tensors(), [](const TensorInfo& tensor) {
    return tensor.name.ends_with(".mlp.experts.gate_up_proj");
  });
  return fused ? moe::ExpertForm::kFused : moe::ExpertForm::kSeparate;
}

Result<ShardSizes> share_of(const moe::ModelSpec& spec, std::uint32_t rank,
                            std::uint32_t world_size, moe::ExpertForm form) {
  if (world_size == 0 || rank >= world_size)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("rank {} of {}: expected a rank below the number of ranks", rank, world_size));
  const bool fused = form == moe::ExpertForm::kFused;
  for (const auto& [what, count] : {std::pair{"num_attention_heads", spec.heads},
                                    std::pair{"num_key_value_heads", spec.key_value_heads},
                                    fused ? std::pair{"num_experts", spec.experts}
                                          : std::pair{"moe_intermediate_size", spec.expert_hidden},
                                    std::pair{"vocab_size", spec.vocabulary}})
    if (count % world_size != 0)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("'{}' is {}, which cannot be divided equally among {} ranks; choose "
                              "a number of ranks that divides it",
                              what, count, world_size));
  const std::uint32_t experts = fused ? spec.experts / world_size : spec.experts;
  return ShardSizes{.rank = rank,
                    .world_size = world_size,
                    .heads = spec.heads / world_size,
                    .key_value_heads = spec.key_value_heads / world_size,
                    .expert_hidden = fused ? spec.expert_hidden : spec.expert_hidden / world_size,
                    .vocabulary = spec.vocabulary / world_size,
                    .first_expert = fused ? rank * experts : 0,
                    .experts = experts};
}

Result<ModelTensors> find_tensors(const moe::ModelSpec& spec, const ShardSizes& sizes,
                                  const Manifest& manifest) {
  WSYNC_TRY(check_tensors(spec, manifest));
  const moe::ExpertForm form = expert_form_of(manifest);
  const auto index_of = [&](const std::string& name) { return manifest.find(name).value(); };
  ModelTensors tensors{.embedding = index_of(moe::kEmbedding),
                       .final_norm = index_of(moe::kFinalNorm),
                       .head = index_of(spec.tied_embeddings ? moe::kEmbedding : moe::kHead),
                       .layers = {}};
  for (std::uint32_t number = 0; number < spec.layers; ++number) {
    // Same order as layer_parameters().
    const std::vector<moe::Parameter> parameters = moe::layer_parameters(spec, number, form);
    auto next = parameters.begin();
    LayerTensors layer;
    layer.layer = manifest.layer(index_of(next->name));
    for (std::uint32_t* index :
         {&layer.input_norm, &layer.query, &layer.key, &layer.value, &layer.output,
          &layer.query_norm, &layer.key_norm, &layer.post_norm, &layer.router})
      *index = index_of((next++)->name);
    layer.experts = experts_of(spec, sizes, form, next, index_of);
    WSYNC_CHECK(next == parameters.end(), "every parameter of a layer has its place");
    tensors.layers.push_back(std::move(layer));
  }
  return tensors;
}

}  // namespace wsync::engine::generation
