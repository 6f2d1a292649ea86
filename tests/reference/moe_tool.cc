// The reference model of wsync for transformers to judge.
//
// Usage: moe_tool make DIR SEED TIED           a random checkpoint of a small model; TIED 0 or 1
//        moe_tool run DIR SEQUENCES LENGTH OUT  logits and gradients of the mean loss of SEQUENCES
//                                               sequences of LENGTH made-up tokens, as safetensors
//        moe_tool adamw STEPS OUT  a matrix and a vector, made-up gradients of STEPS steps, and
//        both
//                                  after each step with clipping, as safetensors
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "shared/weights/safetensors.h"
#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/optimizer.h"
#include "trainer_side/training/sequential.h"

namespace {

using namespace wsync;

int complain(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::span<const float> values;
};
using Tensors = std::vector<Tensor>;

int write(const std::string& out, const Tensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const Tensor& tensor : tensors)
    infos.push_back({.name = tensor.name, .dtype = DType::kF32, .shape = tensor.shape});
  const auto written = write_safetensors(
      out, infos, {},
      [&](std::size_t i, std::uint64_t offset, std::span<std::byte> to) -> Result<> {
        std::memcpy(to.data(), std::as_bytes(tensors[i].values).data() + offset, to.size());
        return {};
      });
  return written ? 0 : complain(written.error());
}

int make(const std::string& directory, std::uint64_t seed, bool tied) {
  const moe::ModelSpec spec{.vocabulary = 97,
                            .hidden = 48,
                            .layers = 3,
                            .heads = 6,
                            .key_value_heads = 2,
                            .head_dim = 16,
                            .experts = 8,
                            .experts_per_token = 3,
                            .expert_hidden = 40,
                            .max_positions = 64,
                            .rope_theta = 5'000,
                            .tied_embeddings = tied};
  training::ParameterSet parameters(moe::all_parameters(spec));
  training::initialise(parameters, seed, 0.15);
  const auto saved = training::save_model(directory, spec, parameters, training::SavedAs::kFloat32);
  return saved ? 0 : complain(saved.error());
}

int run(const std::string& directory, std::size_t sequences, std::size_t length,
        const std::string& out) {
  const auto model = training::load_model(directory);
  if (!model) return complain(model.error());
  const std::size_t tokens = sequences * length;
  training::MicroBatch batch{.sequence = length, .tokens = {}, .targets = {}};
  for (std::size_t i = 0; i < tokens; ++i) {
    batch.tokens.push_back(
        static_cast<std::uint32_t>((i * i * 7 + i * 13 + 5) % model->spec.vocabulary));
    batch.targets.push_back(static_cast<std::uint32_t>((i * 11 + 3) % model->spec.vocabulary));
  }
  const training::SequentialModel reference(model->spec, model->parameters, length);
  const training::Buffer logits = reference.logits(batch);
  training::ParameterSet gradients(moe::all_parameters(model->spec));
  const double loss =
      reference.loss_and_gradients(batch, 1.0F / static_cast<float>(tokens), gradients);
  std::printf("loss %.9g\n", loss / static_cast<double>(tokens));
  Tensors tensors{{"logits", {tokens, model->spec.vocabulary}, logits.matrix().values()}};
  for (const moe::Parameter& parameter : gradients.parameters())
    tensors.push_back(
        {parameter.name, parameter.shape, std::as_const(gradients).values(parameter.name)});
  return write(out, tensors);
}

// Options as tests/reference/check_optimizer.py has them.
constexpr training::OptimizerOptions kOptimizer{
    .learning_rate = 3e-3, .final_learning_rate = 3e-4, .warmup_steps = 5, .total_steps = 16};

int adamw(std::uint64_t steps, const std::string& out) {
  const std::vector<moe::Parameter> parameters{{.name = "matrix", .shape = {96, 100}},
                                               {.name = "vector", .shape = {50}}};
  training::ParameterSet weights(parameters), mean(parameters), variance(parameters);
  training::initialise(weights, 3);
  std::list<training::ParameterSet> kept;  // what `tensors` points into
  Tensors tensors;
  const auto keep = [&](const std::string& what, const training::ParameterSet& values) {
    kept.push_back(values);
    for (const moe::Parameter& parameter : parameters)
      tensors.push_back({what + "." + parameter.name, parameter.shape,
                         std::as_const(kept.back()).values(parameter.name)});
  };
  keep("0", weights);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    training::ParameterSet gradient(parameters);
    // Norms on both sides of the limit.
    training::initialise(gradient, 100 + step, step % 3 == 0 ? 0.004 : 0.04);
    std::vector<double> sums;
    for (const moe::Parameter& parameter : parameters) {
      const std::span<float> values = gradient.values(parameter.name);
      if (parameter.shape.size() == 1)
        for (float& value : values) value *= 0.01F;
      for (std::size_t at = 0; at < values.size(); at += training::kNormBlock)
        sums.push_back(training::square_sum(
            values.subspan(at, std::min(training::kNormBlock, values.size() - at))));
    }
    keep("gradient." + std::to_string(step), gradient);
    const float factor = training::clip_factor(training::norm_of(sums), kOptimizer.clip_norm);
    for (const moe::Parameter& parameter : parameters)
      training::adamw_step(
          kOptimizer, step, parameter.shape.size() > 1, factor, gradient.values(parameter.name),
          weights.values(parameter.name),
          {.mean = mean.values(parameter.name), .variance = variance.values(parameter.name)});
    keep(std::to_string(step), weights);
  }
  return write(out, tensors);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 4 && words[0] == "make")
    return make(words[1], std::strtoull(words[2].c_str(), nullptr, 10), words[3] == "1");
  if (words.size() == 5 && words[0] == "run")
    return run(words[1], std::strtoull(words[2].c_str(), nullptr, 10),
               std::strtoull(words[3].c_str(), nullptr, 10), words[4]);
  if (words.size() == 3 && words[0] == "adamw")
    return adamw(std::strtoull(words[1].c_str(), nullptr, 10), words[2]);
  std::fputs(
      "usage: moe_tool make DIR SEED TIED | moe_tool run DIR SEQUENCES LENGTH OUT | moe_tool adamw "
      "STEPS OUT\n",
      stderr);
  return 2;
}
