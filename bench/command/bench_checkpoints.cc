#include "bench/command/bench_checkpoints.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include "shared/base/format.h"
#include "shared/config/units.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/example/derived_checkpoint.h"
#include "shared/weights/example/example_checkpoint.h"
#include "shared/weights/example/model_checkpoint.h"

namespace wsync::cli {
namespace {

Result<CheckpointDirectory> open_given(const std::string& given,
                                       const std::function<Result<>(std::uint64_t)>& fits) {
  const std::string path = std::filesystem::absolute(given).string();
  auto checkpoint = CheckpointDirectory::open(path);
  if (!checkpoint) return fail(checkpoint.error().with_context("--checkpoint"));
  const std::uint64_t bytes = checkpoint->manifest().total_bytes();
  if (bytes == 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--checkpoint: {} contains no weights; expected at least one byte", path));
  if (auto fitting = fits(bytes); !fitting) return fail(fitting.error().with_context(path));
  return checkpoint;
}

Result<BenchCheckpoints> twin_of(const std::string& given, const std::string& directory,
                                 const std::function<Result<>(std::uint64_t)>& fits) {
  const std::string path = std::filesystem::absolute(given).string();
  const auto checkpoint = WSYNC_TRY(open_given(given, fits));
  const std::string twin = directory + "/model2";
  WSYNC_TRY(write_changed_copy({.from = path, .to = twin}, false));
  return BenchCheckpoints{.directories = {path, twin},
                          .bytes = checkpoint.manifest().total_bytes()};
}

}  // namespace

void add_bench_model(CLI::App& command, BenchModel& model) {
  CLI::Option* size =
      command.add_option("--size", model.size, "Bytes of the model (default: 1GiB)");
  CLI::Option* name =
      command
          .add_option(
              "--model", model.model,
              "Use the tensors of this published model, reduced to fit --size: Qwen3-30B-A3B, "
              "Qwen3-235B-A22B, GLM-4.5-Air, DeepSeek-V3.1 or Kimi-K2 (default: a demo model)")
          ->type_name("NAME");
  command
      .add_option("--checkpoint", model.checkpoint,
                  "Publish this checkpoint, alternating with a copy that has the same tensors and "
                  "other bytes; the copy is written to --directory")
      ->type_name("DIR")
      ->excludes(size)
      ->excludes(name);
}

void notify_model(const BenchModel& model, SuiteOutcome& outcome) {
  const auto notify = [&outcome](const char* name, const std::string& value,
                                 const std::string& text) {
    outcome.suite.parameters[name] = value;
    outcome.outcome.text = text + "\n" + outcome.outcome.text;
  };
  if (!model.model.empty())
    notify("model", model.model,
           fmt::format("tensors of {}, reduced to {}", model.model, model.size));
  if (!model.checkpoint.empty()) {
    const std::string path = std::filesystem::absolute(model.checkpoint).string();
    notify("checkpoint", path, "checkpoint: " + path);
  }
}

Result<> check_bench_model(const BenchModel& model,
                           const std::function<Result<>(std::uint64_t)>& fits) {
  if (!model.checkpoint.empty()) {
    const auto opened = open_given(model.checkpoint, fits);
    return opened ? Result<>() : fail(opened.error());
  }
  const auto size = config::parse_size(model.size);
  if (!size) return fail(size.error().with_context("--size"));
  if (!model.model.empty()) (void)WSYNC_TRY(published_model(model.model, *size));
  return fits(*size);
}

Result<BenchCheckpoints> make_bench_checkpoints(
    const BenchModel& model, const std::string& directory,
    const std::function<Result<>(std::uint64_t bytes)>& fits) {
  if (!model.checkpoint.empty()) return twin_of(model.checkpoint, directory, fits);
  const Result<std::uint64_t> size = config::parse_size(model.size);
  if (!size) return fail(size.error().with_context("--size"));
  WSYNC_TRY(fits(*size));
  BenchCheckpoints made;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    DemoCheckpoint checkpoint{
        .directory = fmt::format("{}/model{}", directory, seed), .bytes = *size, .seed = seed};
    if (!model.model.empty()) {
      checkpoint.model = WSYNC_TRY(published_model(model.model, *size));
    }
    const auto done = WSYNC_TRY(make_demo_checkpoint(checkpoint));
    made.bytes = done.bytes;
    made.directories.push_back(checkpoint.directory);
  }
  return made;
}

}  // namespace wsync::cli
