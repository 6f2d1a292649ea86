#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/content_digest.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

// Two small checkpoints of one layout (`first`, `second`) and one with a wrong shape (`wrong`).
class CheckpointCommands : public testing::Test {
 protected:
  void SetUp() override {
    make("first", {});
    make("second", {"--step", "2"});
    make("wrong", {"--wrong-shape", "lm_head.weight"});
  }
  void make(const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"make-checkpoint", at(name), "--size", "1MiB"});
    ASSERT_EQ(run_command(service_program(), more).exit_code, kExitOk);
  }
  std::string at(const std::string& name) const { return root_.path() + "/" + name; }

 private:
  TemporaryDirectory root_;
};

TEST_F(CheckpointCommands, InspectShowsWhatIsThere) {
  const auto run = run_command(service_program(), {"inspect", at("first"), "--json", "--tensors"});
  EXPECT_EQ(run.exit_code, kExitOk);
  const auto result = nlohmann::json::parse(run.out).at("result");
  EXPECT_EQ(result.at("files"), 4);
  EXPECT_EQ(result.at("tensor_list").size(), result.at("tensors"));
  EXPECT_EQ(result.at("dtypes").at("BF16").at("bytes"), result.at("bytes"));
  EXPECT_EQ(result.at("tensor_list").front().at("name"), "model.embed_tokens.weight");
  EXPECT_NE(run_command(service_program(), {"inspect", at("first")}).out.find("4 files"),
            std::string::npos);
}

TEST_F(CheckpointCommands, InspectNamesEveryProblem) {
  const std::string file = at("first") + "/model-00002-of-00004.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 8);
  std::filesystem::remove(at("first") + "/model-00001-of-00004.safetensors");
  const auto run = run_command(service_program(), {"inspect", at("first")});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find(file), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("model-00001-of-00004.safetensors"), std::string::npos) << run.err;
  const auto json =
      nlohmann::json::parse(run_command(service_program(), {"inspect", at("first"), "--json"}).out);
  EXPECT_EQ(json.at("ok"), false);
  EXPECT_GE(json.at("result").at("problems").size(), 2U);
  EXPECT_EQ(run_command(service_program(), {"inspect", at("nowhere")}).exit_code, kExitBadInput);
}

TEST_F(CheckpointCommands, InspectTellsTheContentDigest) {
  ASSERT_EQ(
      run_command(service_program(), {"make-checkpoint", at("large"), "--size", "12MiB"}).exit_code,
      kExitOk);
  const auto directory = CheckpointDirectory::open(at("large"));
  ASSERT_TRUE(directory) << directory.error().message();
  std::vector<Digest> tensors;
  bool several_leaves = false;
  for (std::size_t t = 0; t < directory->manifest().size(); ++t) {
    std::vector<std::byte> bytes(directory->manifest().byte_size(t));
    ASSERT_TRUE(directory->read(t, 0, bytes));
    tensors.push_back(tensor_digest(directory->manifest().tensor(t).name, bytes));
    several_leaves |= leaf_count(bytes.size()) > 1;
  }
  EXPECT_TRUE(several_leaves);
  const auto told = [&](const std::string& name) {
    const auto run = run_command(service_program(), {"inspect", "--digest", "--json", at(name)});
    return nlohmann::json::parse(run.out).at("result").at("content_digest");
  };
  EXPECT_EQ(told("large"), root_digest(tensors).to_string());
  EXPECT_NE(told("first"), told("second"));
  EXPECT_EQ(
      run_command(service_program(), {"inspect", at("first"), "--json"}).out.find("content_digest"),
      std::string::npos);
}

