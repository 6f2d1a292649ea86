// The checkpoints that benchmarks of updates publish in turn. With WSYNC_BUILD_BENCH.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/command/bench_run.h"
#include "shared/command/context.h"

namespace wsync::cli {

// What is published.
struct BenchModel {
  std::string size = "1GiB";
  std::string model;       // a published one; empty: a demo model
  std::string checkpoint;  // a directory, as it is; empty: one is made as the two above say
};
// --size, --model and --checkpoint. `model` outlives the command.
void add_bench_model(CLI::App& command, BenchModel& model);

// Which --model or --checkpoint was given: a line before the outcome's text, and a parameter that
// results are compared by.
void notify_model(const BenchModel& model, SuiteOutcome& outcome);

// What make_bench_checkpoints() would refuse, before anything is made.
[[nodiscard]] Result<> check_bench_model(const BenchModel& model,
                                         const std::function<Result<>(std::uint64_t bytes)>& fits);

struct BenchCheckpoints {
  std::vector<std::string> directories;  // two, of equal layouts and different bytes
  std::uint64_t bytes = 0;               // of one of them
};

// Makes them below `directory`; of a checkpoint that is given, the second one: its tensors with the
// lowest bit of every byte turned round. `fits` is asked first, with the bytes of one. Errors:
// kInvalidInput for a size or a name; those of CheckpointDirectory::open() and of `fits`;
// kResourceExhausted on a full disk.
[[nodiscard]] Result<BenchCheckpoints> make_bench_checkpoints(
    const BenchModel& model, const std::string& directory,
    const std::function<Result<>(std::uint64_t bytes)>& fits);

}  // namespace wsync::cli
