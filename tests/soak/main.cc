// `wsync_soak` checks a trainer whose ranks are killed (`kills`) and a replica whose weights change
// under load (`torn`). The tests of this folder run it for seconds. By hand it can run for any
// time.
#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "bench/harness/directory.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/command/program.h"
#include "shared/observe/trace/progress.h"
#include "tests/soak/kill_report.h"
#include "tests/soak/kill_run.h"
#include "tests/soak/torn_report.h"
#include "tests/soak/torn_run.h"

namespace wsync::soak {
namespace {

using cli::Context;
using cli::Outcome;

constexpr std::uint64_t kTornStepsMax = 1'000'000'000;
constexpr unsigned kSwitchMsMax = 3'600'000;

template <class RunResult>
Outcome outcome_of(const RunResult& result) {
  return {.result = to_json(result),
          .text = to_text(result),
          .complaint = complaint_of(result),
          .exit_code = result.passed() ? cli::kExitOk : cli::kExitFailed};
}

Result<Outcome> run_of(const KillOptions& options, const Interrupt& interrupt) {
  trace::ProgressLine line;
  const auto result = WSYNC_TRY(run_kills(
      options, interrupt, [&line](const std::string& doing) { line.update(doing, 0, 0, now()); }));
  return outcome_of(result);
}

Result<Outcome> run_of(const TornOptions& options, const Interrupt& interrupt) {
  trace::ProgressLine line;
  const auto result = WSYNC_TRY(run_torn(
      options, interrupt, [&line](std::uint64_t done, std::uint64_t total, std::uint64_t switches) {
        line.update(fmt::format("step {} of {}, {} switches", done, total, switches), 0, 0, now());
      }));
  return outcome_of(result);
}

Result<> check_options(const KillOptions& options) { return check_kill_options(options); }
Result<> check_options(const TornOptions&) { return {}; }

// Options and action of both commands.
template <class Options>
void add_run(CLI::App& command, Context& context, std::shared_ptr<Options> options) {
  const auto directory = std::make_shared<std::string>();
  command.add_option("--wsync", options->executable, "The program `wsync` that is tested")
      ->check(CLI::ExistingFile)
      ->required();
  command
      .add_option("--directory", *directory,
                  "Where checkpoints and sockets are made, and removed (default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  command.callback([&context, &command, options, directory] {
    // The trainer runs in this process and would log every publish.
    if (!context.options.log_level_given) context.options.log_level = "warning";
    context.run(command.get_name(), [&]() -> Result<Outcome> {
      WSYNC_TRY(check_options(*options));
      const Interrupt interrupt = WSYNC_TRY(Interrupt::create());
      const auto made = WSYNC_TRY(bench::TemporaryDirectory::create(*directory));
      options->directory = made.path();
      return run_of(*options, interrupt);
    });
  });
}

void add_kills(CLI::App& app, Context& context) {
  CLI::App* command = cli::add_command(
      app, context,
      {.name = "kills",
       .description = "Ranks of a training run that are killed at random times: how soon does it "
                      "go on, and with the same weights?",
       .examples = {"wsync_soak kills --wsync build/dev/deploy/cli/wsync",
                    "wsync_soak kills --wsync WSYNC --kills 20 --dp 4 --ep 2 --json"}});
  auto options = std::make_shared<KillOptions>();
  command->add_option("--kills", options->kills, "Ranks killed, one after the other (default: 200)")
      ->check(CLI::Range(1U, kKillsMax));
  command
      ->add_option("--between", options->between,
                   "A kill comes at random within the time of so many steps (default: 4)")
      ->check(CLI::Range(1U, kKillBetweenMax));
  command->add_option("--seed", options->seed, "Of the choice of ranks and times (default: 1)")
      ->check(CLI::NonNegativeNumber);
  const auto size = [&](const char* name, auto& value, const char* text) {
    command->add_option(name, value, text)->check(CLI::Range(1U, kKillRanksMax));
  };
  size("--pp", options->sizes.pp, "Pipeline ranks (default: 2)");
  size("--dp", options->sizes.dp,
       "Data-parallel replicas, at least two for each of ep (default: 2)");
  size("--ep", options->sizes.ep, "Replicas that share experts (default: 1)");
  add_run(*command, context, std::move(options));
}

void add_torn(CLI::App& app, Context& context) {
  CLI::App* command = cli::add_command(
      app, context,
      {.name = "torn",
       .description = "Weights that change again and again while a replica generates: is a token "
                      "ever computed with two versions?",
       .examples = {"wsync_soak torn --wsync build/dev/deploy/cli/wsync",
                    "wsync_soak torn --wsync WSYNC --switch-ms 50 --ranks 4 --json"}});
  auto options = std::make_shared<TornOptions>();
  command->add_option("--steps", options->steps, "Forward steps of the replica (default: 1000000)")
      ->check(CLI::Range(std::uint64_t{1}, kTornStepsMax));
  command
      ->add_option("--switch-ms", options->switch_ms,
                   "Milliseconds from one switch to the next (default: 500)")
      ->check(CLI::Range(1U, kSwitchMsMax));
  command->add_option("--requests", options->requests, "Completions at once (default: 32)")
      ->check(CLI::Range(1U, kTornRequestsMax));
  command
      ->add_option("--ranks", options->ranks,
                   "Processes that share the model as one tensor-parallel replica (default: 2)")
      ->check(CLI::Range(1U, kTornRanksMax));
  add_run(*command, context, std::move(options));
}

}  // namespace
}  // namespace wsync::soak

int main(int argc, char** argv) {
  // Ignored, so that a file over the process's limit is a failed write with an error instead of the
  // end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return wsync::cli::run_program({.description = "wsync_soak tests wsync for as long as one likes",
                                  .add_commands =
                                      [](CLI::App& app, wsync::cli::Context& context) {
                                        wsync::soak::add_kills(app, context);
                                        wsync::soak::add_torn(app, context);
                                      },
                                  .only_command = {},
                                  .others = {}},
                                 argc, argv);
}
