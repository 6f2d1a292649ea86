// The reference model's operators on small cases that can be worked out by hand, and its config.
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "shared/moe/model_spec.h"
#include "shared/moe/operators.h"

namespace wsync::moe {
namespace {

TEST(Products, AreWhatTheyAreCalled) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6};  // [2,3]
  const std::vector<float> w{1, 0, 2, 0, 1, 1};  // [2,3]
  std::vector<float> y(4);
  linear({x, 2, 3}, {w, 2, 3}, {y, 2, 2});
  EXPECT_EQ(y, (std::vector<float>{7, 5, 16, 11}));
  linear({x, 2, 3}, {w, 2, 3}, {y, 2, 2}, Into::kAdd);
  EXPECT_EQ(y, (std::vector<float>{14, 10, 32, 22}));
  const std::vector<float> dy{1, 2, 0, 1};  // [2,2]
  std::vector<float> dx(6);
  linear_input_gradient({dy, 2, 2}, {w, 2, 3}, {dx, 2, 3});
  EXPECT_EQ(dx, (std::vector<float>{1, 2, 4, 0, 1, 1}));
  std::vector<float> dw(6, 1.0F);
  linear_weight_gradient({dy, 2, 2}, {x, 2, 3}, {dw, 2, 3});
  EXPECT_EQ(dw, (std::vector<float>{2, 3, 4, 7, 10, 13}));
  // No row: a sum of nothing.
  linear_weight_gradient({std::span(dy).first(0), 0, 2}, {std::span(x).first(0), 0, 3}, {dw, 2, 3},
                         Into::kReplace);
  EXPECT_EQ(dw, std::vector<float>(6));
}

TEST(Products, OfSomeColumnsLeaveTheOthers) {
  const std::vector<float> x{1, 2, 3, 4};  // [2,2]
  const std::vector<float> w{1, 1, 0, 2};  // [2,2]
  std::vector<float> y(8, 9.0F);           // [2,4]
  linear_columns({x, 2, 2}, {w, 2, 2}, {y, 2, 4}, 1);
  EXPECT_EQ(y, (std::vector<float>{9, 3, 4, 9, 9, 7, 8, 9}));
  linear_columns({x, 2, 2}, {w, 2, 2}, {y, 2, 4}, 2, Into::kAdd);
  EXPECT_EQ(y, (std::vector<float>{9, 3, 7, 13, 9, 7, 15, 17}));
  // Sums of nothing.
  const std::span<const float> none;
  linear_columns({none, 2, 0}, {none, 1, 0}, {y, 2, 4}, 3, Into::kAdd);
  EXPECT_EQ(y[3], 13);
  linear_columns({none, 2, 0}, {none, 1, 0}, {y, 2, 4}, 3);
  EXPECT_EQ(y, (std::vector<float>{9, 3, 7, 0, 9, 7, 15, 0}));
}

TEST(Operators, NormAndGate) {
  const std::vector<float> x{3, 4};
  const std::vector<float> weight{1, 2};
  std::vector<float> y(2);
  std::vector<float> inverse(1);
  rms_norm({x, 1, 2}, weight, 0.0F, {y, 1, 2}, inverse);
  EXPECT_FLOAT_EQ(inverse[0], 1 / std::sqrt(12.5F));
  EXPECT_FLOAT_EQ(y[1], 8 / std::sqrt(12.5F));
  const std::vector<float> gate{0, 1};
  const std::vector<float> up{5, 2};
  swiglu({gate, 1, 2}, {up, 1, 2}, {y, 1, 2});
  EXPECT_FLOAT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(y[1], 2 / (1 + std::exp(-1.0F)));
}

TEST(Operators, RotationTurnsByPositionAndBack) {
  const RotaryTable table(4, 3, 100);
  const std::vector<float> start{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
  std::vector<float> x = start;
  table.turn({x, 3, 4}, 3, RotaryTable::Direction::kForward);
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 4), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_FLOAT_EQ(x[4], std::cos(1.0F) - 3 * std::sin(1.0F));
  EXPECT_FLOAT_EQ(x[6], 3 * std::cos(1.0F) + std::sin(1.0F));
  EXPECT_FLOAT_EQ(x[5], 2 * std::cos(0.1F) - 4 * std::sin(0.1F));
  table.turn({x, 3, 4}, 3, RotaryTable::Direction::kGradient);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], start[i], 1e-6);
}

