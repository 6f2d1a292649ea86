#include "shared/weights/example/example_checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "shared/weights/example/example_model.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Stored {
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

// Every tensor of a directory, read by the rules of the format: the header covers the file exactly.
std::map<std::string, Stored> read_directory(const std::string& directory) {
  std::map<std::string, Stored> tensors;
  const auto index = nlohmann::json::parse(read(directory + "/model.safetensors.index.json"));
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string text = read(entry.path());
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
    EXPECT_EQ(header_bytes % 8, 0U);
    const auto header = nlohmann::json::parse(text.substr(8, header_bytes));
    std::uint64_t end = 0;
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      EXPECT_EQ(tensor.at("dtype"), "BF16");
      EXPECT_EQ(index.at("weight_map").at(name), entry.path().filename().string());
      const auto offsets = tensor.at("data_offsets").get<std::vector<std::uint64_t>>();
      EXPECT_EQ(offsets[0], end) << name;
      end = offsets[1];
      tensors[name] = {tensor.at("shape"),
                       text.substr(8 + header_bytes + offsets[0], offsets[1] - offsets[0])};
    }
    EXPECT_EQ(8 + header_bytes + end, text.size());
  }
  EXPECT_EQ(index.at("weight_map").size(), tensors.size());
  return tensors;
}

TEST(DemoModel, MeetsTheSizeWithTheNamesOfQwen3Moe) {
  for (const std::uint64_t mib : {1ULL, 5ULL, 256ULL, 1024ULL, 100'000ULL}) {
    const DemoModel model = DemoModel::scaled_to(mib << 20U).value();
    const Manifest manifest = Manifest::create(model.tensors()).value();
    EXPECT_LE(manifest.total_bytes(), mib << 20U);
    EXPECT_GT(manifest.total_bytes() + 4 * model.hidden, mib << 20U);
    EXPECT_GE(model.layers, mib == 1 ? 1U : 8U);
    EXPECT_TRUE(manifest.find("model.layers.0.mlp.experts.15.down_proj.weight").has_value());
    EXPECT_TRUE(manifest.find("model.layers.0.self_attn.k_norm.weight").has_value());
  }
  EXPECT_EQ(DemoModel::scaled_to(1).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(DemoModel::scaled_to(1ULL << 50U).error().code(), ErrorCode::kInvalidInput);
}

TEST(DemoCheckpoint, WritesWhatTheModelDescribes) {
  const TemporaryDirectory root;
  const std::string directory = root.path() + "/step_1";
  const auto info = make_demo_checkpoint({.directory = directory, .bytes = 3U << 20U}).value();
  const auto stored = read_directory(directory);
  EXPECT_EQ(stored.size(), info.tensors);
  std::uint64_t bytes = 0;
  const DemoModel model = DemoModel::scaled_to(3U << 20U).value();
  for (const TensorInfo& tensor : model.tensors()) {
    EXPECT_EQ(stored.at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(stored.at(tensor.name).bytes.size(), tensor.byte_size().value());
    bytes += stored.at(tensor.name).bytes.size();
  }
  EXPECT_EQ(bytes, info.bytes);
  EXPECT_EQ(nlohmann::json::parse(read(directory + "/config.json")).at("model_type"), "qwen3_moe");
  // Beside it nothing is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root.path()), {}), 1);
}

TEST(DemoCheckpoint, SeedAndStepChangeEveryTensorAndNothingElseDoes) {
  const TemporaryDirectory root;
  const auto make = [&](const std::string& name, std::uint64_t seed, std::uint64_t step) {
    const std::string directory = root.path() + "/" + name;
    EXPECT_TRUE(make_demo_checkpoint(
                    {.directory = directory, .bytes = 1U << 20U, .seed = seed, .step = step})
                    .has_value());
    return read_directory(directory);
  };
  const auto first = make("a", 1, 1);
  const auto again = make("b", 1, 1);
  const auto step = make("c", 1, 2);
  const auto seed = make("d", 2, 1);
  for (const auto& [name, tensor] : first) {
    EXPECT_EQ(tensor.bytes, again.at(name).bytes) << name;
    EXPECT_NE(tensor.bytes, step.at(name).bytes) << name;
    EXPECT_NE(tensor.bytes, seed.at(name).bytes) << name;
  }
}

TEST(DemoCheckpoint, AWrongShapeKeepsTheBytes) {
  const TemporaryDirectory root;
  const std::string tensor = "model.layers.0.self_attn.q_proj.weight";
  const auto right = root.path() + "/right";
  const auto wrong = root.path() + "/wrong";
  ASSERT_TRUE(make_demo_checkpoint({.directory = right, .bytes = 1U << 20U}).has_value());
  ASSERT_TRUE(make_demo_checkpoint({.directory = wrong, .bytes = 1U << 20U, .wrong_shape = tensor})
                  .has_value());
  const auto a = read_directory(right);
  const auto b = read_directory(wrong);
  EXPECT_NE(a.at(tensor).shape, b.at(tensor).shape);
  EXPECT_EQ(a.at(tensor).bytes, b.at(tensor).bytes);
}

TEST(DemoCheckpoint, RefusesWhatItCannotDo) {
  const TemporaryDirectory root;
  const std::string directory = root.path() + "/d";
  EXPECT_EQ(make_demo_checkpoint({.directory = root.path(), .bytes = 1U << 20U}).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(make_demo_checkpoint({.directory = directory, .bytes = 1U << 20U, .wrong_shape = "no"})
                .error()
                .code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(make_demo_checkpoint({.directory = directory, .bytes = 1U << 20U, .shards = 0})
                .error()
                .code(),
            ErrorCode::kInvalidInput);
  EXPECT_FALSE(std::filesystem::exists(directory));
  const auto run = run_command(service_program(), {"make-checkpoint", directory, "--size", "12"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_EQ(run.err.substr(0, 30), "wsync make-checkpoint: --size:");
}

}  // namespace
}  // namespace wsync::cli
