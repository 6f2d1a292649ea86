// `wsync bench scale` simulates updates on clusters.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/command/plot_program.h"
#include "bench/scale/report.h"
#include "bench/scale/scale_bench.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/config/units.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kScaleBufferMin = limits::kMiB;
constexpr double kOversubscriptionMax = 1000;
constexpr unsigned kGpusPerHostMax = static_cast<unsigned>(limits::kDeviceCount);

struct ScaleArguments {
  std::vector<std::string> models;
  std::vector<unsigned> gpus;
  std::string host = "h20";
  unsigned gpus_per_host = 0;
  unsigned gpus_per_replica = 0;
  unsigned gpus_per_switch = 0;
  double oversubscription = 1;
  std::string pcie, nvlink, network;  // bytes per second; empty: as the host type
  std::string staging;
  std::string buffer = "512MiB";
  std::string peer_buffer = "8GiB";
  std::string stages = "auto";
  std::string svg;
};

// Reads a speed in bytes per second. An empty text keeps the current speed. 0 is allowed only if it
// means "none".
Result<> read_speed(const char* option, const std::string& text, bool none, double& speed) {
  if (text.empty()) return {};
  const auto bytes = config::parse_size(text);
  if (!bytes) return fail(bytes.error().with_context(option));
  if (*bytes == 0 && !none)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected more than 0 bytes per second", option));
  speed = static_cast<double>(*bytes);
  return {};
}

Result<> read_buffer(const char* option, const std::string& text, std::uint64_t& buffer) {
  const auto bytes = config::parse_size(text);
  if (!bytes) return fail(bytes.error().with_context(option));
  if (*bytes < kScaleBufferMin || *bytes > limits::kBucketBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} is {} bytes, expected 1MiB to 8GiB", option, *bytes));
  buffer = *bytes;
  return {};
}

Result<> read_host(const ScaleArguments& arguments, bench::HostType& host) {
  const auto found = bench::find_host(arguments.host);
  if (!found) return fail(found.error().with_context("--host"));
  host = *found;
  if (arguments.gpus_per_host != 0) {
    // The number of NICs is proportional to the number of GPUs.
    host.nics = std::max(1U, host.nics * arguments.gpus_per_host / host.gpus);
    host.gpus = arguments.gpus_per_host;
  }
  if (arguments.gpus_per_switch != 0) host.gpus_per_switch = arguments.gpus_per_switch;
  WSYNC_TRY(read_speed("--pcie", arguments.pcie, false, host.pcie));
  WSYNC_TRY(read_speed("--nvlink", arguments.nvlink, true, host.nvlink));
  return read_speed("--network", arguments.network, false, host.nic);
}