TEST(Operators, RotationByPositionsIsThatOfTheirRows) {
  const RotaryTable table(4, 5, 100);
  std::vector<float> rows(5 * 8);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(static_cast<float>(i));
  std::vector<float> turned = rows;
  table.turn({turned, 5, 8}, 5, RotaryTable::Direction::kForward);
  const std::vector<std::uint32_t> positions{4, 0, 3, 3};
  std::vector<float> mixed;
  for (const std::uint32_t position : positions)
    mixed.insert(mixed.end(), rows.begin() + position * 8, rows.begin() + position * 8 + 8);
  table.turn({mixed, 4, 8}, positions);
  for (std::size_t i = 0; i < mixed.size(); ++i)
    EXPECT_EQ(mixed[i], turned[positions[i / 8] * 8 + i % 8]) << i;
}

TEST(OperatorsDeathTest, RotationNeedsItsPosition) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const RotaryTable table(2, 3, 100);
  std::vector<float> x(2);
  const std::vector<std::uint32_t> behind{3};
  EXPECT_DEATH(table.turn({x, 1, 2}, behind), "the table has the positions of what it turns");
  const std::vector<std::uint32_t> two{0, 1};
  EXPECT_DEATH(table.turn({x, 1, 2}, two), "each row a position");
}

TEST(Operators, RouterTakesTheHighestAndOfEqualOnesTheFirst) {
  const std::vector<float> logits{0, 2, 1, 2, /**/ 1, 1, 1, 1};
  const Routing routing = route({logits, 2, 4}, 2, true);
  EXPECT_EQ(routing.experts, (std::vector<std::uint32_t>{1, 3, 0, 1}));
  for (const float weight : routing.weights) EXPECT_FLOAT_EQ(weight, 0.5F);
  EXPECT_FLOAT_EQ(route({logits, 2, 4}, 2, false).weights[2], 0.25F);
}

TEST(Operators, CrossEntropyOfEvenLogits) {
  const std::vector<float> logits(8, 3.0F);
  std::vector<float> gradient(8);
  const std::vector<std::uint32_t> targets{1, 2};
  EXPECT_NEAR(cross_entropy({logits, 2, 4}, targets, 2.0F, {gradient, 2, 4}), 2 * std::log(4.0),
              1e-12);
  EXPECT_FLOAT_EQ(gradient[0], 0.5F);
  EXPECT_FLOAT_EQ(gradient[1], -1.5F);
}

TEST(Config, ReadsBackWhatItWrites) {
  ModelSpec spec;
  spec.rope_theta = 1e6;
  spec.tied_embeddings = true;
  const Result<ModelSpec> read = read_config(write_config(spec), "config.json");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(*read, spec);
}

TEST(Config, RefusesWhatWouldChangeTheLogits) {
  const auto why = [](const std::string& from, const std::string& to) {
    std::string text = write_config(ModelSpec{});
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const Result<ModelSpec> read = read_config(text, "c");
    return read ? std::string("read") : read.error().message();
  };
  EXPECT_EQ(why("\"qwen3_moe\"", "\"llama\""),
            "c: 'model_type' is \"llama\"; only \"qwen3_moe\" is supported");
  EXPECT_EQ(why("\"vocab_size\": 256", "\"vocab_size\": -1"),
            "c: 'vocab_size' is -1; expected a whole number up to 16777216");
  EXPECT_EQ(why("\"vocab_size\"", "\"vocab\""), "c: 'vocab_size' is missing");
  EXPECT_EQ(why("\"attention_bias\": false", "\"attention_bias\": true"),
            "c: 'attention_bias' is true; only false is supported");
  EXPECT_EQ(why("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
            "c: 4 query heads cannot be divided evenly among 3 key-value heads");
  EXPECT_EQ(why("\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\"}"),
            "c: 'rope_scaling' is of type \"yarn\"; only default is supported");
  EXPECT_EQ(why("{", "["), "c: it is not a JSON object");
}

// The keys that transformers 5 writes in the place of two others.
std::string of_transformers_5(const std::string& experts, const std::string& rope) {
  std::string text = write_config(ModelSpec{});
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"num_experts\": 8", experts},
                                 {"\"rope_theta\": 10000.0", rope},
                                 {"\"rope_scaling\": null,", ""}})
    text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(Config, ReadsWhatTransformers5Writes) {
  const std::string rope = R"("rope_parameters": {"rope_theta": 500.0, "rope_type": "default"})";
  for (const char* experts :
       {R"("num_local_experts": 8)", R"("num_experts": 8, "num_local_experts": 8)"}) {
    const Result<ModelSpec> read = read_config(of_transformers_5(experts, rope), "c");
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ(*read, (ModelSpec{.rope_theta = 500}));
  }
}

