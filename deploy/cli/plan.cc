// `wsync plan`: what a publish of a checkpoint would do and need. Changes nothing.
#include "deploy/cli/commands.h"
#include "inference_side/reload/layout_check.h"
#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/config/config.h"
#include "shared/config/units.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::cli {
namespace {

struct PlanOptions {
  std::string directory;
  std::string against;
  std::string bucket = config::format_size(limits::kBucketBytesDefault);
  std::string buffer = config::format_size(config::DevicesConfig{}.buffer_bytes);
  std::uint32_t devices = 0;  // 0: unified, nothing is copied to devices
  std::uint32_t engines = 1;
  std::uint32_t versions_held = limits::kVersionsHeldDefault;
};

// Bytes that one host needs at the highest, trainer, sidecar and engines all on it.
struct PeakMemory {
  std::uint64_t staged = 0;   // pages of the versions held, shared by trainer and sidecar
  std::uint64_t buffers = 0;  // H2D and IPC buffers of separate devices
  std::uint64_t engines = 0;  // private copies
  [[nodiscard]] std::uint64_t sum() const { return staged + buffers + engines; }
};

Result<Manifest> manifest_of(const std::string& directory) {
  const Result<CheckpointDirectory> opened = CheckpointDirectory::open(directory);
  if (!opened) return fail(opened.error());
  return opened->manifest();
}

std::string_view problem_name(control::ProblemKind kind) {
  switch (kind) {
    case control::ProblemKind::kMissing:
      return "missing";
    case control::ProblemKind::kExtra:
      return "extra";
    case control::ProblemKind::kDtype:
      return "dtype";
    case control::ProblemKind::kShape:
      return "shape";
    case control::ProblemKind::kRange:
      return "range";
    case control::ProblemKind::kMemory:
      return "memory";
    case control::ProblemKind::kOther:
      return "other";
  }
  return "other";
}

// What an engine that holds `engine` whole would refuse of `offered`.
std::vector<control::Problem> compare(const Manifest& offered, const Manifest& engine) {
  std::vector<control::EngineTensor> tensors;
  for (const TensorInfo& tensor : engine.tensors())
    tensors.push_back({.name = tensor.name,
                       .dtype = static_cast<std::uint8_t>(tensor.dtype),
                       .shape = tensor.shape,
                       .ranges = {}});
  std::vector<control::Problem> problems = reload::check_layout(offered, tensors);
  const std::span<const control::EngineTensor> rank(tensors);
  for (control::Problem& problem : reload::check_replica_coverage(offered, {&rank, 1})) {
    // A tensor of another dtype or shape covers nothing; it is named once.
    const bool named = engine.find(problem.tensor).has_value();
    if (!named) problems.push_back(std::move(problem));
  }
  return problems;
}

void report_problems(const std::vector<control::Problem>& problems, Outcome& outcome) {
  nlohmann::json list = nlohmann::json::array();
  for (const control::Problem& problem : problems) {
    list.push_back({{"kind", problem_name(problem.kind)},
                    {"tensor", problem.tensor},
                    {"detail", problem.detail},
                    {"nearest", problem.nearest}});
    outcome.text += fmt::format(
        "  {:<8} {}: {}{}\n", problem_name(problem.kind), problem.tensor, problem.detail,
        problem.nearest.empty() ? "" : fmt::format(" (nearest: {})", problem.nearest));
  }
  outcome.result["problems"] = std::move(list);
  if (!problems.empty()) outcome.exit_code = kExitFailed;
}

Result<> report_memory(const PeakMemory& peak, Outcome& outcome) {
  const Result<AvailableMemory> available = available_memory();
  if (!available) return fail(available.error());
  outcome.text += fmt::format(
      "  peak memory of a host with all of it: {} (staged {}, device buffers {}, engines {}); {} "
      "available now\n",
      human_bytes(peak.sum()), human_bytes(peak.staged), human_bytes(peak.buffers),
      human_bytes(peak.engines), human_bytes(available->bytes));
  outcome.result["peak_memory"] = {{"staged_bytes", peak.staged},
                                   {"buffer_bytes", peak.buffers},
                                   {"engine_bytes", peak.engines},
                                   {"sum_bytes", peak.sum()},
                                   {"available_bytes", available->bytes}};
  return {};
}

Result<std::uint64_t> size_option(const std::string& name, const std::string& text) {
  Result<std::uint64_t> size = config::parse_size(text);
  if (!size) return fail(size.error().with_context(name));
  return size;
}

Result<Outcome> plan(const PlanOptions& options) {
  const Result<Manifest> manifest = manifest_of(options.directory);
  if (!manifest) return fail(manifest.error());
  const Result<std::uint64_t> bucket_bytes = size_option("--bucket", options.bucket);
  if (!bucket_bytes) return fail(bucket_bytes.error());
  const Result<std::uint64_t> buffer_bytes = size_option("--buffer", options.buffer);
  if (!buffer_bytes) return fail(buffer_bytes.error());
  // A bucket has to fit into a device's buffer.
  const std::uint64_t cut =
      options.devices == 0 ? *bucket_bytes : std::min(*bucket_bytes, *buffer_bytes);
  const Result<BucketPlan> buckets = BucketPlan::create(*manifest, cut);
  if (!buckets) return fail(buckets.error());

  Outcome outcome;
  outcome.text =
      fmt::format("{}: {} in {} tensors, {} layers\n  {} buckets of at most {}, {} in an arena\n",
                  options.directory, human_bytes(manifest->total_bytes()), manifest->size(),
                  manifest->layer_count(), buckets->bucket_count(), config::format_size(cut),
                  human_bytes(buckets->arena_bytes()));
  outcome.result = {{"directory", options.directory},
                    {"bytes", manifest->total_bytes()},
                    {"tensors", manifest->size()},
                    {"layers", manifest->layer_count()},
                    {"buckets", buckets->bucket_count()},
                    {"bucket_bytes", cut},
                    {"arena_bytes", buckets->arena_bytes()},
                    {"layout_digest", manifest->layout_digest().to_string()}};
  PeakMemory peak{.staged = buckets->arena_bytes() * options.versions_held,
                  .buffers = 0,
                  .engines = manifest->total_bytes() * options.engines};
  if (options.devices > 0) {
    const std::uint64_t rounds = (buckets->bucket_count() + options.devices - 1) / options.devices;
    outcome.text += fmt::format("  {} rounds on {} devices\n", rounds, options.devices);
    outcome.result["rounds"] = rounds;
    peak.buffers = 3 * *buffer_bytes * options.devices;
  }
  WSYNC_TRY(report_memory(peak, outcome));
  std::vector<control::Problem> problems;
  if (!options.against.empty()) {
    const Result<Manifest> engine = manifest_of(options.against);
    if (!engine) return fail(engine.error());
    problems = compare(*manifest, *engine);
    outcome.text +=
        problems.empty()
            ? fmt::format("  fits an engine that holds {}\n", options.against)
            : fmt::format("  an engine that holds {} would refuse it:\n", options.against);
  }
  report_problems(problems, outcome);
  return outcome;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, context,
                  {.name = "plan",
                   .description = "Show what publishing a checkpoint would need; changes nothing",
                   .examples = {"wsync plan step_2 --against step_1",
                                "wsync plan step_2 --devices 4 --buffer 8MiB --engines 4 --json"}});
  auto options = std::make_shared<PlanOptions>();
  command->add_option("DIR", options->directory, "Checkpoint directory to publish")->required();
  command
      ->add_option("--against", options->against,
                   "Checkpoint that the engines hold: names, dtypes and shapes are compared")
      ->type_name("DIR");
  command->add_option("--bucket", options->bucket, "Bucket size (default: 64MiB)");
  command
      ->add_option("--devices", options->devices,
                   "Separate devices of a sidecar (default: 0, unified devices)")
      ->check(CLI::Range(std::uint64_t{0}, limits::kDeviceCount));
  command->add_option("--buffer", options->buffer, "Buffer of a separate device (default: 4MiB)");
  command->add_option("--engines", options->engines, "Engines with private copies (default: 1)")
      ->check(CLI::Range(std::uint64_t{0}, limits::kReplicaCount));
  command->add_option("--versions-held", options->versions_held, "Versions held (default: 2)")
      ->check(CLI::Range(limits::kVersionsHeldMin, limits::kConfigVersionsHeld));
  command->callback([&context, options] { context.run("plan", [&] { return plan(*options); }); });
}

}  // namespace wsync::cli
