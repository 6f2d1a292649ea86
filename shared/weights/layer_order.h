// The order of tensors: layer by layer, as an engine needs them. Pure functions of names.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace wsync {

// Compares text with runs of digits as numbers: "h.2" < "h.10". Equal only when the texts differ
// in nothing but leading zeros of numbers.
[[nodiscard]] std::weak_ordering natural_compare(std::string_view a, std::string_view b) noexcept;

// Where in a model a tensor belongs, read from its name. Views into that name.
struct LayerKey {
  // The order in which a model uses its parts.
  enum class Part : std::uint8_t { kEmbedding, kOther, kLayer, kFinalNorm, kHead };
  Part part = Part::kOther;
  std::string_view stack;  // what precedes the layer's number: "model.layers."; empty if not kLayer
  std::string_view number;  // the layer's number; empty if not kLayer
};

// A layer's number is the first dotted component that is a number ("model.layers.12.mlp...", or
// "h.3.attn"); what follows it (experts, projections) never decides.
[[nodiscard]] LayerKey layer_key(std::string_view name) noexcept;

// By part, stack, layer number.
[[nodiscard]] std::weak_ordering compare_layers(const LayerKey& a, const LayerKey& b) noexcept;

}  // namespace wsync
