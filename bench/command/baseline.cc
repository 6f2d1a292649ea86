// `wsync bench baseline` measures what this machine can do.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/baseline/baseline_bench.h"
#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/directory.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

struct BaselineArguments {
  bench::BaselineBenchOptions options;
  std::string size = "256MiB";
  std::string directory;
  bool without_gpus = false;
};

Result<SuiteOutcome> bench_baseline(BaselineArguments arguments,
                                    const bench::Interrupt& interrupt) {
  const auto size = config::parse_size(arguments.size);
  if (!size) return fail(size.error().with_context("--size"));
  arguments.options.bytes = *size;
  arguments.options.gpus = !arguments.without_gpus;
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  arguments.options.directory = directory.path();
  trace::ProgressLine line;
  auto suite = WSYNC_TRY(bench::run_baseline_bench(arguments.options, interrupt, show_turns(line)));
  const bench::Machine machine = bench::this_machine();
  std::string text = fmt::format(
      "{}\n{}; {}; huge pages {}, of shared memory {}\n{} in each measurement, {} rounds, every "
      "byte checked\n\n",
      bench::processor_text(machine), machine.layout, machine.kernel, machine.huge_pages,
      machine.shared_huge_pages, trace::format_bytes(arguments.options.bytes),
      arguments.options.rounds);
  Outcome outcome{.result = bench::to_json(result_file({suite})),
                  .text = text + bench::to_text(suite)};
  return SuiteOutcome{.outcome = std::move(outcome), .suite = std::move(suite)};
}

}  // namespace

void add_bench_baseline(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "baseline",
       .description = "Measure the highest rates of this machine's memory, links, files and GPUs",
       .examples = {"wsync bench baseline", "wsync bench baseline --quick --output before.json",
                    "wsync bench baseline --size 1GiB --directory /mnt/nvme --json"}});
  auto arguments = std::make_shared<BaselineArguments>();
  command->add_option("--size", arguments->size,
                      "Bytes of each measurement, 1MiB to 64GiB (default: 256MiB)");
  command
      ->add_option("--directory", arguments->directory,
                   "Directory for the file to read and a socket; both are removed afterwards "
                   "(default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  command->add_flag("--no-gpu", arguments->without_gpus, "Do not measure GPUs");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("baseline", [&run, arguments, command](const bench::Interrupt& interrupt) {
      // This suite has no option --rounds, so --repeats sets its rounds.
      arguments->options.rounds =
          run.options.repeats.value_or(run.options.quick ? kQuickRounds : 15);
      if (run.options.quick && command->count("--size") == 0)
        arguments->size =
            fmt::format("{}B", bench::quick_baseline_bytes(bench::this_machine().cache_bytes));
      return bench_baseline(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
