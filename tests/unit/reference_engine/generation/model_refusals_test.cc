// What a shard is not made of, and what says so.
#include <functional>
#include <gmock/gmock.h>

#include "tests/unit/reference_engine/generation/small_model.h"

namespace wsync::engine::generation {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Error refusal(const ShardOptions& options, const Manifest& manifest) {
  const auto shard = ModelShard::create(options, manifest);
  EXPECT_FALSE(shard.has_value());
  return shard ? Error(ErrorCode::kInternal, "taken") : shard.error();
}

std::string of_tensors(const std::function<void(std::vector<TensorInfo>&)>& change) {
  const moe::ModelSpec spec = small_spec();
  const Manifest all = manifest_of(moe::all_parameters(spec));
  std::vector<TensorInfo> tensors(all.tensors().begin(), all.tensors().end());
  change(tensors);
  const Error error = refusal(options_of(spec), Manifest::create(std::move(tensors)).value());
  EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
  return error.message();
}

TensorInfo& tensor(std::vector<TensorInfo>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &TensorInfo::name);
  EXPECT_NE(found, tensors.end()) << name;
  return *found;
}

TEST(ShardRefusals, TensorsThatAreNotTheModels) {
  constexpr const char* kDown = "model.layers.1.mlp.experts.3.down_proj.weight";
  EXPECT_EQ(of_tensors([](auto& tensors) {
              std::erase_if(tensors, [](const TensorInfo& t) { return t.name == kDown; });
            }),
            "model.layers.1.mlp.experts.3.down_proj.weight BF16 [24, 20] is missing; it is a "
            "parameter of config.json's model");
  EXPECT_EQ(of_tensors([](auto& tensors) {
              std::erase_if(tensors, [](const TensorInfo& t) { return t.name == moe::kHead; });
            }),
            "lm_head.weight BF16 [44, 24] is missing; it is a parameter of config.json's model");
  EXPECT_EQ(of_tensors([](auto& tensors) { tensor(tensors, kDown).shape = {20, 24}; }),
            "model.layers.1.mlp.experts.3.down_proj.weight BF16 [20, 24]: expected shape [24, 20] "
            "according to config.json");
  EXPECT_EQ(of_tensors([](auto& tensors) { tensor(tensors, moe::kFinalNorm).shape = {24, 1}; }),
            "model.norm.weight BF16 [24, 1]: expected shape [24] according to config.json");
  EXPECT_EQ(
      of_tensors([](auto& tensors) {
        tensor(tensors, "model.layers.0.self_attn.q_norm.weight").dtype = DType::kF32;
      }),
      "model.layers.0.self_attn.q_norm.weight F32 [10]: an engine generates with BF16 weights "
      "only; save the checkpoint as BF16 (a step_N of `wsync train`: with --resume step_N "
      "--export DIRECTORY)");
  EXPECT_EQ(of_tensors([](auto& tensors) {
              tensors.push_back({.name = "model.layers.0.self_attn.q_proj.bias", .shape = {40}});
            }),
            "model.layers.0.self_attn.q_proj.bias BF16 [40]: config.json's model has no such "
            "parameter");
  EXPECT_EQ(of_tensors([](auto& tensors) { tensors.clear(); }),
            "model.embed_tokens.weight BF16 [44, 24] is missing; it is a parameter of "
            "config.json's model");
}

TEST(ShardRefusals, WeightsInFloat32) {
  const std::vector<moe::Parameter> parameters = moe::all_parameters(small_spec());
  EXPECT_THAT(
      refusal(options_of(small_spec()), manifest_of(parameters, DType::kF32)).message(),
      StartsWith("model.embed_tokens.weight F32 [44, 24]: an engine generates with BF16 weights"));
}

TEST(ShardRefusals, WhatRanksCannotShareEqually) {
  const auto why = [](std::uint32_t world_size,
                      const std::function<void(moe::ModelSpec&)>& change) {
    ShardOptions options = options_of(small_spec());
    options.world_size = world_size;
    change(options.spec);
    const Error error = refusal(options, manifest_of(moe::all_parameters(options.spec)));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    return error.message();
  };
  EXPECT_EQ(why(3, [](moe::ModelSpec&) {}),
            "'num_attention_heads' is 4, which cannot be divided equally among 3 ranks; choose a "
            "number of ranks that divides it");
  EXPECT_THAT(why(4, [](moe::ModelSpec&) {}),
              StartsWith("'num_key_value_heads' is 2, which cannot be divided equally among 4"));
  EXPECT_THAT(why(2, [](moe::ModelSpec& spec) { spec.expert_hidden = 7; }),
              StartsWith("'moe_intermediate_size' is 7, which cannot be divided equally among 2"));
  EXPECT_THAT(why(2, [](moe::ModelSpec& spec) { spec.vocabulary = 45; }),
              StartsWith("'vocab_size' is 45, which cannot be divided equally among 2"));
  EXPECT_THAT(why(2, [](moe::ModelSpec& spec) { spec.head_dim = 3; }),
              StartsWith("'head_dim' is 3"));
}

