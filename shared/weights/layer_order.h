// The order of tensors: layer by layer, as an engine needs them. Pure functions of the names.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace wsync {

// Compares text and treats runs of digits as numbers: "h.2" < "h.10". Texts are equal only if they
// differ in nothing but the leading zeros of numbers.
[[nodiscard]] std::weak_ordering natural_compare(std::string_view a, std::string_view b) noexcept;

// The position of a tensor in a model, derived from its name. The views refer to that name.
struct LayerKey {
  // In the order in which a model uses its parts.
  enum class Part : std::uint8_t { kEmbedding, kOther, kLayer, kFinalNorm, kHead };
  Part part = Part::kOther;
  std::string_view stack;   // text before the number: "model.layers."; empty if not kLayer
  std::string_view number;  // number of the layer; empty if not kLayer
};

// The number of a layer is the first dotted component that is a number ("model.layers.12.mlp...",
// or "h.3.attn"). The components after it (experts, projections) never decide.
[[nodiscard]] LayerKey layer_key(std::string_view name) noexcept;

// Compares by part, stack and layer number.
[[nodiscard]] std::weak_ordering compare_layers(const LayerKey& a, const LayerKey& b) noexcept;

}  // namespace wsync
