// The reference model of wsync for transformers to judge.
//
// Usage: moe_tool make DIR SEED TIED           a random checkpoint of a small model; TIED 0 or 1
//        moe_tool run DIR SEQUENCES LENGTH OUT  logits and gradients of the mean loss of SEQUENCES
//                                               sequences of LENGTH made-up tokens, as safetensors
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "shared/weights/safetensors.h"
#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/sequential.h"

namespace {

using namespace wsync;

int complain(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
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
  std::vector<TensorInfo> infos{
      {.name = "logits", .dtype = DType::kF32, .shape = {tokens, model->spec.vocabulary}}};
  std::vector<std::span<const float>> values{logits.matrix().values()};
  for (const moe::Parameter& parameter : gradients.parameters()) {
    infos.push_back({.name = parameter.name, .dtype = DType::kF32, .shape = parameter.shape});
    values.push_back(std::as_const(gradients).values(parameter.name));
  }
  const auto written = write_safetensors(
      out, infos, {},
      [&](std::size_t i, std::uint64_t offset, std::span<std::byte> to) -> Result<> {
        std::memcpy(to.data(), std::as_bytes(values[i]).data() + offset, to.size());
        return {};
      });
  return written ? 0 : complain(written.error());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 4 && words[0] == "make")
    return make(words[1], std::strtoull(words[2].c_str(), nullptr, 10), words[3] == "1");
  if (words.size() == 5 && words[0] == "run")
    return run(words[1], std::strtoull(words[2].c_str(), nullptr, 10),
               std::strtoull(words[3].c_str(), nullptr, 10), words[4]);
  std::fputs("usage: moe_tool make DIR SEED TIED | moe_tool run DIR SEQUENCES LENGTH OUT\n",
             stderr);
  return 2;
}
