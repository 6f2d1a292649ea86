// `wsync bench pipeline`: whole updates on host devices, against what their stages alone predict.
#include <memory>

#include "bench/pipeline/pipeline_bench.h"
#include "bench/pipeline/report.h"
#include "deploy/cli/bench_run.h"
#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/config/units.h"
#include "shared/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kPipelineRoundsMax = 10'000;
constexpr std::uint64_t kPipelineBufferMin = 4096;

struct PipelineArguments {
  std::vector<unsigned> devices = {1, 2};
  std::string size = "256MiB";
  std::string buffer = "4MiB";
  unsigned rounds = 15;
};

void heed_pipeline_options(const BenchOptions& common, const CLI::App& command,
                           PipelineArguments& arguments) {
  arguments.rounds = rounds_of(common, command, "--rounds", arguments.rounds, 5);
  if (!common.quick) return;
  if (command.count("--size") == 0) arguments.size = "32MiB";
  if (command.count("--devices") == 0) arguments.devices = {2};
}

Result<SuiteOutcome> bench_pipeline(const PipelineArguments& arguments,
                                    const bench::Interrupt& interrupt) {
  bench::PipelineBenchOptions options{.rounds = arguments.rounds};
  options.devices.assign(arguments.devices.begin(), arguments.devices.end());
  const auto bytes = config::parse_size(arguments.size);
  if (!bytes) return fail(bytes.error().with_context("--size"));
  const auto buffer = config::parse_size(arguments.buffer);
  if (!buffer) return fail(buffer.error().with_context("--buffer"));
  if (*buffer < kPipelineBufferMin || *buffer > limits::kBucketBytesMax || *buffer > *bytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--buffer is {} bytes, expected 4KiB to 8GiB, and --size ({} bytes) at most",
                    *buffer, *bytes));
  options.bytes = *bytes;
  options.buffer_bytes = *buffer;
  trace::ProgressLine line;
  const auto result = bench::run_pipeline_bench(
      options, interrupt, [&line](std::string_view label, unsigned done, unsigned total) {
        line.update(fmt::format("{} ({} of {})", label, done, total), 0, 0, now());
      });
  if (!result) return fail(result.error());
  return SuiteOutcome{
      .outcome = {.result = bench::to_json(*result), .text = bench::to_text(*result)},
      .suite = bench::to_suite(*result)};
}

}  // namespace

void add_bench_pipeline(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "pipeline",
       .description = "The weight pipeline on separate host devices: whole updates, and what the "
                      "simulation makes of its stages alone",
       .examples = {"wsync bench pipeline", "wsync bench pipeline --devices 2 --rounds 31 --json",
                    "wsync bench pipeline --size 1GiB --buffer 16MiB"}});
  auto arguments = std::make_shared<PipelineArguments>();
  command
      ->add_option("--devices", arguments->devices,
                   "Numbers of devices, one case for each (default: 1,2)")
      ->delimiter(',')
      ->check(CLI::Range(1U, static_cast<unsigned>(limits::kDeviceCount)));
  command->add_option("--size", arguments->size, "Bytes of the model (default: 256MiB)");
  command->add_option("--buffer", arguments->buffer,
                      "Bytes of each of the three buffers of a device (default: 4MiB)");
  command->add_option("--rounds", arguments->rounds, "Rounds of each case (default: 15)")
      ->check(CLI::Range(1U, kPipelineRoundsMax));
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("pipeline", [&run, arguments, command](const bench::Interrupt& interrupt) {
      heed_pipeline_options(run.options, *command, *arguments);
      return bench_pipeline(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
