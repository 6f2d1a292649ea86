// `wsync bench pipeline` compares whole updates on host devices with the prediction from their
// stages.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/pipeline/pipeline_bench.h"
#include "bench/pipeline/report.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr unsigned kPipelineRoundsMax = 10'000;
constexpr std::uint64_t kPipelineBufferMin = 4096;
// Copies then take a few milliseconds, so that a thread that wakes up late adds only a few percent.
constexpr std::uint64_t kLinkBytesMax = 16 * limits::kMiB;
constexpr std::uint64_t kLinkBufferMax = limits::kMiB / 2;
constexpr double kLinkRateMin = 8 * static_cast<double>(limits::kMiB);  // two seconds for a model
constexpr std::string_view kNoLinks = "none";

struct PipelineArguments {
  std::vector<unsigned> devices = {1, 2, 4};
  // Each stage is the slowest one in one of the settings.
  std::vector<std::string> links = {"128MiB/256MiB/256MiB", "256MiB/128MiB/256MiB",
                                    "256MiB/256MiB/128MiB"};
  std::string size = "256MiB";
  std::string buffer = "4MiB";
  unsigned rounds = 15;
};

void heed_pipeline_options(const BenchOptions& common, const CLI::App& command,
                           PipelineArguments& arguments) {
  arguments.rounds = rounds_of(common, command, "--rounds", arguments.rounds, kQuickRounds);
  if (!common.quick) return;
  if (command.count("--size") == 0) arguments.size = "32MiB";
  if (command.count("--devices") == 0) arguments.devices = {2};
}

// Parses "H2D/BROADCAST/RELOAD", each a size per second.
Result<bench::LinkRates> parse_links(const std::string& text) {
  std::vector<double> rates;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('/', at), text.size());
    const auto rate = config::parse_size(text.substr(at, end - at));
    rates.push_back(rate ? static_cast<double>(*rate) : 0);
    at = end + 1;
  }
  if (rates.size() != 3 ||
      std::ranges::any_of(rates, [](double rate) { return rate < kLinkRateMin; }))
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--links is '{}', expected bytes per second of H2D, broadcast and reload, each "
                    "at least 8MiB, such as 128MiB/256MiB/256MiB; or only the word none",
                    text));
  return bench::LinkRates{.h2d = rates[0], .broadcast = rates[1], .reload = rates[2]};
}

Result<std::vector<bench::LinkRates>> read_links(const PipelineArguments& arguments) {
  std::vector<bench::LinkRates> all = {bench::LinkRates{}};
  if (arguments.links.size() == 1 && arguments.links.front() == kNoLinks) return all;
  for (const std::string& text : arguments.links) {
    const auto rates = WSYNC_TRY(parse_links(text));
    all.push_back(rates);
  }
  return all;
}

Result<SuiteOutcome> bench_pipeline(const PipelineArguments& arguments,
                                    const bench::Interrupt& interrupt) {
  const auto bytes = config::parse_size(arguments.size);
  if (!bytes) return fail(bytes.error().with_context("--size"));
  const auto buffer = config::parse_size(arguments.buffer);
  if (!buffer) return fail(buffer.error().with_context("--buffer"));
  if (*buffer < kPipelineBufferMin || *buffer > limits::kBucketBytesMax || *buffer > *bytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--buffer is {} bytes, expected 4KiB to 8GiB and at most --size ({} bytes)",
                    *buffer, *bytes));
  const auto links = WSYNC_TRY(read_links(arguments));
  bench::PipelineBenchOptions options{
      .cases = {}, .bytes = *bytes, .buffer_bytes = *buffer, .rounds = arguments.rounds};
  for (const bench::LinkRates& rates : links)
    for (const unsigned devices : arguments.devices)
      options.cases.push_back(
          {.devices = devices,
           .bytes = rates.given() ? std::min(*bytes, kLinkBytesMax) : *bytes,
           .buffer_bytes = rates.given() ? std::min(*buffer, kLinkBufferMax) : *buffer,
           .rates = rates});
  trace::ProgressLine line;
  const auto result = WSYNC_TRY(bench::run_pipeline_bench(options, interrupt, show_turns(line)));
  return suite_outcome(result);
}

}  // namespace

void add_bench_pipeline(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "pipeline",
       .description = "Measure whole updates of the weight pipeline on separate host devices, and "
                      "compare them with a simulation from its single stages",
       .examples = {"wsync bench pipeline", "wsync bench pipeline --devices 2 --rounds 31 --json",
                    "wsync bench pipeline --links none --size 1GiB --buffer 16MiB",
                    "wsync bench pipeline --links 64MiB/300MiB/200MiB --devices 2,8"}});
  auto arguments = std::make_shared<PipelineArguments>();
  command
      ->add_option("--devices", arguments->devices,
                   "Numbers of devices; each is measured with copies by cores and with all --links "
                   "(default: 1,2,4)")
      ->delimiter(',')
      ->check(CLI::Range(1U, static_cast<unsigned>(limits::kDeviceCount)));
  command
      ->add_option(
          "--links", arguments->links,
          "Bytes per second of H2D, broadcast and reload, as H2D/BROADCAST/RELOAD; these cases are "
          "measured in addition to copies by cores. none: only copies by cores (default: "
          "128MiB/256MiB/256MiB, and one case for each other stage as the slowest)")
      ->delimiter(',');
  command->add_option("--size", arguments->size,
                      "Bytes of the model; at most 16MiB over links (default: 256MiB)");
  command->add_option(
      "--buffer", arguments->buffer,
      "Bytes of each buffer of a device; at most 512KiB over links (default: 4MiB)");
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
