// `wsync bench sync` measures how long engines pause for an update.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "bench/command/bench_checkpoints.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/directory.h"
#include "bench/sync/report.h"
#include "bench/sync/sync_bench.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/programs.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kEnginesMax = 64;
constexpr unsigned kRoundsMax = 10'000;
constexpr unsigned kDevicesMax = 64;

struct SyncOptions {
  BenchModel model;
  std::vector<unsigned> engines = {1, 2, 4};
  unsigned rounds = 15;
  bool adopt = false;
  unsigned devices = 0;
  bool tcp = false;
  std::vector<std::string> buffers;
  std::string directory;
  std::string trace;
};

// Applies the common options of the command line to this suite.
void heed_common(const BenchOptions& common, const CLI::App& command, SyncOptions& options) {
  options.rounds = rounds_of(common, command, "--rounds", options.rounds, kQuickRounds);
  if (!common.quick) return;
  if (command.count("--size") == 0) options.model.size = "64MiB";
  if (command.count("--engines") == 0) options.engines = {1};
}

Result<SuiteOutcome> bench_sync(const SyncOptions& options, const bench::Interrupt& interrupt) {
  if (!options.trace.empty()) WSYNC_TRY(check_trace_file(options.trace));
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(options.directory));
  auto executable = WSYNC_TRY(find_wsync_program("wsync"));
  trace::ProgressLine line;
  bench::SyncBenchOptions wanted{.executable = std::move(executable),
                                 .directory = directory.path(),
                                 .engines = options.engines,
                                 .rounds = options.rounds,
                                 .adopt = options.adopt,
                                 .devices = options.devices,
                                 .tcp = options.tcp,
                                 .trace = options.trace};
  if (!wanted.trace.empty()) wanted.trace = std::filesystem::absolute(wanted.trace).string();
  for (const std::string& text : options.buffers) {
    const auto bytes = config::parse_size(text);
    if (!bytes) return fail(bytes.error().with_context("--buffer"));
    wanted.buffers.push_back(*bytes);
  }
  line.update("generating checkpoints", 0, 0, now());
  auto checkpoints =
      WSYNC_TRY(make_bench_checkpoints(options.model, directory.path(), [&](std::uint64_t bytes) {
        return bench::check_sync_bench(wanted, bytes);
      }));
  wanted.bytes = checkpoints.bytes;
  wanted.checkpoints = std::move(checkpoints.directories);
  const auto result = WSYNC_TRY(bench::run_sync_bench(wanted, interrupt, show_turns(line)));
  SuiteOutcome made = suite_outcome(result);
  notify_model(options.model, made);
  return made;
}

}  // namespace

void add_bench_sync(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "sync",
       .description =
           "Measure how long engines pause for an update, compared with the floor of the copy",
       .examples = {"wsync bench sync", "wsync bench sync --engines 4 --rounds 31 --json",
                    "wsync bench sync --adopt --size 4GiB",
                    "wsync bench sync --engines 2 --devices 2 --buffer 1MiB,4MiB,16MiB",
                    "wsync bench sync --model Kimi-K2 --size 512MiB",
                    "wsync bench sync --checkpoint /models/Qwen3-0.6B --engines 1,2,4,8"}});
  auto options = std::make_shared<SyncOptions>();
  add_bench_model(*command, options->model);
  command
      ->add_option("--engines", options->engines,
                   "Numbers of engines, one case for each (default: 1,2,4)")
      ->delimiter(',')
      ->check(CLI::Range(1U, kEnginesMax));
  command
      ->add_option("--rounds", options->rounds,
                   "Rounds; each measures a floor and an update (default: 15)")
      ->check(CLI::Range(1U, kRoundsMax));
  command->add_flag("--adopt", options->adopt, "Let engines map the version instead of copying it");
  command->add_flag(
      "--tcp", options->tcp,
      "Stage over TCP, as from another host, instead of mapping the trainer's memory");
  command
      ->add_option(
          "--devices", options->devices,
          "Number of separate host devices, each with its own memory and buffers like a GPU. "
          "Engines are distributed over the devices (default: none, engines read the arena)")
      ->check(CLI::Range(1U, kDevicesMax));
  command
      ->add_option(
          "--buffer", options->buffers,
          "With --devices: sizes of the devices' buffers, one case for each (default: 4MiB)")
      ->delimiter(',')
      ->type_name("SIZE");
  command
      ->add_option("--directory", options->directory,
                   "Directory for checkpoints and sockets; they are removed afterwards (default: "
                   "$TMPDIR or /tmp)")
      ->type_name("DIR");
  command
      ->add_option(
          "--trace", options->trace,
          "Write the last update of the last case as a Chrome trace (open it at ui.perfetto.dev)")
      ->type_name("FILE");
  add_bench_options(*command, run);
  command->callback([&run, options, command] {
    run.add_suite("sync", [&run, options, command](const bench::Interrupt& interrupt) {
      heed_common(run.options, *command, *options);
      return bench_sync(*options, interrupt);
    });
  });
}

}  // namespace wsync::cli
