// Scales a published model down. model_shape.h describes the rule.
#include <algorithm>
#include <array>

#include "shared/base/format.h"
#include "shared/weights/example/model_shape.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kExpertLayersWanted = 4;
constexpr std::uint64_t kExpertsMin = 8;
constexpr std::uint64_t kHeadsMin = 4;
constexpr std::uint64_t kWidthMin = 8;

// Bytes of one row of the vocabulary: embeddings and head of the model and of each predicting
// layer.
std::uint64_t row_bytes(const ModelShape& s) { return (1 + s.mtp_layers) * 2 * s.hidden * 2; }

// Bytes of everything except the rows of the vocabulary.
std::uint64_t fixed_bytes(ModelShape shape) {
  shape.vocabulary = 0;
  return totals_of(tensors_of(shape)).bytes;
}

void halve(std::uint64_t& value, std::uint64_t min = 1) {
  if (value > 0) value = std::max(min, value / 2);
}

void halve_widths(ModelShape& s) {
  for (std::uint64_t* width : {&s.hidden, &s.intermediate, &s.expert_intermediate, &s.query_rank,
                               &s.latent_rank, &s.position_buffer})
    halve(*width, kWidthMin);
  if (s.heads % 2 == 0 && s.heads > kHeadsMin) {
    s.heads /= 2;
    s.key_value_heads = s.attention == Attention::kLatent
                            ? s.heads
                            : std::max<std::uint64_t>(1, s.key_value_heads / 2);
  } else {
    for (std::uint64_t* width : {&s.head_dim, &s.plain_dim, &s.position_dim, &s.value_dim})
      halve(*width, 2);
  }
}

// The same widths with the given layers and at most one predicting layer.
ModelShape with_layers(ModelShape s, std::uint64_t dense, std::uint64_t expert_layers) {
  s.dense_layers = dense;
  s.layers = dense + expert_layers;
  s.mtp_layers = std::min<std::uint64_t>(s.mtp_layers, 1);
  return s;
}

}  // namespace

Result<ModelShape> scaled(const ModelShape& shape, std::uint64_t bytes) {
  if (bytes < kScaledBytesMin)
    return fail(ErrorCode::kInvalidInput, fmt::format("{} scaled to {} bytes: expected {} at least",
                                                      shape.name, bytes, kScaledBytesMin));
  const std::uint64_t whole = totals_of(tensors_of(shape)).bytes;
  if (bytes >= whole) return shape;
  const double share =
      static_cast<double>(row_bytes(shape) * shape.vocabulary) / static_cast<double>(whole);
  const auto for_layers = static_cast<std::uint64_t>(static_cast<double>(bytes) * (1 - share));
  const std::uint64_t dense = std::min<std::uint64_t>(shape.dense_layers, 1);
  ModelShape made = shape;
  for (bool experts = true; fixed_bytes(with_layers(made, dense, kExpertLayersWanted)) > for_layers;
       experts = !experts) {
    if (experts && made.experts > kExpertsMin)
      halve(made.experts, kExpertsMin);
    else if (made.hidden > kWidthMin)
      halve_widths(made);
    else
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} cannot be scaled to {} bytes", shape.name, bytes));
  }
  const std::uint64_t min = fixed_bytes(with_layers(made, dense, kExpertLayersWanted));
  const std::uint64_t layer = fixed_bytes(with_layers(made, dense, kExpertLayersWanted + 1)) - min;
  const std::uint64_t more = (for_layers - min) / layer;
  const std::uint64_t max = shape.layers - shape.dense_layers;
  made = with_layers(made, dense, std::min(max, kExpertLayersWanted + more));
  made.vocabulary = (bytes - fixed_bytes(made)) / row_bytes(made);
  made.published = {};
  return made;
}

}  // namespace wsync::bench
