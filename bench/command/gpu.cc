// `wsync bench gpu` compares GPUs with their hardware limits.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/gpu/gpu_bench.h"
#include "bench/gpu/reader.h"
#include "bench/gpu/report.h"
#include "bench/harness/directory.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/command/outcome.h"
#include "shared/command/programs.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"
#include "shared/weights/example/example_checkpoint.h"

namespace wsync::cli {
namespace {

constexpr unsigned kGpuRoundsMax = 10'000;
constexpr unsigned kLogicalDevicesMax = 8;
constexpr std::uint64_t kCopyBytesMin = 2 * limits::kMiB;

struct GpuArguments {
  bench::GpuBenchOptions options;
  std::string size = "8GiB";
  std::string buffer = "512MiB";
  std::string pause = "1GiB";
  std::uint64_t pause_bytes = 0;
  std::string directory;
  std::string collective;
};

Result<> read_sizes(GpuArguments& arguments) {
  const auto size = config::parse_size(arguments.size);
  if (!size) return fail(size.error().with_context("--size"));
  const auto buffer = config::parse_size(arguments.buffer);
  if (!buffer) return fail(buffer.error().with_context("--buffer"));
  if (*buffer < kCopyBytesMin || *buffer > limits::kBucketBytesMax || *buffer % kCopyBytesMin != 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--buffer is {} bytes, expected a multiple of 2MiB of at most 8GiB", *buffer));
  if (*size < *buffer || *size > limits::kBucketBytesMax)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--size is {} bytes, expected --buffer ({} bytes) to 8GiB", *size, *buffer));
  const auto pause = config::parse_size(arguments.pause);
  if (!pause) return fail(pause.error().with_context("--pause"));
  arguments.pause_bytes = *pause;
  if (!arguments.directory.empty() && !std::filesystem::is_directory(arguments.directory))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--directory: {} is not a directory", arguments.directory));
  if (!arguments.collective.empty())
    arguments.options.collective = arguments.collective == "nccl" ? collective::GroupKind::kNccl
                                                                  : collective::GroupKind::kLocal;
  arguments.options.bytes = *size;
  arguments.options.buffer_bytes = *buffer;
  return {};
}

// Makes two models of equal layouts, which are published in turn.
Result<> make_checkpoints(const GpuArguments& arguments, bench::GpuBenchOptions& options,
                          trace::ProgressLine& line) {
  for (std::uint64_t seed = 1; arguments.pause_bytes > 0 && seed <= 2; ++seed) {
    line.update("generating checkpoints", 0, 0, now());
    const DemoCheckpoint checkpoint{.directory = fmt::format("{}/model{}", options.directory, seed),
                                    .bytes = arguments.pause_bytes,
                                    .seed = seed};
    (void)WSYNC_TRY(make_demo_checkpoint(checkpoint));
    options.checkpoints.push_back(checkpoint.directory);
  }
  return {};
}

Result<SuiteOutcome> bench_gpu(GpuArguments arguments, const bench::Interrupt& interrupt) {
  WSYNC_TRY(read_sizes(arguments));
  if (const std::string missing = bench::missing_gpu(); !missing.empty()) {
    const std::string sentence = "wsync bench gpu needs a GPU: " + missing;
    return SuiteOutcome{.outcome = {.result = {{"missing", missing}},
                                    .text = {},
                                    .complaint = sentence,
                                    .exit_code = kExitUnreachable},
                        .suite = {.suite = "gpu", .cases = {}, .notes = {"no GPU: " + missing}}};
  }
  auto executable = WSYNC_TRY(find_wsync_program("wsync"));
  arguments.options.executable = std::move(executable);
  const auto directory = WSYNC_TRY(bench::TemporaryDirectory::create(arguments.directory));
  arguments.options.directory = directory.path();
  trace::ProgressLine line;
  WSYNC_TRY(make_checkpoints(arguments, arguments.options, line));
  const auto result =
      WSYNC_TRY(bench::run_gpu_bench(arguments.options, interrupt, show_turns(line)));
  return suite_outcome(result);
}

// Applies the common options of the command line to this suite.
void heed_gpu_common(const BenchOptions& common, const CLI::App& command, GpuArguments& arguments) {
  arguments.options.rounds =
      rounds_of(common, command, "--rounds", arguments.options.rounds, kQuickRounds);
  if (!common.quick) return;
  const auto set = [&command](const char* option, auto& value, auto quick) {
    if (command.count(option) == 0) value = quick;
  };
  set("--size", arguments.size, "512MiB");
  set("--buffer", arguments.buffer, "64MiB");
  set("--pause", arguments.pause, "64MiB");
  set("--updates", arguments.options.updates, 2U);
}

// The reader process of `bench gpu`. It is hidden because it has no other use.
void add_gpu_reader(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "gpu-reader",
       .description =
           "Reads the GPU buffers of another process, as commands on standard input request",
       .examples = {"wsync bench gpu-reader --gpu 0 --bytes 536870912"}});
  command->group("");
  auto options = std::make_shared<bench::ReaderOptions>();
  command->add_option("--gpu", options->gpu, "Number of the GPU, in the driver's order");
  command->add_option("--device-index", options->device_index, "Index of the device in its group");
  command->add_option("--bytes", options->bytes, "Bytes of this process's own GPU memory")
      ->required();
  command->add_option("--socket", options->socket,
                      "Unix socket through which the descriptors of the memory come");
  command->callback([&context, options] {
    context.run("bench gpu-reader", [&]() -> Result<Outcome> {
      WSYNC_TRY(bench::run_reader(*options));
      return Outcome{};
    });
  });
}

}  // namespace

