// `wsync bench peers` compares wsync with other tools for the same job.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "bench/command/bench_checkpoints.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/command/plot_program.h"
#include "bench/harness/directory.h"
#include "bench/peers/copier.h"
#include "bench/peers/report.h"
#include "bench/peers/scripts.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/command/programs.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kPeerEnginesMax = 64;
constexpr unsigned kPeerRoundsMax = 1'000;
constexpr unsigned kPeerWarmUpsMax = 100;

struct PeersArguments {
  bench::PeersBenchOptions options;
  BenchModel model;
  std::vector<std::string> peers;
  std::string directory;
  std::string environment;
  std::string svg;
  bool install = false;
};

// Checks everything that can be refused before the run, which takes minutes.
Result<> check_peer_arguments(const PeersArguments& arguments) {
  if (auto picked = bench::pick_peers(arguments.peers); !picked)
    return fail(picked.error().with_context("--peers"));
  if (!arguments.directory.empty() && !std::filesystem::is_directory(arguments.directory))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--directory: {} is not a directory", arguments.directory));
  // Peers that need the default directory are skipped if it does not exist.
  if (arguments.options.tmpfs != bench::kPeersTmpfs &&
      !std::filesystem::is_directory(arguments.options.tmpfs))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--tmpfs: {} is not a directory", arguments.options.tmpfs));
  return check_bench_model(arguments.model, [&arguments](std::uint64_t bytes) {
    return bench::require_peers_memory(bytes, arguments.options.engines);
  });
}

Result<std::vector<bench::FoundPeer>> find_or_install(const PeersArguments& arguments,
                                                      const std::string& scripts,
                                                      const bench::Interrupt& interrupt,
                                                      trace::ProgressLine& line,
                                                      std::vector<std::string>& notes) {
  bench::PeerEnvironment environment{.folder = arguments.environment, .scripts = scripts};
  if (environment.folder.empty()) {
    auto folder = WSYNC_TRY(bench::default_peer_folder());
    environment.folder = std::move(folder);
  }
  environment.folder = std::filesystem::absolute(environment.folder).string();
  std::filesystem::create_directory(scripts);
  WSYNC_TRY(bench::write_peer_scripts(scripts));
  if (arguments.install) {
    auto installed = bench::install_peers(
        environment, interrupt, [&line](std::string_view step) { line.update(step, 0, 0, now()); });
    if (!installed) return fail(installed.error().with_context("--install"));
    notes = std::move(*installed);
  }
  const auto picked = WSYNC_TRY(bench::pick_peers(arguments.peers));
  return bench::find_peers(picked, environment, arguments.options.engines, interrupt);
}

Result<SuiteOutcome> bench_peers(const PeersArguments& arguments,
                                 const bench::Interrupt& interrupt) {
  WSYNC_TRY(check_picture(arguments.svg, interrupt));
  WSYNC_TRY(check_peer_arguments(arguments));
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  auto executable = WSYNC_TRY(find_wsync_program("wsync"));
  trace::ProgressLine line;
  bench::PeersBenchOptions options = arguments.options;
  options.executable = std::move(executable);
  options.directory = std::filesystem::absolute(directory.path()).string();
  std::vector<std::string> notes;
  auto peers =
      WSYNC_TRY(find_or_install(arguments, options.directory + "/scripts", interrupt, line, notes));
  options.peers = std::move(peers);
  line.update("generating checkpoints", 0, 0, now());
  auto checkpoints = WSYNC_TRY(
      make_bench_checkpoints(arguments.model, options.directory, [&options](std::uint64_t bytes) {
        return bench::require_peers_memory(bytes, options.engines);
      }));
  options.checkpoints = std::move(checkpoints.directories);
  const auto result = WSYNC_TRY(bench::run_peers_bench(options, interrupt, show_turns(line)));
  SuiteOutcome made = suite_outcome(result);
  WSYNC_TRY(write_picture(arguments.svg, made.suite, interrupt));
  notify_model(arguments.model, made);
  for (const std::string& note : notes) {
    made.outcome.text += "note: --install: " + note + "\n";
    made.suite.notes.push_back("--install: " + note);
  }
  std::vector<std::string_view> failed;
  for (const bench::PeerRow& row : result.rows)
    if (!row.failed.empty()) failed.push_back(row.peer->name);
  if (!failed.empty()) {
    made.outcome.complaint = fmt::format("wsync bench peers: failed: {}", fmt::join(failed, ", "));
    made.outcome.exit_code = kExitFailed;
  }
  return made;
}

