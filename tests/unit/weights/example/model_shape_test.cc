// Tensor lists of published models against what is published of them, and smaller models of the
// same kinds.
#include "shared/weights/example/model_shape.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "shared/base/units.h"

namespace wsync::bench {
namespace {

ModelShape model(std::string_view name) {
  const auto found = find_model(name);
  EXPECT_TRUE(found.has_value()) << name;
  return found.value_or(ModelShape{});
}

std::map<DType, std::uint64_t> elements_by_dtype(const std::vector<TensorInfo>& tensors) {
  std::map<DType, std::uint64_t> made;
  for (const TensorInfo& tensor : tensors) {
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : tensor.shape) elements *= dim;
    made[tensor.dtype] += elements;
  }
  return made;
}

// "model.layers.7.mlp.experts.3.up_proj.weight" -> "model.layers..mlp.experts..up_proj.weight",
// with the dtype.
std::set<std::string> kinds_of(const std::vector<TensorInfo>& tensors) {
  std::set<std::string> kinds;
  for (const TensorInfo& tensor : tensors) {
    std::string kind(dtype_name(tensor.dtype));
    std::string_view left = tensor.name;
    while (!left.empty()) {
      const std::string_view part = left.substr(0, left.find('.'));
      left.remove_prefix(std::min(left.size(), part.size() + 1));
      if (part.find_first_not_of("0123456789") != std::string_view::npos) kind += part;
      kind += '.';
    }
    kinds.insert(std::move(kind));
  }
  return kinds;
}

TEST(ModelShape, ParametersBytesAndTensorsAreThePublishedOnes) {
  ASSERT_EQ(model_shapes().size(), 5U);
  for (const ModelShape& shape : model_shapes()) {
    const ShapeTotals totals = totals_of(tensors_of(shape));
    EXPECT_EQ(totals.parameters, shape.published.parameters) << shape.name;
    if (shape.published.bytes != 0) {
      EXPECT_EQ(totals.bytes, shape.published.bytes) << shape.name;
    }
    if (shape.published.tensors != 0) {
      EXPECT_EQ(totals.tensors, shape.published.tensors) << shape.name;
    }
  }
}

// The API of Hugging Face has the elements of DeepSeek-V3 by dtype.
TEST(ModelShape, DeepSeekHasThePublishedElementsOfEachDtype) {
  auto elements = elements_by_dtype(tensors_of(model("DeepSeek-V3.1")));
  EXPECT_EQ(elements[DType::kF8E4M3], 680'571'043'840U);
  EXPECT_EQ(elements[DType::kBF16], 3'918'786'560U);
  EXPECT_EQ(elements[DType::kF32], 41'555'600U);
  EXPECT_EQ(elements.size(), 3U);
}

// The total of Kimi-K2-Instruct there is without the scales.
TEST(ModelShape, KimiWithoutScalesHasThePublishedParametersOfInstruct) {
  const ShapeTotals totals = totals_of(tensors_of(model("Kimi-K2")));
  EXPECT_EQ(totals.parameters - totals.scales, 1'026'408'235'864U);
}

TEST(ModelShape, NamesAreFoundInAnyCaseAndMissingOnesAreAnswered) {
  EXPECT_EQ(model("qwen3-30b-a3b").name, "Qwen3-30B-A3B");
  EXPECT_EQ(model("KIMI-K2").experts, 384U);
  const auto none = find_model("Kimi-K3");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(none.error().message(),
            "no model 'Kimi-K3': expected one of Qwen3-30B-A3B, Qwen3-235B-A22B, GLM-4.5-Air, "
            "DeepSeek-V3.1, Kimi-K2; did you mean Kimi-K2?");
  EXPECT_EQ(find_model("").error().code(), ErrorCode::kInvalidInput);
}

TEST(ModelShape, ScalesHaveOneNumberForEachBlock) {
  std::map<std::string, TensorInfo> by_name;
  for (const TensorInfo& tensor : tensors_of(model("DeepSeek-V3.1"))) by_name[tensor.name] = tensor;
  const std::string prefix = "model.layers.3.self_attn.kv_a_proj_with_mqa.weight";
  EXPECT_EQ(by_name.at(prefix).shape, (std::vector<std::uint64_t>{576, 7168}));
  EXPECT_EQ(by_name.at(prefix + "_scale_inv").shape, (std::vector<std::uint64_t>{5, 56}));
  EXPECT_EQ(by_name.at(prefix + "_scale_inv").dtype, DType::kF32);
  EXPECT_EQ(by_name.at("model.layers.61.eh_proj.weight").shape,
            (std::vector<std::uint64_t>{7168, 14336}));
}

TEST(ModelShape, EveryModelIsAManifest) {
  for (const ModelShape& shape : model_shapes()) {
    const auto small = scaled(shape, 16 * limits::kMiB);
    ASSERT_TRUE(small.has_value());
    const auto manifest = Manifest::create(tensors_of(*small));
    ASSERT_TRUE(manifest.has_value()) << manifest.error().message();
    EXPECT_EQ(manifest->layer_count(), small->layers + small->mtp_layers + 3) << shape.name;
  }
}

TEST(ScaledShape, KeepsEveryKindAndFillsTheBytes) {
  for (const ModelShape& shape : model_shapes()) {
    const auto kinds = kinds_of(tensors_of(shape));
    for (const std::uint64_t bytes :
         {kScaledBytesMin, 16 * limits::kMiB, 1000 * limits::kMiB, 10 * limits::kGiB}) {
      const auto small = scaled(shape, bytes);
      ASSERT_TRUE(small.has_value()) << small.error().message();
      const auto tensors = tensors_of(*small);
      const ShapeTotals totals = totals_of(tensors);
      EXPECT_LE(totals.bytes, bytes);
      EXPECT_GT(totals.bytes + (1 + small->mtp_layers) * 2 * small->hidden * 2, bytes)
          << shape.name;
      EXPECT_EQ(kinds_of(tensors), kinds) << shape.name << " " << bytes;
      EXPECT_GE(small->layers - small->dense_layers, 4U);
      EXPECT_GE(small->experts, 8U);
      EXPECT_GE(small->vocabulary, 1U);
      EXPECT_EQ(small->heads % small->key_value_heads, 0U);
    }
  }
}

TEST(ScaledShape, AModelThatFitsStaysAsItIs) {
  const ModelShape shape = model("Qwen3-30B-A3B");
  const std::uint64_t bytes = totals_of(tensors_of(shape)).bytes;
  const auto same = scaled(shape, bytes);
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(tensors_of(*same), tensors_of(shape));
  const auto smaller = scaled(shape, bytes - 1);
  ASSERT_TRUE(smaller.has_value());
  EXPECT_LT(totals_of(tensors_of(*smaller)).bytes, bytes);
}

TEST(ScaledShape, TooFewBytesAreRefused) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, kScaledBytesMin - 1}) {
    const auto none = scaled(model("GLM-4.5-Air"), bytes);
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().code(), ErrorCode::kInvalidInput);
  }
}

TEST(ModelShape, ConfigHasWhatLoadersAskFor) {
  const auto deepseek = config_json(model("DeepSeek-V3.1"));
  EXPECT_EQ(deepseek["n_routed_experts"], 256);
  EXPECT_EQ(deepseek["num_nextn_predict_layers"], 1);
  EXPECT_EQ(deepseek["kv_lora_rank"], 512);
  EXPECT_EQ(deepseek["quantization_config"]["weight_block_size"], nlohmann::json({128, 128}));
  const auto qwen = config_json(model("Qwen3-30B-A3B"));
  EXPECT_EQ(qwen["num_experts"], 128);
  EXPECT_EQ(qwen["head_dim"], 128);
  EXPECT_FALSE(qwen.contains("quantization_config"));
}

}  // namespace
}  // namespace wsync::bench
