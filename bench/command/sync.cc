// `wsync bench sync` measures how long engines pause for an update.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "bench/command/bench_checkpoints.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/command/scripts.h"
#include "bench/harness/directory.h"
#include "bench/publishers/c_publisher.h"
#include "bench/publishers/report.h"
#include "bench/sync/report.h"
#include "bench/sync/sync_bench.h"
#include "shared/base/format.h"
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
  std::string python;                       // empty: no publishers are compared
  std::vector<std::string> python_tensors;  // empty: all that the interpreter has
};

// Applies the common options of the command line to this suite.
void heed_common(const BenchOptions& common, const CLI::App& command, SyncOptions& options) {
  options.rounds = rounds_of(common, command, "--rounds", options.rounds, kQuickRounds);
  if (!common.quick) return;
  if (command.count("--size") == 0) options.model.size = "64MiB";
  if (command.count("--engines") == 0) options.engines = {1};
}

// Refuses options that belong to the other kind of run.
Result<> check_publishers(const SyncOptions& options) {
  if (options.python.empty()) {
    if (options.python_tensors.empty()) return {};
    return fail(ErrorCode::kInvalidInput,
                "--python-tensors needs an interpreter; give it with --python");
  }
  if (options.engines.size() != 1)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--engines has {} numbers, but --python measures one fleet of each "
                            "kind; give one number",
                            options.engines.size()));
  if (options.devices > 0 || !options.buffers.empty() || !options.trace.empty())
    return fail(ErrorCode::kInvalidInput,
                "--python compares publishers and allows neither --devices, --buffer nor --trace");
  return {};
}

Result<SuiteOutcome> bench_publishers(const SyncOptions& options,
                                      const bench::Interrupt& interrupt) {
  WSYNC_TRY(check_publishers(options));
  auto script = WSYNC_TRY(find_script("publish.py", "publishes from the interpreter of --python"));
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(options.directory));
  auto executable = WSYNC_TRY(find_wsync_program("wsync"));
  trace::ProgressLine line;
  line.update("asking the interpreter", 0, 0, now());
  bench::PublishersBenchOptions wanted{.executable = std::move(executable),
                                       .directory = directory.path(),
                                       .checkpoint = {},
                                       .interpreter = {},
                                       .engines = options.engines.front(),
                                       .rounds = options.rounds,
                                       .adopt = options.adopt,
                                       .tcp = options.tcp};
  wanted.interpreter = WSYNC_TRY(bench::find_interpreter({.python = options.python,
                                                          .script = std::move(script),
                                                          .version = WSYNC_VERSION,
                                                          .kinds = options.python_tensors,
                                                          .directory = directory.path()},
                                                         interrupt));
  line.update("generating checkpoints", 0, 0, now());
  auto checkpoints =
      WSYNC_TRY(make_bench_checkpoints(options.model, directory.path(), [&](std::uint64_t bytes) {
        return bench::check_publishers_bench(wanted, bytes);
      }));
  wanted.bytes = checkpoints.bytes;
  wanted.checkpoint = checkpoints.directories.front();
  const auto result = WSYNC_TRY(bench::run_publishers_bench(wanted, interrupt, show_turns(line)));
  SuiteOutcome made = suite_outcome(result);
  notify_model(options.model, made);
  return made;
}

Result<SuiteOutcome> bench_sync(const SyncOptions& options, const bench::Interrupt& interrupt) {
  if (!options.python.empty()) return bench_publishers(options, interrupt);
  WSYNC_TRY(check_publishers(options));
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
                    "wsync bench sync --python venv/bin/python --python-tensors numpy,torch",
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
  command
      ->add_option(
          "--python", options->python,
          "Compare a publish from Python with the same publish from C, instead of the pause with "
          "the floor. The interpreter must have the wheel of this release")
      ->type_name("PYTHON");
  command
      ->add_option("--python-tensors", options->python_tensors,
                   "With --python: what the trainer's weights are, numpy, torch or both (default: "
                   "numpy, and torch where it can be imported)")
      ->delimiter(',')
      ->check(CLI::IsMember({"numpy", "torch"}));
  add_bench_options(*command, run);
  command->callback([&run, options, command] {
    if (!options->python.empty() && command->count("--engines") == 0) options->engines = {1};
    run.add_suite("sync", [&run, options, command](const bench::Interrupt& interrupt) {
      heed_common(run.options, *command, *options);
      return bench_sync(*options, interrupt);
    });
  });
}

void add_bench_publisher(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "publisher",
       .description =
           "Publishes from C for `wsync bench sync --python` and `wsync bench whole`, which "
           "start this command",
       .examples = {"wsync bench publisher --job FILE"}});
  command->group("");  // hidden, because it has no other use
  const auto job = std::make_shared<std::string>();
  command->add_option("--job", *job, "What to publish")->required();
  command->callback([&context, job] {
    context.run("bench publisher", [&]() -> Result<Outcome> {
      WSYNC_TRY(bench::run_c_publisher(*job));
      return Outcome{};
    });
  });
}

}  // namespace wsync::cli