void add_bench_gpu(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command =
      add_command(parent, context,
                  {.name = "gpu",
                   .description = "Measure copies, digests and whole updates of GPUs, compared "
                                  "with plain calls of the driver on the same machine",
                   .examples = {"wsync bench gpu", "wsync bench gpu --gpus 0 --devices 1,2 --json",
                                "wsync bench gpu --size 2GiB --buffer 128MiB"}});
  auto arguments = std::make_shared<GpuArguments>();
  bench::GpuBenchOptions& options = arguments->options;
  command
      ->add_option("--gpus", options.gpus,
                   "Numbers of the GPUs, in the driver's order (default: all)")
      ->delimiter(',');
  command
      ->add_option("--devices", options.devices,
                   "Numbers of logical devices on the first GPU, one case for each (default: "
                   "1,2,4)")
      ->delimiter(',')
      ->check(CLI::Range(1U, kLogicalDevicesMax));
  command
      ->add_option("--collective", arguments->collective,
                   "What broadcasts in groups of several devices: nccl or local (default: NCCL for "
                   "different GPUs, plain copies otherwise)")
      ->check(CLI::IsMember({"nccl", "local"}));
  command->add_option("--size", arguments->size,
                      "Bytes of the model; reduced if there is not enough memory (default: 8GiB)");
  command->add_option("--buffer", arguments->buffer,
                      "Bytes of one copy, and maximum size of a buffer (default: 512MiB)");
  command->add_option("--pause", arguments->pause,
                      "Bytes of the models that are published to measure the pause; 0: the pause "
                      "is not measured (default: 1GiB)");
  command
      ->add_option(
          "--rounds", options.rounds,
          "Rounds; each measures a driver call and the same operation of wsync (default: 15)")
      ->check(CLI::Range(1U, kGpuRoundsMax));
  command
      ->add_option("--updates", options.updates,
                   "Rounds of whole updates, of their stages and of the pause (default: 5)")
      ->check(CLI::Range(1U, kGpuRoundsMax));
  command
      ->add_option("--directory", arguments->directory,
                   "Directory for checkpoints, sockets and logs; they are removed afterwards "
                   "(default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  add_bench_options(*command, run);
  command->callback([&run, arguments, command] {
    run.add_suite("gpu", [&run, arguments, command](const bench::Interrupt& interrupt) {
      heed_gpu_common(run.options, *command, *arguments);
      return bench_gpu(*arguments, interrupt);
    });
  });
  add_gpu_reader(parent, context);
}

}  // namespace wsync::cli
