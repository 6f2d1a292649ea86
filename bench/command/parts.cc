// `wsync bench control`, `transport` and `codecs` measure parts of the product separately.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/codecs/codecs_bench.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/control/control_bench.h"
#include "bench/control/fleet_bench.h"
#include "bench/harness/directory.h"
#include "bench/harness/report.h"
#include "bench/transport/transport_bench.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/command/programs.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kPartRounds = 15;

void add_directory_option(CLI::App& command, std::string& directory) {
  command
      .add_option("--directory", directory,
                  "Directory for sockets; they are removed afterwards (default: $TMPDIR or /tmp)")
      ->type_name("DIR");
}

// ---- control ----

struct ControlArguments {
  bench::ControlBenchOptions options;
  std::vector<unsigned> sidecars;  // empty: no fleet is measured, only its parts
  std::string checkpoint;          // that a fleet is given; empty: one of 2 MiB
  bool with_keys = false;
  std::string directory;
};

Result<SuiteOutcome> bench_control(ControlArguments arguments, const bench::Interrupt& interrupt) {
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  arguments.options.directory = directory.path();
  trace::ProgressLine line;
  auto suite = WSYNC_TRY(bench::run_control_bench(arguments.options, interrupt, show_turns(line)));
  return part_outcome(
      std::move(suite),
      fmt::format("{} round trips in each measurement, {} messages one way",
                  arguments.options.messages, bench::kOneWayTimes * arguments.options.messages),
      arguments.options.rounds);
}

constexpr std::chrono::milliseconds kFleetIdle{5'000};
constexpr std::chrono::milliseconds kFleetIdleQuick{1'000};
constexpr unsigned kFleetRounds = 5;

Result<SuiteOutcome> bench_fleet(const ControlArguments& arguments, const BenchOptions& options,
                                 const bench::Interrupt& interrupt) {
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  const unsigned rounds = options.repeats.value_or(options.quick ? 1 : kFleetRounds);
  trace::ProgressLine line;
  auto suite =
      WSYNC_TRY(bench::run_fleet_bench({.executable = WSYNC_TRY(find_wsync_program("wsync")),
                                        .directory = directory.path(),
                                        .sidecars = arguments.sidecars,
                                        .checkpoint = arguments.checkpoint,
                                        .rounds = rounds,
                                        .with_keys = arguments.with_keys,
                                        .idle = options.quick ? kFleetIdleQuick : kFleetIdle},
                                       interrupt, show_turns(line)));
  const std::string what = arguments.checkpoint.empty() ? "2 MiB" : arguments.checkpoint;
  return part_outcome(std::move(suite),
                      fmt::format("pushes of {}, 8 replicas of each sidecar", what), rounds);
}

// ---- transport ----

struct TransportArguments {
  bench::TransportBenchOptions options;
  std::string size = "256MiB";
  std::vector<std::string> buckets = {"1MiB", "8MiB", "64MiB"};
  std::string directory;
};

Result<SuiteOutcome> bench_transport(TransportArguments arguments,
                                     const bench::Interrupt& interrupt) {
  const auto size = config::parse_size(arguments.size);
  if (!size) return fail(size.error().with_context("--size"));
  arguments.options.bytes = *size;
  arguments.options.bucket_bytes.clear();
  for (const std::string& text : arguments.buckets) {
    const auto bucket = config::parse_size(text);
    if (!bucket) return fail(bucket.error().with_context("--bucket"));
    arguments.options.bucket_bytes.push_back(*bucket);
  }
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  arguments.options.directory = directory.path();
  trace::ProgressLine line;
  auto suite =
      WSYNC_TRY(bench::run_transport_bench(arguments.options, interrupt, show_turns(line)));
  return part_outcome(
      std::move(suite),
      fmt::format("{} in each measurement", trace::format_bytes(arguments.options.bytes)),
      arguments.options.rounds);
}

// ---- codecs ----

struct CodecsArguments {
  bench::CodecsBenchOptions options;
  std::string size = "256MiB";
};

Result<SuiteOutcome> bench_codecs(CodecsArguments arguments, const bench::Interrupt& interrupt) {
  const auto size = config::parse_size(arguments.size);
  if (!size) return fail(size.error().with_context("--size"));
  arguments.options.bytes = *size;
  trace::ProgressLine line;
  auto suite = WSYNC_TRY(bench::run_codecs_bench(arguments.options, interrupt, show_turns(line)));
  return part_outcome(
      std::move(suite),
      fmt::format("{} in each measurement, texts of {}",
                  trace::format_bytes(arguments.options.bytes), arguments.options.model),
      arguments.options.rounds);
}

// These suites have no option --rounds, so --repeats sets their rounds.
unsigned part_rounds(const BenchRun& run) {
  return run.options.repeats.value_or(run.options.quick ? kQuickRounds : kPartRounds);
}

}  // namespace

void add_bench_control(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "control",
       .description = "Measure messages over wsync's links and over bare sockets, message "
                      "encoding, and a coordinator's decisions",
       .examples = {"wsync bench control", "wsync bench control --replicas 1,32,1024 --json",
                    "wsync bench control --messages 10000 --output control.json",
                    "wsync bench control --sidecars 10,100,1000 --keys"}});
  auto arguments = std::make_shared<ControlArguments>();
  command->add_option("--messages", arguments->options.messages,
                      "Round trips in one measurement; measurements in one direction send ten "
                      "times as many messages (default: 2000)");
  command
      ->add_option(
          "--replicas", arguments->options.replicas,
          "Numbers of replicas in update rounds, one case for each (default: 1,10,100,1000)")
      ->delimiter(',');
  command
      ->add_option("--sidecars", arguments->sidecars,
                   "Measure a coordinator process with these numbers of sidecars over real "
                   "connections, one fleet after the other, and nothing else")
      ->delimiter(',');
  command
      ->add_option("--checkpoint", arguments->checkpoint,
                   "With --sidecars: the checkpoint to push, for instance one of many tensors "
                   "(default: one of 2 MiB)")
      ->needs("--sidecars");
  command
      ->add_flag("--keys", arguments->with_keys,
                 "With --sidecars: measure each fleet a second time, with a key for each sidecar, "
                 "by TCP; the fleet without keys is its baseline")
      ->needs("--sidecars");
  add_directory_option(*command, arguments->directory);
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("control", [&run, arguments, command](const bench::Interrupt& interrupt) {
      if (!arguments->sidecars.empty()) return bench_fleet(*arguments, run.options, interrupt);
      arguments->options.rounds = part_rounds(run);
      if (run.options.quick && command->count("--messages") == 0) arguments->options.messages = 200;
      if (run.options.quick && command->count("--replicas") == 0)
        arguments->options.replicas = {1, 100};
      return bench_control(*arguments, interrupt);
    });
  });
}