TEST(ShardRefusals, FusedExpertsThatAreNotTheModels) {
  const auto why = [](std::uint32_t world_size,
                      const std::function<void(std::vector<TensorInfo>&)>& change) {
    ShardOptions options = options_of(small_spec());
    options.spec.heads = options.spec.key_value_heads = options.world_size = world_size;
    const Manifest all = manifest_of(moe::all_parameters(options.spec, moe::ExpertForm::kFused));
    std::vector<TensorInfo> tensors(all.tensors().begin(), all.tensors().end());
    change(tensors);
    return refusal(options, Manifest::create(std::move(tensors)).value()).message();
  };
  constexpr const char* kGateUp = "model.layers.1.mlp.experts.gate_up_proj";
  // As some other models have them: [experts, hidden, 2 * expert_hidden].
  EXPECT_EQ(why(1, [](auto& tensors) { tensor(tensors, kGateUp).shape = {6, 24, 40}; }),
            "model.layers.1.mlp.experts.gate_up_proj BF16 [6, 24, 40]: expected shape [6, 40, 24] "
            "according to config.json");
  EXPECT_EQ(why(1,
                [](auto& tensors) {
                  std::erase_if(tensors, [](const TensorInfo& t) { return t.name == kGateUp; });
                }),
            "model.layers.1.mlp.experts.gate_up_proj BF16 [6, 40, 24] is missing; it is a "
            "parameter of config.json's model");
  EXPECT_EQ(why(4, [](auto&) {}),
            "'num_experts' is 6, which cannot be divided equally among 4 ranks; choose a number of "
            "ranks that divides it");
}

TEST(ShardRefusals, OptionsOutOfTheirRange) {
  const Manifest manifest = manifest_of(moe::all_parameters(small_spec()));
  const auto why = [&](const std::function<void(ShardOptions&)>& change) {
    ShardOptions options = options_of(small_spec());
    change(options);
    const Error error = refusal(options, manifest);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    return error.message();
  };
  EXPECT_EQ(why([](ShardOptions& options) { options.blocks = 0; }),
            "'blocks' is 0; expected 1 to 1048576");
  EXPECT_EQ(why([](ShardOptions& options) { options.blocks = kMaxBlocks + 1; }),
            "'blocks' is 1048577; expected 1 to 1048576");
  EXPECT_EQ(why([](ShardOptions& options) { options.block_tokens = 0; }),
            "'block_tokens' is 0; expected 1 to 4096");
  EXPECT_EQ(why([](ShardOptions& options) { options.block_tokens = 4097; }),
            "'block_tokens' is 4097; expected 1 to 4096");
  EXPECT_EQ(why([](ShardOptions& options) { options.max_step_tokens = 0; }),
            "'max_step_tokens' is 0; expected 1 to 65536");
  EXPECT_EQ(why([](ShardOptions& options) { options.rank = 1; }),
            "rank 1 of 1: expected a rank below the number of ranks");
  EXPECT_EQ(why([](ShardOptions& options) { options.world_size = 0; }),
            "rank 0 of 0: expected a rank below the number of ranks");
}

TEST(ShardRefusals, MoreBlocksThanThereIsMemory) {
  const Manifest manifest = manifest_of(moe::all_parameters(small_spec()));
  ShardOptions options = options_of(small_spec(), 4096);
  options.blocks = kMaxBlocks;  // 1.4 TB
  const Error error = refusal(options, manifest);
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.message(),
              HasSubstr("keys and values in 1048576 blocks of 4096 tokens (1310720 bytes each)"));
}

TEST(ShardRefusalsDeathTest, ABatchOutsideTheLimitsAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const SmallModel model(small_spec());
  const auto shard = make_shard(options_of(model.spec), model.manifest);
  HeldWeights weights(model);
  const Batch batch{.slices = {{.first_position = 0, .tokens = {44}, .blocks = {0}}}};
  EXPECT_DEATH(static_cast<void>(shard->forward(batch, weights, {}, now())),
               "slice 0 has token 44; the vocabulary has 44");
}

}  // namespace
}  // namespace wsync::engine::generation