TEST(Config, RefusesWhatTransformers5MayWrite) {
  const auto why = [](const std::string& experts, const std::string& rope) {
    const Result<ModelSpec> read = read_config(of_transformers_5(experts, rope), "c");
    return read ? std::string("read") : read.error().message();
  };
  const std::string eight = R"("num_local_experts": 8)";
  EXPECT_EQ(why(eight, R"("rope_parameters": {"rope_theta": 1.0, "rope_type": "yarn"})"),
            "c: 'rope_parameters' is of type \"yarn\"; only default is supported");
  EXPECT_EQ(why(eight, R"("rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.5})"),
            "c: 'partial_rotary_factor' of 'rope_parameters' is 0.5; only 1 is supported");
  EXPECT_EQ(why(eight, R"("rope_parameters": 3)"), "c: 'rope_parameters' is not an object");
  EXPECT_EQ(why(eight, R"("rope_parameters": {"rope_theta": -1})"),
            "c: 'rope_theta' is -1; expected a number above 0");
  EXPECT_EQ(why(eight, R"("rope_theta": 7.0, "rope_parameters": {"rope_theta": 8.0})"),
            "c: 'rope_theta' is 7, but that of 'rope_parameters' is 8; expected the same");
  EXPECT_EQ(why(R"("num_experts": 8, "num_local_experts": 4)", R"("rope_theta": 1.0)"),
            "c: 'num_experts' is 8, but 'num_local_experts' is 4; expected one number of experts");
  EXPECT_EQ(why(R"("experts": 8)", R"("rope_theta": 1.0)"),
            "c: 'num_experts' (or 'num_local_experts') is missing");
}

TEST(Config, FusedExpertsAreTwoParameters) {
  const std::vector<Parameter> layer =
      layer_parameters({.hidden = 6, .experts = 2, .expert_hidden = 5}, 3, ExpertForm::kFused);
  ASSERT_EQ(layer.size(), 9 + 2U);
  EXPECT_EQ(layer[9].name, "model.layers.3.mlp.experts.gate_up_proj");
  EXPECT_EQ(layer[9].shape, (std::vector<std::uint64_t>{2, 10, 6}));
  EXPECT_EQ(layer[10].name, "model.layers.3.mlp.experts.down_proj");
  EXPECT_EQ(layer[10].shape, (std::vector<std::uint64_t>{2, 6, 5}));
}

TEST(Config, ParametersHaveTheirHuggingFaceNames) {
  ModelSpec spec{.layers = 1, .experts = 2};
  spec.tied_embeddings = true;
  std::vector<std::string> names;
  for (const Parameter& parameter : all_parameters(spec)) names.push_back(parameter.name);
  EXPECT_EQ(names.size(), 1 + 9 + 2 * 3 + 1U);
  EXPECT_EQ(names[9], "model.layers.0.mlp.gate.weight");
  EXPECT_EQ(names[12], "model.layers.0.mlp.experts.0.down_proj.weight");
  EXPECT_EQ(names.back(), "model.norm.weight");
}

}  // namespace
}  // namespace wsync::moe