void add_bench_transport(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "transport",
       .description = "Measure transfers of versions by memfd and TCP streams, compared with a "
                      "copy and a bare connection",
       .examples = {"wsync bench transport", "wsync bench transport --bucket 4MiB --json",
                    "wsync bench transport --size 1GiB --connections 1,2,4,8"}});
  auto arguments = std::make_shared<TransportArguments>();
  command->add_option("--size", arguments->size,
                      "Bytes of each measurement, 1MiB to 64GiB (default: 256MiB)");
  command
      ->add_option("--bucket", arguments->buckets,
                   "Bucket sizes in bytes, one case for each (default: 1MiB,8MiB,64MiB)")
      ->delimiter(',');
  command
      ->add_option("--connections", arguments->options.connections,
                   "Numbers of TCP connections of a transfer, one case for each (default: 1,4)")
      ->delimiter(',');
  add_directory_option(*command, arguments->directory);
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("transport", [&run, arguments, command](const bench::Interrupt& interrupt) {
      arguments->options.rounds = part_rounds(run);
      if (run.options.quick && command->count("--size") == 0) arguments->size = "32MiB";
      if (run.options.quick && command->count("--bucket") == 0) arguments->buckets = {"4MiB"};
      return bench_transport(*arguments, interrupt);
    });
  });
}

void add_bench_codecs(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command =
      add_command(parent, context,
                  {.name = "codecs",
                   .description = "Measure digests, checksums, conversions and parsers for "
                                  "weights, compared with copies of the same bytes",
                   .examples = {"wsync bench codecs", "wsync bench codecs --model Kimi-K2 --json",
                                "wsync bench codecs --size 1GiB --output codecs.json"}});
  auto arguments = std::make_shared<CodecsArguments>();
  command->add_option("--size", arguments->size,
                      "Bytes of each measurement, 1MiB to 64GiB (default: 256MiB)");
  command
      ->add_option(
          "--model", arguments->options.model,
          "Published model whose header, index and layout are parsed (default: Qwen3-30B-A3B)")
      ->type_name("NAME");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("codecs", [&run, arguments, command](const bench::Interrupt& interrupt) {
      arguments->options.rounds = part_rounds(run);
      if (run.options.quick && command->count("--size") == 0) arguments->size = "32MiB";
      return bench_codecs(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
