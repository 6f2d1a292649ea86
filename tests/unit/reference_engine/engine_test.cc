// `wsync engine`: what it refuses before anything starts.
#include <gmock/gmock.h>

#include "inference_side/reference_engine/engine_command.h"
#include "shared/weights/example/example_checkpoint.h"
#include "tests/support/run_command.h"

namespace wsync::cli::test {
namespace {

using ::testing::HasSubstr;

TEST(EngineCommand, bad_input_is_exit_code_2_and_one_sentence) {
  const TemporaryDirectory directory;
  const std::string socket = directory.path() + "/engine.sock";
  ASSERT_TRUE(make_demo_checkpoint({.directory = directory.path() + "/ck", .bytes = 1U << 20U}));
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"engine", "--sidecar", socket, "--checkpoint",
                                          directory.path() + "/ck"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandRun run = run_command(engine_program(), arguments);
    EXPECT_EQ(run.exit_code, 2);
    return run.err;
  };
  EXPECT_THAT(refused({"--adopt", "--whole"}), HasSubstr("exclude each other"));
  EXPECT_THAT(refused({"--adopt", "--weights", "load"}), HasSubstr("adopts versions"));
  EXPECT_THAT(refused({"--rank", "3", "--world-size", "2"}), HasSubstr("rank 3 of 2"));
  EXPECT_THAT(refused({"--weights", "some"}), HasSubstr("--weights"));
  EXPECT_THAT(refused({"--device", "1"}), HasSubstr("host,cuda"));
  EXPECT_THAT(refused({"--gpu", "1"}), HasSubstr("needs --device cuda"));
  EXPECT_THAT(refused({"--device", "cuda", "--adopt"}), HasSubstr("loaded as pieces"));
  const CommandRun generating = run_command(
      engine_program(),
      {"engine", "--sidecar", socket, "--model", directory.path() + "/ck", "--device", "cuda"});
  EXPECT_EQ(generating.exit_code, 2);
  EXPECT_THAT(generating.err, HasSubstr("on the CPU"));
  const CommandRun missing =
      run_command(engine_program(),
                  {"engine", "--sidecar", socket, "--checkpoint", directory.path() + "/none"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("none"));
}

}  // namespace
}  // namespace wsync::cli::test
