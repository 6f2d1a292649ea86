// `wsync bench schedule` compares a training step with and without overlap, and with the simulator.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/schedule/report.h"
#include "bench/schedule/schedule_bench.h"
#include "shared/base/format.h"
#include "shared/config/units.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::cli {
namespace {

constexpr unsigned kStepsMax = 10'000;
constexpr std::uint32_t kSizeMax = 1U << 20U;
constexpr double kLatencyMaxUs = 1e7;

struct Arguments {
  bench::ScheduleBenchOptions options;
  std::string bandwidth;
  double latency_us = 100;
  std::string svg;
  std::string trace;
};

Result<SuiteOutcome> bench_schedule(const Arguments& arguments, const bench::Interrupt& interrupt) {
  if (!arguments.svg.empty())
    if (const auto checked = trace::check_text_file(arguments.svg); !checked)
      return fail(checked.error().with_context("--svg"));
  bench::ScheduleBenchOptions options = arguments.options;
  options.link.latency =
      std::chrono::nanoseconds(static_cast<std::int64_t>(1e3 * arguments.latency_us));
  if (!arguments.bandwidth.empty()) {
    const Result<std::uint64_t> bytes = config::parse_size(arguments.bandwidth);
    if (!bytes) return fail(bytes.error().with_context("--bandwidth"));
    if (*bytes == 0)
      return fail(ErrorCode::kInvalidInput, "--bandwidth: expected more than 0 bytes per second");
    options.link.bytes_per_second = static_cast<double>(*bytes);
  }
  trace::ProgressLine line;
  const auto result = WSYNC_TRY(
      bench::run_schedule_bench(options, interrupt, [&line](unsigned done, unsigned total) {
        line.update(fmt::format("step {} of {}", done, total), 0, 0, now());
      }));
  if (!arguments.svg.empty())
    WSYNC_TRY(trace::write_text_file(arguments.svg, bench::to_svg(result)));
  if (!arguments.trace.empty())
    WSYNC_TRY(trace::write_chrome_trace(arguments.trace, bench::to_trace(result)));
  return suite_outcome(result);
}

void add_sizes(CLI::App& command, bench::ScheduleBenchOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    command.add_option(name, value, text)->check(CLI::Range(1U, kSizeMax));
  };
  add("--pp", options.sizes.pp, "Number of pipeline ranks (default: 1)");
  add("--vpp", options.sizes.vpp, "Chunks per pipeline rank, one layer each (default: 2)");
  add("--dp", options.sizes.dp,
      "Data-parallel replicas. There are pp times dp processes; with more processes than cores, "
      "the operating system's scheduler is measured (default: 2)");
  add("--ep", options.sizes.ep, "Number of replicas that share experts (default: 2)");
  add("--microbatches", options.microbatches, "Micro-batches per step (default: 8)");
  add("--tokens", options.tokens, "Tokens per micro-batch (default: 256)");
  add("--hidden", options.hidden, "Hidden size, also of the experts (default: 256)");
  add("--experts", options.experts, "Experts per layer; each token uses two (default: 8)");
}

}  // namespace

void add_bench_schedule(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "schedule",
       .description = "Measure a training step with and without overlap on an emulated link, "
                      "compared with the simulator's prediction",
       .examples = {"wsync bench schedule --svg schedule.svg",
                    "wsync bench schedule --share 1.2 --json",
                    "wsync bench schedule --bandwidth 200MB --latency-us 50 --steps 31"}});
  auto arguments = std::make_shared<Arguments>();
  add_sizes(*command, arguments->options);
  command
      ->add_option(
          "--bandwidth", arguments->bandwidth,
          "Bytes per second of each rank's link in each direction (default: set by --share)")
      ->type_name("SIZE");
  command
      ->add_option(
          "--latency-us", arguments->latency_us,
          "Latency of an exchange in microseconds, added to the time of its bytes (default: 100)")
      ->check(CLI::Range(0.0, kLatencyMaxUs));
  command->add_option("--share", arguments->options.link.dispatch_share,
                      "Without --bandwidth: time of a dispatch as a share of the time of an "
                      "attention, which is measured first (default: 0.6)");
  command
      ->add_option("--steps", arguments->options.steps, "Measured steps of each case (default: 15)")
      ->check(CLI::Range(1U, kStepsMax));
  command
      ->add_option("--warmup", arguments->options.warmup,
                   "Warm-up steps before the measured ones (default: 3)")
      ->check(CLI::Range(1U, kStepsMax));
  command
      ->add_option(
          "--svg", arguments->svg,
          "Draw the measured and simulated steps, and the measured lanes, into this SVG file")
      ->type_name("FILE");
  command
      ->add_option("--trace", arguments->trace,
                   "Write every measured and simulated operation as a Chrome trace (open it at "
                   "ui.perfetto.dev)")
      ->type_name("FILE");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("schedule", [&run, arguments, command](const bench::Interrupt& interrupt) {
      bench::ScheduleBenchOptions& options = arguments->options;
      options.steps = rounds_of(run.options, *command, "--steps", options.steps, kQuickRounds);
      if (run.options.quick && command->count("--warmup") == 0) options.warmup = 1;
      return bench_schedule(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
