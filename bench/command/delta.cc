// `wsync bench delta` measures updates in which a part of the weights changes.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "bench/command/bench_checkpoints.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/directory.h"
#include "bench/publishers/delta_bench.h"
#include "bench/publishers/trajectory_bench.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kDeltaEnginesMax = 64;

struct DeltaArguments {
  BenchModel model;
  unsigned engines = 1;
  unsigned rounds = 10;
  std::vector<double> elements = bench::DeltaBenchOptions{}.elements;
  std::vector<double> tensors = bench::DeltaBenchOptions{}.tensors;
  std::string transport = bench::DeltaBenchOptions{}.transport;
  std::string trajectory;  // a directory of checkpoints; empty: changes at random
  std::string plot;
  std::string directory;
};

void heed_common(const BenchOptions& common, const CLI::App& command, DeltaArguments& arguments) {
  const bool is_run = !arguments.trajectory.empty();
  if (is_run && command.count("--rounds") == 0)
    arguments.rounds = bench::TrajectoryOptions{}.rounds;
  arguments.rounds =
      rounds_of(common, command, "--rounds", arguments.rounds, is_run ? 1 : kQuickRounds);
  if (!common.quick) return;
  if (command.count("--size") == 0) arguments.model.size = "64MiB";
  if (command.count("--elements") == 0) arguments.elements = {0.01, 1, 100};
  if (command.count("--tensors") == 0) arguments.tensors = {10};
}

Result<SuiteOutcome> bench_delta(const DeltaArguments& arguments,
                                 const bench::Interrupt& interrupt) {
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  bench::DeltaBenchOptions wanted{.executable = WSYNC_TRY(find_wsync_program("wsync")),
                                  .directory = directory.path(),
                                  .checkpoint = {},
                                  .engines = arguments.engines,
                                  .rounds = arguments.rounds,
                                  .transport = arguments.transport,
                                  .elements = arguments.elements,
                                  .tensors = arguments.tensors};
  trace::ProgressLine line;
  line.update("generating checkpoints", 0, 0, now());
  auto checkpoints =
      WSYNC_TRY(make_bench_checkpoints(arguments.model, directory.path(), [&](std::uint64_t bytes) {
        return bench::check_delta_bench(wanted, bytes);
      }));
  wanted.bytes = checkpoints.bytes;
  wanted.checkpoint = checkpoints.directories.front();
  auto suite = WSYNC_TRY(bench::run_delta_bench(wanted, interrupt, show_turns(line)));
  SuiteOutcome made = part_outcome(
      std::move(suite), fmt::format("{} in each publish", trace::format_bytes(wanted.bytes)),
      arguments.rounds);
  notify_model(arguments.model, made);
  return made;
}

Result<SuiteOutcome> bench_trajectory(const DeltaArguments& arguments,
                                      const bench::Interrupt& interrupt) {
  auto checkpoints = WSYNC_TRY(bench::find_trajectory(arguments.trajectory));
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  trace::ProgressLine line;
  auto measured =
      WSYNC_TRY(bench::run_trajectory({.executable = WSYNC_TRY(find_wsync_program("wsync")),
                                       .directory = directory.path(),
                                       .checkpoints = std::move(checkpoints),
                                       .engines = arguments.engines,
                                       .rounds = arguments.rounds,
                                       .transport = arguments.transport},
                                      interrupt, show_turns(line)));
  const std::string title =
      fmt::format("{} of {}", counted(measured.steps.size(), "step"),
                  std::filesystem::weakly_canonical(arguments.trajectory).filename().string());
  if (!arguments.plot.empty())
    WSYNC_TRY(bench::write_trajectory_picture(arguments.plot, title, measured.steps));
  SuiteOutcome made = part_outcome(std::move(measured.suite), title, arguments.rounds);
  made.outcome.text += "\n" + bench::trajectory_table(measured.steps);
  if (!arguments.plot.empty()) made.outcome.text += "picture: " + arguments.plot + "\n";
  return made;
}

}  // namespace

void add_bench_delta(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "delta",
       .description = "Measure updates in which a part of the weights changes, beside updates in "
                      "which all change",
       .examples = {"wsync bench delta", "wsync bench delta --elements 0.1,1 --tensors 0",
                    "wsync bench delta --checkpoint /models/Qwen3-0.6B --engines 2",
                    "wsync bench delta --trajectory /runs/7 --plot run7.svg"}});
  auto arguments = std::make_shared<DeltaArguments>();
  add_bench_model(*command, arguments->model);
  command->add_option("--engines", arguments->engines, "Number of engines (default: 1)")
      ->check(CLI::Range(1U, kDeltaEnginesMax));
  command
      ->add_option("--elements", arguments->elements,
                   "Percentages of elements at random positions (default: 0.01,0.1,1,5,20,100)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  command
      ->add_option("--tensors", arguments->tensors,
                   "Percentages of the model's bytes, in whole tensors, those of experts if there "
                   "are any (default: 1,10)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  command
      ->add_option("--transport", arguments->transport,
                   "Transport by which the sidecar receives versions: memfd (default), or tcp, "
                   "which also shows what travels")
      ->check(CLI::IsMember({"memfd", "tcp"}));
  command
      ->add_option("--rounds", arguments->rounds,
                   "Rounds; each measures two updates for each percentage or step (default: 10, "
                   "with --trajectory 3)")
      ->check(CLI::Range(1U, kBenchRepeatsMax));
  auto* trajectory =
      command
          ->add_option("--trajectory", arguments->trajectory,
                       "Publish the checkpoints of this directory, whose names end in their "
                       "number, one after the "
                       "other, instead of changes at random. All must have the same tensors")
          ->type_name("DIR");
  for (const char* other : {"--size", "--model", "--checkpoint", "--elements", "--tensors"})
    trajectory->excludes(command->get_option(other));
  command->add_option("--plot", arguments->plot, "With --trajectory: SVG file for a picture of it")
      ->type_name("FILE")
      ->needs(trajectory);
  command
      ->add_option("--directory", arguments->directory,
                   "Directory for checkpoints and sockets; they are removed afterwards (default: "
                   "$TMPDIR or /tmp)")
      ->type_name("DIR");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("delta", [&run, arguments, command](const bench::Interrupt& interrupt) {
      heed_common(run.options, *command, *arguments);
      return arguments->trajectory.empty() ? bench_delta(*arguments, interrupt)
                                           : bench_trajectory(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
