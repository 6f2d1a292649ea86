// A small model for the tests of the forward: weights that bfloat16 has exactly, each rank's parts
// of them as the engine holds them, and the logits that the trainer's plain loops give.
#pragma once

#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "inference_side/reference_engine/generation/model_shard.h"
#include "inference_side/reference_engine/held_model.h"
#include "inference_side/reload/shard.h"
#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/sequential.h"

namespace wsync::engine::generation {

inline moe::ModelSpec small_spec() {
  return {.vocabulary = 44,
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .key_value_heads = 2,
          .head_dim = 10,
          .experts = 6,
          .experts_per_token = 2,
          .expert_hidden = 20,
          .max_positions = 40,
          .rope_theta = 500};
}

inline Manifest manifest_of(const std::vector<moe::Parameter>& parameters,
                            DType dtype = DType::kBF16) {
  std::vector<TensorInfo> tensors;
  for (const moe::Parameter& parameter : parameters)
    tensors.push_back({.name = parameter.name, .dtype = dtype, .shape = parameter.shape});
  return Manifest::create(std::move(tensors)).value();
}

struct SmallModel {
  explicit SmallModel(const moe::ModelSpec& of, std::uint64_t seed = 1,
                      moe::ExpertForm form = moe::ExpertForm::kSeparate)
      : spec(of),
        weights(moe::all_parameters(of)),
        manifest(manifest_of(moe::all_parameters(of, form))) {
    training::initialise(weights, seed, 0.3);
    std::mt19937 random(static_cast<unsigned>(seed));
    for (const moe::Parameter& parameter : weights.parameters())
      if (parameter.shape.size() == 1)  // norms are not all one
        for (float& value : weights.values(parameter.name))
          value = 0.5F + static_cast<float>(random() % 1000) / 1000.0F;
    for (float& value : weights.all())
      value = training::from_bfloat16(training::to_bfloat16(value));
  }

  // Of every token of one sequence.
  [[nodiscard]] training::Buffer logits(const std::vector<Token>& tokens) const {
    return training::SequentialModel(spec, weights, tokens.size())
        .logits({.sequence = tokens.size(), .tokens = tokens, .targets = tokens});
  }
  [[nodiscard]] std::vector<Token> tokens(std::size_t count, unsigned seed = 3) const {
    std::mt19937 random(seed);
    std::vector<Token> drawn(count);
    for (Token& token : drawn) token = static_cast<Token>(random() % spec.vocabulary);
    return drawn;
  }

  // Of a tensor of the manifest. `weights` has the experts separate in either form.
  [[nodiscard]] std::vector<float> values(const std::string& name) const {
    std::vector<float> values;
    const auto add = [&](const std::string& parameter) {
      const std::span<const float> more = weights.values(parameter);
      values.insert(values.end(), more.begin(), more.end());
    };
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    const bool gate_up = name.ends_with("experts.gate_up_proj");
    if (!gate_up && !name.ends_with("experts.down_proj")) {
      add(name);
      return values;
    }
    for (std::uint32_t expert = 0; expert < spec.experts; ++expert) {
      const std::string of_expert = prefix + std::to_string(expert);
      for (const char* part : gate_up ? std::vector<const char*>{".gate_proj", ".up_proj"}
                                      : std::vector<const char*>{".down_proj"})
        add(of_expert + part + ".weight");
    }
    return values;
  }

  moe::ModelSpec spec;
  training::ParameterSet weights;
  Manifest manifest;
};

// The weights as one rank of an engine holds them. Expects each tensor to be read while its layer
// is visited, and keeps the order of the visits.
class HeldWeights final : public WeightView {
 public:
  explicit HeldWeights(const SmallModel& model, std::uint32_t rank = 0,
                       std::uint32_t world_size = 1)
      : manifest_(model.manifest), tensors_(reference::rank_tensors(manifest_, rank, world_size)) {
    take(model);
  }
  // Puts the weights of another model of the same sizes in their place.
  void take(const SmallModel& model) {
    parts_.clear();
    for (const control::EngineTensor& tensor : tensors_) {
      const std::vector<float> values = model.values(tensor.name);
      Bytes whole(values.size() * 2);
      training::export_bfloat16(values, 0, whole);
      const auto shard = reload::Shard::make(16, tensor.shape, tensor.ranges).value();
      Bytes& part = parts_.emplace_back(1);  // at an odd address
      for (std::uint64_t at = 0; at < shard.bytes();) {
        const reload::Shard::Run run = shard.run_at(at);
        const auto from = std::span(whole).subspan(run.offset, run.bytes);
        part.insert(part.end(), from.begin(), from.end());
        at += run.bytes;
      }
    }
  }

