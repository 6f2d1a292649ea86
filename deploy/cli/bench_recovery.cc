// `wsync bench recovery`: what must hold while weights change under load.
#include <filesystem>
#include <memory>

#include "bench/measure/directory.h"
#include "bench/recovery/torn_bench.h"
#include "bench/recovery/torn_report.h"
#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kTornStepsMax = 1'000'000'000;
constexpr unsigned kSwitchMsMax = 3'600'000;

struct RecoveryArguments {
  bool is_torn = false;  // what there is to be run, as yet
  bench::TornBenchOptions torn;
  std::string directory;
};

Result<Outcome> bench_torn(const RecoveryArguments& arguments) {
  bench::TornBenchOptions options = arguments.torn;
  std::error_code error;
  options.executable = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return fail_errno("/proc/self/exe", error.value());
  const auto interrupt = bench::Interrupt::create();
  if (!interrupt) return fail(interrupt.error());
  const auto directory = bench::TemporaryDirectory::create(arguments.directory);
  if (!directory) return fail(directory.error());
  options.directory = directory->path();
  trace::ProgressLine line;
  const auto result = bench::run_torn_bench(
      options, *interrupt,
      [&line](std::uint64_t done, std::uint64_t total, std::uint64_t switches) {
        line.update(fmt::format("step {} of {}, {} switches", done, total, switches), 0, 0, now());
      });
  if (!result) return fail(result.error());
  return Outcome{.result = bench::to_json(*result),
                 .text = bench::to_text(*result),
                 .complaint = bench::complaint_of(*result),
                 .exit_code = result->passed() ? kExitOk : kExitFailed};
}

}  // namespace

void add_bench_recovery(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "recovery",
       .description = "Weights that change again and again while a replica generates: is a token "
                      "ever computed with two versions?",
       .examples = {"wsync bench recovery --torn", "wsync bench recovery --torn --steps 100000",
                    "wsync bench recovery --torn --switch-ms 50 --ranks 4 --json"}});
  auto arguments = std::make_shared<RecoveryArguments>();
  bench::TornBenchOptions& torn = arguments->torn;
  command
      ->add_flag("--torn", arguments->is_torn,
                 "Compare the version of every layer, on every rank, in every forward step")
      ->required();
  command->add_option("--steps", torn.steps, "Forward steps of the replica (default: 1000000)")
      ->check(CLI::Range(std::uint64_t{1}, kTornStepsMax));
  command
      ->add_option("--switch-ms", torn.switch_ms,
                   "Milliseconds from one switch to the next (default: 500)")
      ->check(CLI::Range(1U, kSwitchMsMax));
  command->add_option("--requests", torn.requests, "Completions at once (default: 32)")
      ->check(CLI::Range(1U, bench::kTornRequestsMax));
  command
      ->add_option("--ranks", torn.ranks,
                   "Processes that share the model as one tensor-parallel replica (default: 2)")
      ->check(CLI::Range(1U, bench::kTornRanksMax));
  command
      ->add_option("--directory", arguments->directory,
                   "Where the checkpoint and sockets are made, and removed (default: $TMPDIR or "
                   "/tmp)")
      ->type_name("DIR");
  command->callback([&context, arguments] {
    // The trainer is in this process, and would tell of every publish.
    if (!context.options.log_level_given) context.options.log_level = "warning";
    context.run("bench recovery", [&] { return bench_torn(*arguments); });
  });
}

}  // namespace wsync::cli