TEST_F(CheckpointCommands, PlanComparesWithWhatAnEngineHolds) {
  EXPECT_EQ(
      run_command(service_program(), {"plan", at("second"), "--against", at("first")}).exit_code,
      kExitOk);
  const auto run =
      run_command(service_program(), {"plan", at("wrong"), "--against", at("first"), "--json"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  const auto problems = nlohmann::json::parse(run.out).at("result").at("problems");
  ASSERT_EQ(problems.size(), 1U) << problems;
  EXPECT_EQ(problems[0].at("tensor"), "lm_head.weight");
  EXPECT_EQ(problems[0].at("kind"), "shape");
}

TEST_F(CheckpointCommands, PlanCountsRoundsAndMemory) {
  const auto planned = [&](const std::string& bucket) {
    const auto run = run_command(
        service_program(), {"plan", at("first"), "--bucket", bucket, "--devices", "3", "--buffer",
                            "1MiB", "--engines", "2", "--versions-held", "3", "--json"});
    return nlohmann::json::parse(run.out).at("result");
  };
  const auto result = planned("1MiB");
  const std::uint64_t buckets = result.at("buckets");
  EXPECT_EQ(result.at("rounds"), (buckets + 2) / 3);
  EXPECT_EQ(result.at("bucket_bytes"), 1U << 20U);
  // A bucket that is larger than a device's buffer goes through it in parts.
  EXPECT_EQ(planned("64MiB").at("rounds"), result.at("rounds"));
  const auto& peak = result.at("peak_memory");
  EXPECT_EQ(peak.at("buffer_bytes"), 9U << 20U);
  EXPECT_EQ(peak.at("engine_bytes"), 2 * result.at("bytes").get<std::uint64_t>());
  const std::uint64_t arena = result.at("arena_bytes");
  EXPECT_EQ(peak.at("staged_bytes"), 3 * arena);
  // Copies are also in the sidecar, which receives one more than it keeps.
  const auto copied = run_command(service_program(), {"plan", at("first"), "--copies", "--arenas",
                                                      "4", "--versions-held", "3", "--json"});
  EXPECT_EQ(nlohmann::json::parse(copied.out).at("result").at("peak_memory").at("staged_bytes"),
            (4 + 4) * arena);
  // One in the trainer, and one in the sidecar.
  EXPECT_EQ(
      nlohmann::json::parse(copied.out).at("result").at("peak_memory").at("staged_in_place_bytes"),
      2 * arena);
  EXPECT_EQ(peak.at("staged_in_place_bytes"), arena) << "the sidecar maps that of the trainer";
  // Of two bases, and the changes by which the version has come; and what the trainer and the
  // sidecar keep for sidecars that are behind.
  EXPECT_EQ(nlohmann::json::parse(copied.out).at("result").at("peak_memory").at("patch_bytes"),
            5 * static_cast<std::uint64_t>(0.07 * static_cast<double>(arena)));
  EXPECT_EQ(peak.at("patch_bytes"),
            2 * static_cast<std::uint64_t>(0.07 * static_cast<double>(arena)));
  EXPECT_EQ(run_command(service_program(), {"plan", at("first"), "--bucket", "1KiB"}).exit_code,
            kExitBadInput);
  EXPECT_EQ(run_command(service_program(), {"plan", at("first"), "--devices", "65"}).exit_code,
            kExitBadInput);
}

TEST_F(CheckpointCommands, PlanSaysWhatBuffersTakeOfGpusAndLeaveToEngines) {
  const auto planned = [&](std::vector<std::string> options) {
    std::vector<std::string> command = {"plan",          at("first"), "--devices", "2",
                                        "--device-kind", "cuda",      "--json"};
    command.insert(command.end(), options.begin(), options.end());
    return run_command(service_program(), command);
  };
  const auto gpu_of = [](const auto& run) {
    return nlohmann::json::parse(run.out).at("result").at("gpus").at(0);
  };
  const auto large = planned({"--gpu-memory", "80GiB"});
  EXPECT_EQ(gpu_of(large).at("buffer_bytes"), 3 * (512ULL << 20U));
  // 384 MiB of NCCL, 4 of tables, 512 of the context.
  EXPECT_EQ(gpu_of(large).at("streams_bytes"), 388ULL << 20U);
  EXPECT_EQ(gpu_of(large).at("streams_measured"), false);
  EXPECT_EQ(gpu_of(large).at("context_bytes"), 512ULL << 20U);
  EXPECT_EQ(gpu_of(large).at("peak_bytes"), (3 * 512ULL + 388 + 512) << 20U);
  EXPECT_EQ(gpu_of(large).at("left_bytes"), (80ULL << 30U) - ((3 * 512ULL + 388 + 512) << 20U));
  // Nothing of it is memory of the host.
  const auto memory = nlohmann::json::parse(large.out).at("result").at("peak_memory");
  EXPECT_EQ(memory.at("buffer_bytes"), 0U);
  EXPECT_EQ(memory.at("engine_bytes"), 0U);
  // 90 % of it, less what is reserved, for three buffers, in blocks of 2 MiB.
  EXPECT_EQ(gpu_of(planned({"--gpu-memory", "1GiB"})).at("buffer_bytes"), 3 * (6ULL << 20U));
  EXPECT_EQ(gpu_of(planned({"--buffer", "3MiB"})).at("buffer_bytes"), 3 * (4ULL << 20U));
  EXPECT_FALSE(gpu_of(planned({"--buffer", "3MiB"})).contains("left_bytes"));
  const auto full = planned({"--gpu-memory", "1GiB", "--buffer", "64MiB"});
  EXPECT_NE(full.exit_code, kExitOk);
  EXPECT_NE((full.out + full.err).find("set --buffer to at most 6MiB"), std::string::npos)
      << full.out << full.err;
  EXPECT_EQ(
      run_command(service_program(), {"plan", at("first"), "--gpu-memory", "80GiB"}).exit_code,
      kExitBadInput);
  EXPECT_EQ(
      run_command(service_program(), {"plan", at("first"), "--device-kind", "cuda"}).exit_code,
      kExitBadInput);
  EXPECT_EQ(planned({"--gpu-memory", "much"}).exit_code, kExitBadInput);
  const auto engines = planned({"--engines", "1"});
  EXPECT_EQ(engines.exit_code, kExitBadInput);
  EXPECT_NE((engines.out + engines.err).find("each device has one engine"), std::string::npos)
      << engines.out << engines.err;
}

}  // namespace
}  // namespace wsync::cli