void add_peers_options(CLI::App& command, PeersArguments& arguments) {
  command
      .add_option("--peers", arguments.peers,
                  fmt::format("Peers to measure (default: all): {}", bench::peer_names()))
      ->delimiter(',')
      ->type_name("NAME");
  add_bench_model(command, arguments.model);
  command.add_option("--engines", arguments.options.engines, "Number of engines (default: 2)")
      ->check(CLI::Range(1U, kPeerEnginesMax));
  command
      .add_option("--rounds", arguments.options.rounds,
                  "Rounds; in each round, every peer is measured once (default: 9)")
      ->check(CLI::Range(1U, kPeerRoundsMax));
  command
      .add_option("--warm-ups", arguments.options.warm_ups,
                  "Transfers before the measured one of each peer and round (default: 3)")
      ->check(CLI::Range(1U, kPeerWarmUpsMax));
  command.add_flag("--install", arguments.install,
                   "First install the requirements of the peers: Python packages into "
                   "--environment and, as root on Debian, the packages of Open MPI, UCX and Redis");
  command
      .add_option("--environment", arguments.environment,
                  "Directory of the Python environment (default: ~/.cache/wsync/peers)")
      ->type_name("DIR");
  command
      .add_option("--directory", arguments.directory,
                  "Directory for checkpoints, sockets and the peers' files on disk; all are "
                  "removed afterwards (default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  command
      .add_option("--tmpfs", arguments.options.tmpfs,
                  "Directory for the peers' files on tmpfs; they are removed afterwards (default: "
                  "/dev/shm)")
      ->type_name("DIR");
  command.add_option("--svg", arguments.svg, "Draw the results as bars into this SVG file")
      ->type_name("FILE");
}

}  // namespace

void add_bench_peers(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "peers",
       .description = "Measure the verified transfer of a model from a trainer's memory to the "
                      "engines' memory: by wsync and by other tools",
       .examples = {"wsync bench peers --install --svg peers.svg --output peers.json",
                    "wsync bench peers --peers gloo-buckets,openmpi --engines 4 --rounds 21",
                    "wsync bench peers --checkpoint /models/Qwen3-0.6B",
                    "wsync bench peers --quick --peers raw-tmpfs"}});
  auto arguments = std::make_shared<PeersArguments>();
  add_peers_options(*command, *arguments);
  add_bench_options(*command, run);
  command->callback([&context, &run, arguments, command] {
    // This process is the trainer, and its log would disturb the progress line.
    if (!context.options.log_level_given) context.options.log_level = "error";
    run.add_suite("peers", [&run, arguments, command](const bench::Interrupt& interrupt) {
      arguments->options.rounds =
          rounds_of(run.options, *command, "--rounds", arguments->options.rounds, 2);
      if (run.options.quick && command->count("--size") == 0) arguments->model.size = "32MiB";
      if (run.options.quick && command->count("--warm-ups") == 0) arguments->options.warm_ups = 1;
      return bench_peers(*arguments, interrupt);
    });
  });
}

void add_bench_copier(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "copier",
       .description = "Copies the floor of `wsync bench peers`, which starts this command",
       .examples = {"wsync bench copier"}});
  command->group("");  // hidden, because it has no other use
  command->callback([&context] {
    context.run("bench copier", []() -> Result<Outcome> {
      WSYNC_TRY(bench::run_copier());
      return Outcome{};
    });
  });
}

}  // namespace wsync::cli