  [[nodiscard]] std::span<const std::byte> tensor(std::uint32_t t) const override {
    EXPECT_EQ(open_, static_cast<int>(manifest_.layer(t))) << describe(manifest_.tensor(t));
    return std::span(parts_.at(t)).subspan(1);
  }
  void begin_layer(std::uint32_t layer) override {
    EXPECT_EQ(open_, -1);
    open_ = static_cast<int>(layer);
    visits.push_back(layer);
  }
  void end_layer(std::uint32_t layer) override {
    EXPECT_EQ(open_, static_cast<int>(layer));
    open_ = -1;
  }
  [[nodiscard]] bool between_layers() const { return open_ == -1; }

  std::vector<std::uint32_t> visits;

 private:
  const Manifest& manifest_;
  std::vector<control::EngineTensor> tensors_;
  std::vector<Bytes> parts_;
  int open_ = -1;
};

inline constexpr std::uint32_t kBlocks = 128;

inline ShardOptions options_of(const moe::ModelSpec& spec, std::uint32_t block_tokens = 4) {
  return {.spec = spec, .blocks = kBlocks, .block_tokens = block_tokens, .max_step_tokens = 256};
}

inline std::unique_ptr<ModelShard> make_shard(const ShardOptions& options,
                                              const Manifest& manifest) {
  auto shard = ModelShard::create(options, manifest);
  EXPECT_TRUE(shard.has_value()) << shard.error().message();
  return std::move(*shard);
}

// A sequence as a scheduler has it: what is computed, and its blocks.
struct Sequence {
  std::vector<Token> tokens;
  std::vector<std::uint32_t> blocks;
  std::uint32_t computed = 0;

  // The next `count` tokens.
  SequenceSlice next(std::size_t count, bool wants_logits = true) {
    SequenceSlice slice{.first_position = computed,
                        .tokens = {tokens.begin() + computed,
                                   tokens.begin() + computed + static_cast<std::ptrdiff_t>(count)},
                        .blocks = blocks,
                        .wants_logits = wants_logits};
    computed += static_cast<std::uint32_t>(count);
    return slice;
  }
  [[nodiscard]] bool done() const { return computed == tokens.size(); }
};

// Blocks of a shard, each given once, in an order of their own.
class FreeBlocks {
 public:
  explicit FreeBlocks(unsigned seed) : free_(kBlocks) {
    std::iota(free_.begin(), free_.end(), 0U);
    std::mt19937 random(seed);
    std::shuffle(free_.begin(), free_.end(), random);
  }
  std::vector<std::uint32_t> take(std::size_t positions, std::uint32_t block_tokens) {
    std::vector<std::uint32_t> blocks;
    for (std::size_t at = 0; at < positions; at += block_tokens) {
      blocks.push_back(free_.at(free_.size() - 1));
      free_.pop_back();
    }
    return blocks;
  }

 private:
  std::vector<std::uint32_t> free_;
};

inline std::vector<float> forward_alone(ModelShard& shard, const Batch& batch,
                                        WeightView& weights) {
  const auto logits = shard.forward(batch, weights, {}, now());
  EXPECT_TRUE(logits.has_value()) << logits.error().message();
  return logits ? *logits : std::vector<float>(batch.logits() * shard.limits().vocabulary);
}

inline void expect_near(std::span<const float> logits, std::span<const float> expected,
                        const std::string& what) {
  ASSERT_EQ(logits.size(), expected.size()) << what;
  for (std::size_t i = 0; i < logits.size(); ++i)
    ASSERT_NEAR(logits[i], expected[i], 1e-4) << what << ", logit " << i;
}

}  // namespace wsync::engine::generation
