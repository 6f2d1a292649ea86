// The checkpoints that benchmarks of updates publish in turn. Built with WSYNC_BUILD_BENCH.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/command/bench_run.h"
#include "shared/command/context.h"

namespace wsync::cli {

// The model to publish.
struct BenchModel {
  std::string size = "1GiB";
  std::string model;       // name of a published model; empty: a demo model
  std::string checkpoint;  // an existing directory; empty: create one from the two fields above
};
// Adds --size, --model and --checkpoint. `model` outlives the command.
void add_bench_model(CLI::App& command, BenchModel& model);

// Records which --model or --checkpoint was given: as a line before the outcome's text, and as a
// parameter by which results are compared.
void notify_model(const BenchModel& model, SuiteOutcome& outcome);

// Returns the errors that make_bench_checkpoints() would return for these options, before anything
// is created.
[[nodiscard]] Result<> check_bench_model(const BenchModel& model,
                                         const std::function<Result<>(std::uint64_t bytes)>& fits);

struct BenchCheckpoints {
  std::vector<std::string> directories;  // two directories with equal layouts and different bytes
  std::uint64_t bytes = 0;               // bytes of one checkpoint
};

// Creates both checkpoints below `directory`. If a checkpoint is given, only the second one is
// created: it has the same tensors with the lowest bit of every byte inverted. `fits` is called
// first with the bytes of one checkpoint. Errors: kInvalidInput for a size or a name, errors of
// CheckpointDirectory::open() and of `fits`, kResourceExhausted if the disk is full.
[[nodiscard]] Result<BenchCheckpoints> make_bench_checkpoints(
    const BenchModel& model, const std::string& directory,
    const std::function<Result<>(std::uint64_t bytes)>& fits);

}  // namespace wsync::cli
