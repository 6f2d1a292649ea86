// `wsync bench whole` measures updates from the beginning of a publish until all engines serve it.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/command/bench_checkpoints.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/directory.h"
#include "bench/publishers/whole_bench.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kWholeEnginesMax = 64;

struct WholeArguments {
  BenchModel model;
  std::vector<unsigned> engines = {1, 2};
  unsigned rounds = 15;
  std::string directory;
};

void heed_common(const BenchOptions& common, const CLI::App& command, WholeArguments& arguments) {
  arguments.rounds = rounds_of(common, command, "--rounds", arguments.rounds, kQuickRounds);
  if (!common.quick) return;
  if (command.count("--size") == 0) arguments.model.size = "64MiB";
  if (command.count("--engines") == 0) arguments.engines = {1};
}

Result<SuiteOutcome> bench_whole(const WholeArguments& arguments,
                                 const bench::Interrupt& interrupt) {
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  bench::WholeBenchOptions wanted{.executable = WSYNC_TRY(find_wsync_program("wsync")),
                                  .directory = directory.path(),
                                  .checkpoint = {},
                                  .engines = arguments.engines,
                                  .rounds = arguments.rounds};
  trace::ProgressLine line;
  line.update("generating checkpoints", 0, 0, now());
  auto checkpoints =
      WSYNC_TRY(make_bench_checkpoints(arguments.model, directory.path(), [&](std::uint64_t bytes) {
        return bench::check_whole_bench(wanted, bytes);
      }));
  wanted.bytes = checkpoints.bytes;
  wanted.checkpoint = checkpoints.directories.front();
  auto suite = WSYNC_TRY(bench::run_whole_bench(wanted, interrupt, show_turns(line)));
  SuiteOutcome made = part_outcome(
      std::move(suite), fmt::format("{} in each publish", trace::format_bytes(wanted.bytes)),
      arguments.rounds);
  notify_model(arguments.model, made);
  return made;
}

}  // namespace

void add_bench_whole(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "whole",
       .description = "Measure updates from the beginning of a publish until all engines serve it, "
                      "by the floor of their copies",
       .examples = {"wsync bench whole", "wsync bench whole --size 1MiB --engines 1",
                    "wsync bench whole --checkpoint /models/Qwen3-0.6B --engines 1,2,4"}});
  auto arguments = std::make_shared<WholeArguments>();
  add_bench_model(*command, arguments->model);
  command
      ->add_option("--engines", arguments->engines,
                   "Numbers of engines, one fleet for each (default: 1,2)")
      ->delimiter(',')
      ->check(CLI::Range(1U, kWholeEnginesMax));
  command
      ->add_option("--rounds", arguments->rounds,
                   "Rounds; each measures two updates and the floors of their copies (default: 15)")
      ->check(CLI::Range(1U, kBenchRepeatsMax));
  command
      ->add_option("--directory", arguments->directory,
                   "Directory for checkpoints and sockets; they are removed afterwards (default: "
                   "$TMPDIR or /tmp)")
      ->type_name("DIR");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("whole", [&run, arguments, command](const bench::Interrupt& interrupt) {
      heed_common(run.options, *command, *arguments);
      return bench_whole(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