Result<bench::ScaleOptions> read_options(const ScaleArguments& arguments) {
  bench::ScaleOptions options{.oversubscription = arguments.oversubscription,
                              .gpus_per_replica = arguments.gpus_per_replica};
  WSYNC_TRY(read_host(arguments, options.host));
  WSYNC_TRY(read_buffer("--buffer", arguments.buffer, options.buffer_bytes));
  WSYNC_TRY(read_buffer("--peer-buffer", arguments.peer_buffer, options.peer_buffer_bytes));
  const auto stages = reload::parse_stages(arguments.stages);
  if (!stages) return fail(stages.error().with_context("--stages"));
  options.stages = *stages;
  if (!arguments.staging.empty()) {
    const auto bytes = config::parse_size(arguments.staging);
    if (!bytes) return fail(bytes.error().with_context("--staging"));
    if (*bytes == 0 || *bytes > limits::kModelBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--staging is {} bytes, expected 1 to 16TiB", *bytes));
    options.staging_bytes = *bytes;
  }
  for (const std::string& name : arguments.models) {
    const auto model = bench::find_model(name);
    if (!model) return fail(model.error().with_context("--model"));
    options.models.push_back(*model);
  }
  if (arguments.models.empty())
    options.models.assign(bench::model_shapes().begin(), bench::model_shapes().end());
  options.gpus.assign(arguments.gpus.begin(), arguments.gpus.end());
  std::ranges::sort(options.gpus);
  return options;
}

// Repetitions are refused because a simulation always gives the same result.
void refuse_repeats(CLI::App& command) {
  command.get_option("--repeats")->check([](const std::string& given) {
    return fmt::format(
        "{}: `wsync bench scale` is a simulation and gives the same result each time; remove "
        "--repeats, or put it after another suite",
        given);
  });
}

// Simulates less with --quick.
void heed_quick(const BenchOptions& common, const CLI::App& command, ScaleArguments& arguments) {
  if (common.quick && command.count("--gpus") == 0) arguments.gpus = {16, 256, 2048};
  if (common.quick && command.count("--model") == 0) arguments.models = {"Kimi-K2"};
}

Result<SuiteOutcome> bench_scale(const ScaleArguments& arguments,
                                 const bench::Interrupt& interrupt) {
  WSYNC_TRY(check_picture(arguments.svg, interrupt));
  const auto options = WSYNC_TRY(read_options(arguments));
  const auto result = WSYNC_TRY(bench::run_scale_bench(options));
  SuiteOutcome made = suite_outcome(result);
  WSYNC_TRY(write_picture(arguments.svg, made.suite, interrupt));
  return made;
}

void add_cluster(CLI::App& command, ScaleArguments& arguments) {
  command.add_option("--host", arguments.host,
                     "Host type whose speeds are used: h20 or h800 (default: h20)");
  command
      .add_option(
          "--gpus", arguments.gpus,
          "Numbers of GPUs of the clusters (default: 8,16,32,64,128,256,512,1024,2048,4096,10000)")
      ->delimiter(',')
      ->check(CLI::Range(1U, bench::kScaleGpusMax));
  command
      .add_option("--gpus-per-host", arguments.gpus_per_host,
                  "GPUs per host; the number of NICs changes in proportion (default: 8)")
      ->check(CLI::Range(1U, kGpusPerHostMax));
  command
      .add_option(
          "--gpus-per-replica", arguments.gpus_per_replica,
          "GPUs that share one copy of the model (default: as many hosts as the model needs)")
      ->check(CLI::Range(1U, bench::kScaleGpusMax));
  command
      .add_option("--gpus-per-switch", arguments.gpus_per_switch,
                  "GPUs that share one PCIe link to the host (default: 1)")
      ->check(CLI::Range(1U, kGpusPerHostMax));
  command.add_option("--pcie", arguments.pcie, "Bytes per second from host memory to a GPU")
      ->type_name("SIZE");
  command
      .add_option("--nvlink", arguments.nvlink,
                  "Bytes per second to a GPU from the other GPUs; 0: no NVLink")
      ->type_name("SIZE");
  command.add_option("--network", arguments.network, "Bytes per second of one NIC")
      ->type_name("SIZE");
  command
      .add_option("--oversubscription", arguments.oversubscription,
                  "Ratio of the NICs' total bandwidth to that of the network (default: 1)")
      ->check(CLI::Range(1.0, kOversubscriptionMax));
}

}  // namespace

void add_bench_scale(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "scale",
       .description = "Simulate updates on clusters of up to 100000 GPUs: checkpoint-engine with "
                      "its published figures, wsync, and the limit of the links",
       .examples = {
           "wsync bench scale --svg scale.svg",
           "wsync bench scale --model Kimi-K2 --gpus 16,256,10000 --host h800",
           "wsync bench scale --model GLM-4.5-Air --nvlink 0 --gpus-per-switch 2 --json",
           "wsync bench scale --staging 1GiB --gpus 8 --gpus-per-host 1 --network 125MB"}});
  auto arguments = std::make_shared<ScaleArguments>();
  arguments->gpus = {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10'000};
  command->add_option("--model", arguments->models, "Names of models (default: all)")
      ->delimiter(',')
      ->type_name("NAME");
  command
      ->add_option("--staging", arguments->staging,
                   "Only simulate how a version of this size reaches the hosts, from one host")
      ->type_name("SIZE")
      ->excludes("--model");
  add_cluster(*command, *arguments);
  command->add_option("--buffer", arguments->buffer, "Size of wsync's buffers (default: 512MiB)");
  command->add_option("--peer-buffer", arguments->peer_buffer,
                      "Size of checkpoint-engine's buffers; raised to the size of the largest "
                      "tensor. Published rows have their own size (default: 8GiB)");
  command->add_option("--stages", arguments->stages,
                      "Form of wsync's pipeline: auto, 2 or 3 (default: auto)");
  command->add_option("--svg", arguments->svg, "Draw the curves into this SVG file")
      ->type_name("FILE");
  add_bench_options(*command, run);
  refuse_repeats(*command);
  command->callback([&run, arguments, command] {
    run.add_suite("scale", [&run, arguments, command](const bench::Interrupt& interrupt) {
      heed_quick(run.options, *command, *arguments);
      return bench_scale(*arguments, interrupt);
    });
  });
}

}  // namespace wsync::cli
