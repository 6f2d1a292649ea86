// `wsync bench recovery`: what must hold while ranks of a trainer are lost, and while weights
// change under load.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/directory.h"
#include "bench/recovery/kill_bench.h"
#include "bench/recovery/kill_report.h"
#include "bench/recovery/torn_bench.h"
#include "bench/recovery/torn_report.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kTornStepsMax = 1'000'000'000;
constexpr unsigned kSwitchMsMax = 3'600'000;

struct RecoveryArguments {
  bool is_torn = false;  // what is run
  bench::TornBenchOptions torn;
  bench::KillBenchOptions kill;
  std::string directory;
};

template <class BenchResult>
SuiteOutcome outcome_of(const BenchResult& result) {
  return {.outcome = {.result = bench::to_json(result),
                      .text = bench::to_text(result),
                      .complaint = bench::complaint_of(result),
                      .exit_code = result.passed() ? kExitOk : kExitFailed},
          .suite = bench::to_suite(result)};
}

Result<SuiteOutcome> bench_kills(const bench::KillBenchOptions& options,
                                 const bench::Interrupt& interrupt) {
  trace::ProgressLine line;
  const auto result = WSYNC_TRY(bench::run_kill_bench(
      options, interrupt, [&line](const std::string& doing) { line.update(doing, 0, 0, now()); }));
  return outcome_of(result);
}

Result<SuiteOutcome> bench_torn(const bench::TornBenchOptions& options,
                                const bench::Interrupt& interrupt) {
  trace::ProgressLine line;
  const auto result = WSYNC_TRY(bench::run_torn_bench(
      options, interrupt, [&line](std::uint64_t done, std::uint64_t total, std::uint64_t switches) {
        line.update(fmt::format("step {} of {}, {} switches", done, total, switches), 0, 0, now());
      }));
  return outcome_of(result);
}

Result<SuiteOutcome> bench_recovery(RecoveryArguments arguments,
                                    const bench::Interrupt& interrupt) {
  if (!arguments.is_torn) WSYNC_TRY(bench::check_kill_options(arguments.kill));
  const auto executable = WSYNC_TRY(find_wsync_program("wsync"));
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  arguments.torn.executable = arguments.kill.executable = executable;
  arguments.torn.directory = arguments.kill.directory = directory.path();
  return arguments.is_torn ? bench_torn(arguments.torn, interrupt)
                           : bench_kills(arguments.kill, interrupt);
}

void add_kill_options(CLI::App& command, CLI::Option& torn, bench::KillBenchOptions& kill) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->excludes(&torn);
  };
  add("--kills", kill.kills, "Ranks killed, one after the other (default: 200)")
      ->check(CLI::Range(1U, bench::kKillsMax));
  add("--between", kill.between,
      "A kill comes at random within the time of so many steps (default: 4)")
      ->check(CLI::Range(1U, bench::kKillBetweenMax));
  add("--seed", kill.seed, "Of the choice of ranks and times (default: 1)")
      ->check(CLI::NonNegativeNumber);
  const auto size = [&](const char* name, auto& value, const char* text) {
    add(name, value, text)->check(CLI::Range(1U, bench::kKillRanksMax));
  };
  size("--pp", kill.sizes.pp, "Pipeline ranks (default: 2)");
  size("--dp", kill.sizes.dp, "Data-parallel replicas, at least two for each of ep (default: 2)");
  size("--ep", kill.sizes.ep, "Replicas that share experts (default: 1)");
}

void add_torn_options(CLI::App& command, CLI::Option& is_torn, bench::TornBenchOptions& torn) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->needs(&is_torn);
  };
  add("--steps", torn.steps, "With --torn: forward steps of the replica (default: 1000000)")
      ->check(CLI::Range(std::uint64_t{1}, kTornStepsMax));
  add("--switch-ms", torn.switch_ms,
      "With --torn: milliseconds from one switch to the next (default: 500)")
      ->check(CLI::Range(1U, kSwitchMsMax));
  add("--requests", torn.requests, "With --torn: completions at once (default: 32)")
      ->check(CLI::Range(1U, bench::kTornRequestsMax));
  add("--ranks", torn.ranks,
      "With --torn: processes that share the model as one tensor-parallel replica (default: 2)")
      ->check(CLI::Range(1U, bench::kTornRanksMax));
}

}  // namespace

void add_bench_recovery(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "recovery",
       .description =
           "Ranks of a training run that are killed at random times: how soon does it go on, and "
           "with the same weights? Or, with --torn, weights that change again and again while a "
           "replica generates: is a token ever computed with two versions?",
       .examples = {"wsync bench recovery", "wsync bench recovery --kills 20 --dp 4 --ep 2 --json",
                    "wsync bench recovery --torn",
                    "wsync bench recovery --torn --switch-ms 50 --ranks 4 --json"}});
  auto arguments = std::make_shared<RecoveryArguments>();
  CLI::Option* is_torn = command->add_flag(
      "--torn", arguments->is_torn,
      "Compare the version of every layer, on every rank, in every forward step of a replica");
  add_kill_options(*command, *is_torn, arguments->kill);
  add_torn_options(*command, *is_torn, arguments->torn);
  command
      ->add_option("--directory", arguments->directory,
                   "Where checkpoints and sockets are made, and removed (default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  add_bench_options(*command, run);
  command->callback([&context, &run, arguments, command] {
    // With --torn the trainer is in this process, and would tell of every publish.
    if (!context.options.log_level_given) context.options.log_level = "warning";
    run.add_suite("recovery", [&run, arguments, command](const bench::Interrupt& interrupt) {
      arguments->kill.kills =
          rounds_of(run.options, *command, "--kills", arguments->kill.kills, 10);
      if (run.options.quick && command->count("--steps") == 0) arguments->torn.steps = 10'000;
      return bench_recovery(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
