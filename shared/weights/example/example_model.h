// A synthetic model with the names and proportions of Qwen3-MoE (Hugging Face), scaled to a size.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::cli {

struct DemoModel {
  std::uint32_t hidden = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t expert_intermediate = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t heads = 0;
  std::uint32_t key_value_heads = 0;
  std::uint64_t vocabulary = 0;

  // Returns the model whose bf16 weights come closest to `bytes` without exceeding them (within a
  // few KiB). kInvalidInput below kDemoBytesMin or above kDemoBytesMax.
  [[nodiscard]] static Result<DemoModel> scaled_to(std::uint64_t bytes);
  // All tensors, in the order of the model: embeddings, layers, final norm, head.
  [[nodiscard]] std::vector<TensorInfo> tensors() const;
  // The model's config.json.
  [[nodiscard]] nlohmann::json config() const;
};

inline constexpr std::uint64_t kDemoBytesMin = 1ULL << 20U;
inline constexpr std::uint64_t kDemoBytesMax = 1ULL << 40U;

}  // namespace wsync::cli
