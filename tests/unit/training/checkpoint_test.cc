// Models to and from a directory, and what a directory that does not fit is told.
#include "trainer_side/training/checkpoint.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <utility>

namespace wsync::training {
namespace {

namespace fs = std::filesystem;

class ModelDirectory : public testing::Test {
 protected:
  ModelDirectory() : root_(testing::TempDir() + "wsync-model-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~ModelDirectory() override { fs::remove_all(root_); }
  [[nodiscard]] std::string at(const std::string& name) const { return root_ + "/" + name; }
  // The sentence of a load that must fail.
  static std::string why(const std::string& directory) {
    const auto loaded = load_model(directory);
    return loaded ? std::string("loaded") : loaded.error().message();
  }

  moe::ModelSpec spec_{.vocabulary = 12, .hidden = 8, .layers = 1, .experts = 2};

 private:
  std::string root_;
};

ParameterSet random_parameters(const moe::ModelSpec& spec) {
  ParameterSet parameters(moe::all_parameters(spec));
  initialise(parameters, 4, 1.0);
  return parameters;
}

TEST_F(ModelDirectory, Float32ComesBackAsItWas) {
  const ParameterSet parameters = random_parameters(spec_);
  ASSERT_TRUE(save_model(at("m"), spec_, parameters, SavedAs::kFloat32).has_value());
  const auto loaded = load_model(at("m"));
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  EXPECT_EQ(loaded->spec, spec_);
  for (const moe::Parameter& parameter : parameters.parameters()) {
    const auto a = parameters.values(parameter.name);
    const auto b = loaded->parameters.values(parameter.name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << parameter.name;
  }
}

TEST_F(ModelDirectory, BFloat16IsTheNearest) {
  const ParameterSet parameters = random_parameters(spec_);
  ASSERT_TRUE(save_model(at("m"), spec_, parameters, SavedAs::kBFloat16).has_value());
  const auto loaded = load_model(at("m"));
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  for (const moe::Parameter& parameter : parameters.parameters())
    for (std::size_t i = 0; i < parameter.elements(); ++i)
      ASSERT_EQ(loaded->parameters.values(parameter.name)[i],
                from_bfloat16(to_bfloat16(parameters.values(parameter.name)[i])));
}

TEST(BFloat16, RoundsToTheNearestAndHalvesToEven) {
  EXPECT_EQ(to_bfloat16(1.0F), 0x3f80);
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F), 0x3f80);             // half way: down to even
  EXPECT_EQ(to_bfloat16(1.0F + 3 * 0x1p-8F), 0x3f82);         // half way: up to even
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F + 0x1p-20F), 0x3f81);  // above half way
  EXPECT_EQ(to_bfloat16(-2.0F), 0xc000);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);  // infinity is nearer
  EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(std::nanf("1")))));
  EXPECT_EQ(from_bfloat16(0x3f80), 1.0F);
}

TEST_F(ModelDirectory, WhatDoesNotFitIsNamed) {
  EXPECT_NE(why(at("none")).find("no such directory"), std::string::npos) << why(at("none"));
  const ParameterSet parameters = random_parameters(spec_);
  ASSERT_TRUE(save_model(at("m"), spec_, parameters, SavedAs::kFloat32).has_value());
  const auto rewrite = [&](const moe::ModelSpec& other) {
    std::ofstream(at("m") + "/config.json") << moe::write_config(other);
  };
  moe::ModelSpec other = spec_;
  other.hidden = 16;
  rewrite(other);
  EXPECT_NE(why(at("m")).find("shape [12, 8], expected [12, 16] according to config.json"),
            std::string::npos)
      << why(at("m"));
  other = spec_;
  other.experts = 3;
  rewrite(other);
  EXPECT_NE(why(at("m")).find("model.layers.0.mlp.gate.weight: shape [2, 8], expected [3, 8]"),
            std::string::npos)
      << why(at("m"));
  other = spec_;
  other.layers = 2;
  rewrite(other);
  EXPECT_NE(why(at("m")).find("model.layers.1.input_layernorm.weight is missing"),
            std::string::npos)
      << why(at("m"));
  other = spec_;
  other.tied_embeddings = true;
  rewrite(other);
  EXPECT_NE(why(at("m")).find("lm_head.weight: config.json's model has no such parameter"),
            std::string::npos)
      << why(at("m"));
  fs::remove(at("m") + "/config.json");
  EXPECT_NE(why(at("m")).find("config.json"), std::string::npos);
}

// Sizes that are possible one by one must not make the reader ask for memory that no host has.
TEST_F(ModelDirectory, AModelThatCannotBeIsRefusedBeforeThereIsMemoryForIt) {
  ASSERT_TRUE(save_model(at("m"), spec_, random_parameters(spec_), SavedAs::kFloat32).has_value());
  const auto told = [&](moe::ModelSpec other) {
    std::ofstream(at("m") + "/config.json") << moe::write_config(other);
    return why(at("m"));
  };
  moe::ModelSpec other = spec_;
  other.layers = other.experts = 1U << 24U;
  EXPECT_NE(told(other).find("more than 1048576 parameters, the limit"), std::string::npos)
      << told(other);
  other = spec_;
  other.vocabulary = other.hidden = 1U << 24U;
  EXPECT_NE(told(other).find("elements, the limit"), std::string::npos) << told(other);
  other = spec_;
  other.layers = 60'000;
  other.expert_hidden = other.hidden = 1U << 12U;
  EXPECT_NE(told(other).find("elements, the limit"), std::string::npos) << told(other);
  other = spec_;
  other.heads = other.key_value_heads = other.head_dim = 1U << 13U;
  EXPECT_NE(told(other).find("elements of all heads, the limit"), std::string::npos) << told(other);
  // Of 4 TiB: it is within the limits, and not in this directory.
  other = spec_;
  other.expert_hidden = 1U << 24U;
  other.hidden = 1U << 14U;
  EXPECT_NE(told(other).find("according to config.json"), std::string::npos) << told(other);
  std::ofstream(at("m") + "/config.json") << std::string(moe::kModelConfigBytes + 1, ' ');
  EXPECT_NE(why(at("m")).find("more than 1048576 bytes"), std::string::npos) << why(at("m"));
}

}  // namespace
}  // namespace wsync::training
