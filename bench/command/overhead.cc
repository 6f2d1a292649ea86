// `wsync bench overhead` measures the cost of observing an update.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/command/bench_checkpoints.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/directory.h"
#include "bench/overhead/report.h"
#include "shared/command/programs.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kOverheadEnginesMax = 64;
constexpr unsigned kQuickOverheadRounds = 6;

struct OverheadArguments {
  BenchModel model;
  unsigned engines = 1;
  unsigned rounds = bench::kOverheadPairsWanted;
  std::string directory;
};

Result<SuiteOutcome> bench_overhead(const OverheadArguments& arguments,
                                    const bench::Interrupt& interrupt) {
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  auto executable = WSYNC_TRY(find_wsync_program("wsync"));
  trace::ProgressLine line;
  line.update("generating checkpoints", 0, 0, now());
  auto checkpoints =
      WSYNC_TRY(make_bench_checkpoints(arguments.model, directory.path(), [&](std::uint64_t bytes) {
        return bench::check_overhead_memory(bytes, arguments.engines);
      }));
  const bench::OverheadBenchOptions wanted{.executable = std::move(executable),
                                           .directory = directory.path(),
                                           .checkpoints = std::move(checkpoints.directories),
                                           .bytes = checkpoints.bytes,
                                           .engines = arguments.engines,
                                           .rounds = arguments.rounds};
  const auto result = WSYNC_TRY(bench::run_overhead_bench(wanted, interrupt, show_turns(line)));
  SuiteOutcome made = suite_outcome(result);
  notify_model(arguments.model, made);
  return made;
}

}  // namespace

void add_bench_overhead(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "overhead",
       .description =
           "Measure the processor time that spans, metrics pages and traces add to an update",
       .examples = {"wsync bench overhead", "wsync bench overhead --engines 2 --rounds 60 --json",
                    "wsync bench overhead --quick"}});
  auto arguments = std::make_shared<OverheadArguments>();
  add_bench_model(*command, arguments->model);
  command
      ->add_option("--engines", arguments->engines,
                   "Number of engines of each of the two fleets (default: 1)")
      ->check(CLI::Range(1U, kOverheadEnginesMax));
  command
      ->add_option("--rounds", arguments->rounds,
                   "Rounds; each has two updates of each kind (default: 30)")
      ->check(CLI::Range(1U, kBenchRepeatsMax));
  command
      ->add_option("--directory", arguments->directory,
                   "Directory for checkpoints and sockets; they are removed afterwards (default: "
                   "$TMPDIR or /tmp)")
      ->type_name("DIR");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("overhead", [&run, arguments, command](const bench::Interrupt& interrupt) {
      arguments->rounds =
          rounds_of(run.options, *command, "--rounds", arguments->rounds, kQuickOverheadRounds);
      if (run.options.quick && command->count("--size") == 0) arguments->model.size = "64MiB";
      return bench_overhead(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
