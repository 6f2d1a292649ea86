// `wsync bench`: measurements with a baseline.
#include <filesystem>

#include "bench/measure/directory.h"
#include "bench/sync/bench_engine.h"
#include "bench/sync/report.h"
#include "bench/sync/sync_bench.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/demo_checkpoint.h"
#include "shared/base/format.h"
#include "shared/config/units.h"
#include "shared/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kEnginesMax = 64;
constexpr unsigned kRoundsMax = 10'000;

struct SyncOptions {
  std::string size = "1GiB";
  std::vector<unsigned> engines = {1, 2, 4};
  unsigned rounds = 15;
  bool adopt = false;
  std::string directory;
};

Result<Outcome> bench_sync(const SyncOptions& options) {
  const Result<std::uint64_t> size = config::parse_size(options.size);
  if (!size) return fail(size.error().with_context("--size"));
  const auto interrupt = bench::Interrupt::create();
  if (!interrupt) return fail(interrupt.error());
  const auto directory = bench::TemporaryDirectory::create(options.directory);
  if (!directory) return fail(directory.error());
  trace::ProgressLine line;
  std::error_code error;
  bench::SyncBenchOptions wanted{
      .executable = std::filesystem::read_symlink("/proc/self/exe", error).string(),
      .directory = directory->path(),
      .engines = options.engines,
      .rounds = options.rounds,
      .adopt = options.adopt};
  if (error) return fail_errno("/proc/self/exe", error.value());
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    line.update("making checkpoints", 0, 0, now());
    DemoCheckpoint checkpoint{.directory = fmt::format("{}/model{}", directory->path(), seed),
                              .bytes = *size,
                              .seed = seed};
    const auto made = make_demo_checkpoint(checkpoint);
    if (!made) return fail(made.error());
    wanted.bytes = made->bytes;
    wanted.checkpoints.push_back(checkpoint.directory);
  }
  const auto result = bench::run_sync_bench(
      wanted, *interrupt, [&line](std::string_view label, unsigned done, unsigned total) {
        line.update(fmt::format("{} ({} of {})", label, done, total), 0, 0, now());
      });
  if (!result) return fail(result.error());
  return Outcome{.result = bench::to_json(*result), .text = bench::to_text(*result)};
}

void add_sync(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "sync",
       .description = "How long engines stand still for an update, against the floor of the copy",
       .examples = {"wsync bench sync", "wsync bench sync --engines 4 --rounds 31 --json",
                    "wsync bench sync --adopt --size 4GiB"}});
  auto options = std::make_shared<SyncOptions>();
  command->add_option("--size", options->size, "Bytes of the model (default: 1GiB)");
  command
      ->add_option("--engines", options->engines,
                   "Numbers of engines, one case for each (default: 1,2,4)")
      ->delimiter(',')
      ->check(CLI::Range(1U, kEnginesMax));
  command->add_option("--rounds", options->rounds, "Pairs of floor and update (default: 15)")
      ->check(CLI::Range(1U, kRoundsMax));
  command->add_flag("--adopt", options->adopt, "Engines that map the version instead of copying");
  command
      ->add_option("--directory", options->directory,
                   "Where checkpoints and sockets are made, and removed (default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  command->callback(
      [&context, options] { context.run("bench sync", [&] { return bench_sync(*options); }); });
}

// What `bench sync` starts: hidden, for it is of no use to anybody else.
void add_bench_engine(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "engine",
       .description = "An engine that can also copy the floor, told so on standard input",
       .examples = {"wsync bench engine --sidecar SOCKET --checkpoint DIR --replica r0"}});
  command->group("");
  auto options = std::make_shared<bench::BenchEngineOptions>();
  command->add_option("--sidecar", options->sidecar_socket, "The sidecar's engine socket")
      ->required();
  command->add_option("--checkpoint", options->checkpoint, "Names and shapes of the model")
      ->required();
  command->add_option("--replica", options->replica, "Name of the replica")->required();
  command->add_flag("--adopt", options->adopt, "Map versions and use them in place");
  command->add_option("--gpu", options->gpu, "Hold the weights on this GPU");
  command->add_option("--device-index", options->device, "Index of the sidecar's device");
  command->callback([&context, options] {
    context.run("bench engine", [&]() -> Result<Outcome> {
      WSYNC_TRY(bench::run_bench_engine(*options));
      return Outcome{};
    });
  });
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("bench", "Measurements with a baseline");
  command->require_subcommand(1);
  add_sync(*command, context);
  add_bench_gpu(*command, context);
  add_bench_schedule(*command, context);
  add_bench_recovery(*command, context);
  add_bench_engine(*command, context);
}

}  // namespace wsync::cli
