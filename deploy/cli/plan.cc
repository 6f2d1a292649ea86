// `wsync plan`: shows what publishing a checkpoint would do and need. Changes nothing.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "deploy/cli/commands.h"
#include "deploy/cli/remote.h"
#include "deploy/cli/report.h"
#include "inference_side/reload/buffer_limits.h"
#include "inference_side/reload/buffer_rule.h"
#include "inference_side/reload/layout_check.h"
#include "inference_side/sidecar/patch_shelf.h"
#include "shared/base/format.h"
#include "shared/base/huge_pages.h"
#include "shared/base/limits.h"
#include "shared/base/memory_limit.h"
#include "shared/base/shared_memory.h"
#include "shared/base/weight_limits.h"
#include "shared/command/command_key.h"
#include "shared/command/outcome.h"
#include "shared/config/defaults.h"
#include "shared/config/limits.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/units.h"
#include "shared/control/zmq/request.h"
#include "shared/transport/limits.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/content_digest.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::milliseconds kPlanDeadline{15'000};
constexpr std::string_view kAuto = "auto";

struct PlanOptions {
  std::string directory;
  std::string bucket = config::format_size(config::kBucketBytesDefault);
  // The running fleet, or the fleet that the other options describe.
  std::string coordinator;
  std::string key;  // file; empty: the coordinator has no keys
  bool ask_fleet = true;
  std::string against;
  std::string buffer = std::string(kAuto);
  std::uint32_t devices = 0;  // 0: unified devices, no copies to devices
  std::string device_kind = "separate";
  std::string gpu_memory;                // free memory per GPU; empty: unknown
  std::optional<std::uint32_t> engines;  // for host devices; none: one engine
  std::uint32_t versions_held = config::kVersionsHeldDefault;
  std::uint32_t arenas = config::kArenasDefault;
  bool copies = false;  // versions are sent over TCP
  std::string huge_pages = "advise";
};

// Peak memory in bytes of one host that runs the trainer, the sidecars and all engines.
struct PeakMemory {
  std::uint64_t staged = 0;   // arenas of the trainer, and those of sidecars that receive copies
  std::uint64_t buffers = 0;  // H2D and IPC buffers of separate devices, not of GPUs
  std::uint64_t engines = 0;  // private copies of the engines
  // At most, beside the sum: patches exist where little changes from one version to the next.
  std::uint64_t patches = 0;
  // In place of `staged` where little changes from one version to the next; 0: not known.
  std::uint64_t staged_in_place = 0;
  [[nodiscard]] std::uint64_t sum() const { return staged + buffers + engines; }
};

Result<Manifest> manifest_of(const std::string& directory) {
  const auto opened = WSYNC_TRY(CheckpointDirectory::open(directory));
  return opened.manifest();
}

// Returns the problems for which an engine that holds all of `engine` would refuse `offered`.
std::vector<control::Problem> compare(const Manifest& offered, const Manifest& engine) {
  std::vector<control::EngineTensor> tensors;
  for (const TensorInfo& tensor : engine.tensors())
    tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .ranges = {}});
  std::vector<control::Problem> problems = reload::check_layout(offered, tensors);
  const std::span<const control::EngineTensor> rank(tensors);
  for (control::Problem& problem : reload::check_replica_coverage(offered, {&rank, 1})) {
    // A tensor with another dtype or shape covers nothing. check_layout() has already reported it.
    const bool named = engine.find(problem.tensor).has_value();
    if (!named) problems.push_back(std::move(problem));
  }
  return problems;
}

Result<> report_memory(const PeakMemory& peak, Outcome& outcome) {
  const auto available = WSYNC_TRY(available_memory());
  outcome.text += fmt::format(
      "  peak memory of a host with all of these: {} (staged {}, device buffers {}, engines {}){}; "
      "{} available now\n",
      human_bytes(peak.sum()), human_bytes(peak.staged), human_bytes(peak.buffers),
      human_bytes(peak.engines),
      peak.patches == 0 ? ""
                        : fmt::format(", and at most {} of patches, where versions differ little",
                                      human_bytes(peak.patches)),
      human_bytes(available.bytes));
  outcome.result["peak_memory"] = {
      {"staged_bytes", peak.staged},  {"buffer_bytes", peak.buffers},
      {"engine_bytes", peak.engines}, {"sum_bytes", peak.sum()},
      {"patch_bytes", peak.patches},  {"available_bytes", available.bytes}};
  if (peak.staged_in_place == 0) return {};
  outcome.text += fmt::format(
      "  staged while versions differ little: {}, because arenas are changed in place; engines "
      "that "
      "serve from an arena (--adopt) keep it\n",
      human_bytes(peak.staged_in_place));
  outcome.result["peak_memory"]["staged_in_place_bytes"] = peak.staged_in_place;
  return {};
}

Result<std::uint64_t> size_option(const std::string& name, const std::string& text) {
  Result<std::uint64_t> size = config::parse_size(text);
  if (!size) return fail(size.error().with_context(name));
  return size;
}

struct Offer {
  const Manifest& manifest;
  const BucketPlan& buckets;
};

// Reports the pages of so many arenas, with memory.huge_pages as described, and what this host
// gives.
void report_pages(const PlanOptions& options, const Offer& offer, std::uint64_t arenas,
                  Outcome& outcome) {
  const std::string setting = shared_huge_pages();
  const auto pool = huge_page_pool();
  const bool is_explicit = options.huge_pages == huge_pages_name(HugePages::kExplicit);
  const std::uint64_t pages = ArenaOptions{.data_bytes = offer.buckets.arena_bytes(),
                                           .leaf_sums = leaf_count(offer.manifest),
                                           .huge_pages = HugePages::kExplicit}
                                  .file_bytes() /
                              kHugePageBytes;
  const std::uint64_t available = pool ? pool->available() : 0;
  nlohmann::json report = {{"huge_pages", options.huge_pages},
                           {"shmem_enabled", setting},
                           {"pool_available", available},
                           {"pool_needed", is_explicit ? pages * arenas : 0}};
  if (is_explicit)
    outcome.text +=
        fmt::format("  huge pages of the pool: {} for {} of {}; {} available on this host{}\n",
                    pages * arenas, counted(arenas, "arena"), counted(pages, "page"), available,
                    available >= pages * arenas ? "" : ", so some arenas are made without them");
  else if (options.huge_pages == huge_pages_name(HugePages::kAdvise) && gives_on_request(setting))
    outcome.text +=
        "  huge pages: arenas of 64MiB and more ask for them, and this host gives them\n";
  else
    outcome.text += fmt::format("  pages of 4 KiB (memory.huge_pages: {}, shmem_enabled: {})\n",
                                options.huge_pages, setting.empty() ? "unknown" : setting);
  outcome.result["pages"] = std::move(report);
}

// Returns the number of rounds of a weight pipeline with this many devices. The arena is divided
// again into buckets that fill the device buffers.
Result<std::uint64_t> rounds_of(const Offer& offer, std::uint32_t devices,
                                std::uint64_t buffer_bytes) {
  const auto cut = WSYNC_TRY(BucketPlan::create(offer.manifest, buffer_bytes));
  return (cut.bucket_count() + devices - 1) / devices;
}

// Returns the GPU memory for streams. Each device has its own GPU, so several devices broadcast
// with NCCL.
std::uint64_t described_streams(const PlanOptions& options) {
  return reload::streams_take(DeviceKind::kCuda, 1, options.devices > 1);
}

// Returns the buffer size of each device of the described fleet.
Result<std::uint64_t> described_buffer(const PlanOptions& options) {
  std::uint64_t wanted = 0;
  if (options.buffer != kAuto) {
    const auto named = WSYNC_TRY(size_option("--buffer", options.buffer));
    wanted = named;
    if (wanted < limits::kBucketBytesMin || wanted > limits::kBucketBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--buffer: expected {} to {}, found {}",
                              config::format_size(limits::kBucketBytesMin),
                              config::format_size(limits::kBucketBytesMax), options.buffer));
  }
  if (options.devices == 0 || options.device_kind != "cuda")
    return wanted == 0 ? limits::kHostBufferBytesDefault : wanted;
  if (options.gpu_memory.empty()) return wanted == 0 ? limits::kGpuBufferBytesDefault : wanted;
  const auto memory = WSYNC_TRY(size_option("--gpu-memory", options.gpu_memory));
  const std::vector<reload::BufferRoom> rooms(
      options.devices, {.name = "a GPU",
                        .devices = 1,
                        .free_bytes = memory,
                        .reserved_bytes = described_streams(options) + reload::kContextBytes});
  return reload::choose_buffer_bytes(DeviceKind::kCuda, rooms, wanted, "--buffer");
}

// Reports how much memory the buffers use on a GPU and how much they leave to engines.
void report_gpu(const control::GpuPlan& gpu, Outcome& outcome) {
  nlohmann::json report = {{"name", gpu.name},
                           {"uuid", gpu.uuid},
                           {"devices", gpu.devices},
                           {"buffer_bytes", gpu.peak_bytes},
                           {"held_bytes", gpu.held_bytes},
                           {"streams_bytes", gpu.streams_bytes},
                           {"streams_measured", gpu.streams_measured},
                           {"context_bytes", gpu.context_bytes}};
  outcome.text += fmt::format(
      "    {}{}{}: buffers use at most {}, streams and communicators {} ({}), the sidecar's "
      "context {} (estimated)",
      gpu.name, gpu.uuid.empty() ? "" : " ", gpu.uuid, human_bytes(gpu.peak_bytes),
      human_bytes(gpu.streams_bytes), gpu.streams_measured ? "measured" : "estimated",
      human_bytes(gpu.context_bytes));
  const std::uint64_t peak = gpu.peak_bytes + gpu.streams_bytes + gpu.context_bytes;
  report["peak_bytes"] = peak;
  if (gpu.total_bytes > 0) {
    const std::uint64_t left = gpu.total_bytes - std::min(gpu.total_bytes, peak);
    report["total_bytes"] = gpu.total_bytes;
    report["free_bytes"] = gpu.free_bytes;
    report["left_bytes"] = left;
    outcome.text += fmt::format(" and leave {} of {} to engines", human_bytes(left),
                                human_bytes(gpu.total_bytes));
    if (!gpu.uuid.empty())
      outcome.text += fmt::format("; {} free now, with {} in buffers", human_bytes(gpu.free_bytes),
                                  human_bytes(gpu.held_bytes));
  }
  outcome.text += "\n";
  outcome.result["gpus"].push_back(std::move(report));
}

Result<> describe_devices(const PlanOptions& options, const Offer& offer, PeakMemory& peak,
                          Outcome& outcome) {
  const auto buffer_bytes = WSYNC_TRY(described_buffer(options));
  if (options.devices == 0) return {};
  const auto rounds = WSYNC_TRY(rounds_of(offer, options.devices, buffer_bytes));
  outcome.result["rounds"] = rounds;
  outcome.text += fmt::format("  {} rounds on {} devices\n", rounds, options.devices);
  if (options.device_kind != "cuda") {
    peak.buffers =
        reload::buffers_take(DeviceKind::kSeparate, options.devices, options.devices, buffer_bytes);
    return {};
  }
  peak.engines = 0;  // engine weights are on the GPUs
  std::uint64_t memory = 0;
  if (!options.gpu_memory.empty()) {
    const auto named = WSYNC_TRY(size_option("--gpu-memory", options.gpu_memory));
    memory = named;
  }
  outcome.text +=
      fmt::format("  buffers of {} on a GPU for each device\n", config::format_size(buffer_bytes));
  report_gpu(
      {.name = "each GPU",
       .uuid = {},
       .devices = 1,
       .total_bytes = memory,
       .free_bytes = memory,
       .peak_bytes = reload::buffers_take(DeviceKind::kCuda, 1, options.devices, buffer_bytes),
       .streams_bytes = described_streams(options),
       .context_bytes = reload::kContextBytes},
      outcome);
  return {};
}

// What the trainer, and each sidecar that copies, keeps of changes for sidecars that are behind.
std::uint64_t links_of_each(const Offer& offer) {
  return limits::stream_links_bytes_max(offer.buckets.arena_bytes());
}

Result<> plan_for_description(const PlanOptions& options, const Offer& offer, Outcome& outcome) {
  // A sidecar receives the next version while it still holds all others.
  const std::uint64_t own_arenas = options.copies ? options.versions_held + 1 : 0;
  PeakMemory peak{.staged = offer.buckets.arena_bytes() * (options.arenas + own_arenas),
                  .engines = offer.manifest.total_bytes() * options.engines.value_or(1)};
  // By default patches are made of the changes by which a version has come, or come with it.
  peak.patches = agent::PatchShelf::bytes_max(offer.buckets.arena_bytes(),
                                              config::PatchConfig().max_share, options.copies);
  if (options.copies) peak.patches += 2 * links_of_each(offer);
  peak.staged_in_place = (options.copies ? 2 : 1) * offer.buckets.arena_bytes();
  WSYNC_TRY(describe_devices(options, offer, peak, outcome));
  WSYNC_TRY(report_memory(peak, outcome));
  report_pages(options, offer, options.arenas + own_arenas, outcome);
  std::vector<control::Problem> problems;
  if (!options.against.empty()) {
    const auto engine = WSYNC_TRY(manifest_of(options.against));
    problems = compare(offer.manifest, engine);
    outcome.text +=
        problems.empty()
            ? fmt::format("  fits an engine that holds {}\n", options.against)
            : fmt::format("  an engine that holds {} would refuse it:\n", options.against);
  }
  outcome.text += problems_text(problems);
  outcome.result["problems"] = problems_json(problems);
  if (!problems.empty()) outcome.exit_code = kExitFailed;
  return {};
}

Result<control::PlanReply> ask_fleet(const PlanOptions& options, const Offer& offer, bool& asked) {
  ByteWriter layout;
  offer.manifest.encode(layout);
  const control::RequestOptions request{.address = options.coordinator,
                                        .deadline = kPlanDeadline,
                                        .key = WSYNC_TRY(command_key(options.key)),
                                        .stop_on_signal = true,
                                        .on_sent = [&asked] { asked = true; }};
  auto decoded =
      WSYNC_TRY(control::request(request, {},
                                 control::Plan{.layout = std::move(layout).take(),
                                               .arena_bytes = offer.buckets.arena_bytes()}));
  if (auto* reply = std::get_if<control::PlanReply>(&decoded.message)) return std::move(*reply);
  return fail(ErrorCode::kInternal,
              fmt::format("{}: expected a PlanReply, received a {}", options.coordinator,
                          control::message_name(control::type_of(decoded.message))));
}

Result<nlohmann::json> report_sidecar(const control::SidecarPlan& sidecar, const Offer& offer,
                                      PeakMemory& peak, Outcome& outcome) {
  nlohmann::json report = {{"name", sidecar.name}, {"failure", sidecar.failure}};
  if (!sidecar.failure.empty()) {
    outcome.text += fmt::format("  sidecar {} {}\n", sidecar.name, sidecar.failure);
    outcome.exit_code = kExitFailed;
    return report;
  }
  report["replicas"] = sidecar.replicas;
  report["devices"] = sidecar.devices;
  report["versions_held"] = sidecar.versions_held;
  report["problems"] = problems_json(sidecar.problems);
  std::string devices = "unified devices";
  if (sidecar.devices > 0) {
    const auto rounds = WSYNC_TRY(rounds_of(offer, sidecar.devices, sidecar.buffer_bytes));
    devices = fmt::format("{} on {}", counted(rounds, "round"), counted(sidecar.devices, "device"));
    report["rounds"] = rounds;
  }
  report["own_arenas"] = sidecar.own_arenas;
  report["engine_bytes"] = sidecar.engine_bytes;
  peak.staged += offer.buckets.arena_bytes() * sidecar.own_arenas;
  report["patch_bytes"] = sidecar.patch_bytes;
  peak.engines += sidecar.engine_bytes;
  peak.patches += sidecar.patch_bytes;
  if (sidecar.gpus.empty())
    peak.buffers += reload::buffers_take(DeviceKind::kSeparate, sidecar.devices, sidecar.devices,
                                         sidecar.buffer_bytes);
  outcome.text +=
      fmt::format("  sidecar {}: {}, {}: {}\n", sidecar.name, counted(sidecar.replicas, "replica"),
                  devices, sidecar.problems.empty() ? "would accept it" : "would refuse it:");
  outcome.text += problems_text(sidecar.problems);
  for (const control::GpuPlan& gpu : sidecar.gpus) report_gpu(gpu, outcome);
  if (!sidecar.gpus.empty()) {
    report["gpus"] = std::exchange(outcome.result["gpus"], nullptr);
    report["buffer_bytes"] = sidecar.buffer_bytes;
    outcome.result.erase("gpus");
  }
  if (!sidecar.problems.empty()) outcome.exit_code = kExitFailed;
  return report;
}

Result<> plan_for_fleet(const PlanOptions& options, const Offer& offer, Outcome& outcome) {
  bool asked = false;
  const Result<control::PlanReply> reply = ask_fleet(options, offer, asked);
  if (!reply && nobody_there(reply.error(), asked)) {
    outcome.text += fmt::format(
        "  no coordinator answers at {}: names are not compared (--against DIR compares with a "
        "checkpoint)\n",
        options.coordinator);
    return plan_for_description(options, offer, outcome);
  }
  if (!reply) return fail(reply.error());
  // A sidecar that is asked for itself does not know the trainer.
  const std::uint32_t arenas = reply->arenas == 0 ? config::kArenasDefault : reply->arenas;
  outcome.result["trainer_arenas"] = arenas;
  PeakMemory peak{.staged = offer.buckets.arena_bytes() * arenas};
  nlohmann::json sidecars = nlohmann::json::array();
  for (const control::SidecarPlan& sidecar : reply->sidecars) {
    auto report = WSYNC_TRY(report_sidecar(sidecar, offer, peak, outcome));
    sidecars.push_back(std::move(report));
  }
  const auto copies = std::ranges::count_if(
      reply->sidecars, [](const control::SidecarPlan& s) { return s.own_arenas > 0; });
  if (copies > 0) peak.patches += (1 + static_cast<std::uint64_t>(copies)) * links_of_each(offer);
  outcome.result["sidecars"] = std::move(sidecars);
  if (reply->sidecars.empty())
    outcome.text += "  no sidecar has connected: there is nothing to compare names with\n";
  return report_memory(peak, outcome);
}

Result<> check_devices(const PlanOptions& options) {
  const bool cuda = options.device_kind == "cuda";
  if (cuda && options.devices == 0)
    return fail(ErrorCode::kInvalidInput,
                "--device-kind cuda: give the number of devices with --devices");
  if (!cuda && !options.gpu_memory.empty())
    return fail(ErrorCode::kInvalidInput, "--gpu-memory needs --device-kind cuda");
  if (cuda && options.engines)
    return fail(ErrorCode::kInvalidInput,
                "--engines cannot be combined with --device-kind cuda: each device has one engine, "
                "whose weights are on its GPU; give the number of devices with --devices");
  return {};
}

Result<Outcome> plan(const PlanOptions& options) {
  WSYNC_TRY(check_devices(options));
  const auto manifest = WSYNC_TRY(manifest_of(options.directory));
  const auto bucket_bytes = WSYNC_TRY(size_option("--bucket", options.bucket));
  if (bucket_bytes % limits::kLeafBytes != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--bucket: expected a multiple of {} bytes, found {}",
                            limits::kLeafBytes, bucket_bytes));
  const auto buckets = WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes));

  Outcome outcome;
  outcome.text = fmt::format(
      "{}: {} in {}, {} with embeddings and head\n  {} of at most {}, {} in an arena\n",
      options.directory, human_bytes(manifest.total_bytes()), counted(manifest.size(), "tensor"),
      counted(manifest.layer_count(), "layer"), counted(buckets.bucket_count(), "bucket"),
      config::format_size(bucket_bytes), human_bytes(buckets.arena_bytes()));
  outcome.result = {{"directory", options.directory},
                    {"bytes", manifest.total_bytes()},
                    {"tensors", manifest.size()},
                    {"layers", manifest.layer_count()},
                    {"buckets", buckets.bucket_count()},
                    {"bucket_bytes", bucket_bytes},
                    {"arena_bytes", buckets.arena_bytes()},
                    {"layout_digest", manifest.layout_digest().to_string()}};
  const Offer offer{.manifest = manifest, .buckets = buckets};
  if (options.ask_fleet)
    WSYNC_TRY(plan_for_fleet(options, offer, outcome));
  else
    WSYNC_TRY(plan_for_description(options, offer, outcome));
  return outcome;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "plan",
       .description = "Show the memory that publishing a checkpoint would need, and the tensors "
                      "that the running engines would refuse. Changes nothing",
       .examples = {"wsync plan step_2", "wsync plan step_2 --against step_1",
                    "wsync plan step_2 --devices 4 --buffer 8MiB --engines 4 --json",
                    "wsync plan step_2 --devices 8 --device-kind cuda --gpu-memory "
                    "80GiB"}});
  auto options = std::make_shared<PlanOptions>();
  command->add_option("DIR", options->directory, "Checkpoint directory to publish")->required();
  command->add_option("--bucket", options->bucket, "Bucket size (default: 64MiB)");
  options->coordinator = default_address();
  add_key_option(*command, options->key);
  CLI::Option* coordinator =
      command
          ->add_option("--coordinator", options->coordinator,
                       "Control address of the coordinator or the sidecar to query")
          ->capture_default_str()
          ->check(check_address);
  // Each of these options describes a fleet instead of querying the running one.
  const std::vector<CLI::Option*> described = {
      command
          ->add_option("--against", options->against,
                       "Query no fleet: compare with the checkpoint that the engines have loaded")
          ->type_name("DIR"),
      command
          ->add_option("--devices", options->devices,
                       "Query no fleet: number of separate devices or GPUs of a sidecar (default: "
                       "0, unified devices)")
          ->check(CLI::Range(std::uint64_t{0}, limits::kDeviceCount)),
      command
          ->add_option("--device-kind", options->device_kind,
                       "Query no fleet: kind of the devices (default: separate)")
          ->check(CLI::IsMember({"separate", "cuda"})),
      command->add_option("--gpu-memory", options->gpu_memory,
                          "Query no fleet: free memory of each GPU, such as 80GiB"),
      command->add_option("--buffer", options->buffer,
                          "Query no fleet: size of a device's buffer (default: auto, as "
                          "devices.buffer_bytes of a sidecar)"),
      command
          ->add_option("--engines", options->engines,
                       "Query no fleet: number of engines with private copies (default: 1)")
          ->check(CLI::Range(std::uint64_t{0}, limits::kReplicaCount)),
      command
          ->add_option("--versions-held", options->versions_held,
                       "Query no fleet: number of versions that the sidecar keeps (default: 2)")
          ->check(CLI::Range(config::kVersionsHeldMin, config::kVersionsHeldMax)),
      command
          ->add_option("--arenas", options->arenas,
                       "Query no fleet: number of arenas of the trainer (default: 3)")
          ->check(CLI::Range(config::kArenasMin, config::kArenasMax)),
      command->add_flag(
          "--copies", options->copies,
          "Query no fleet: versions are sent over TCP, so that the sidecar has arenas "
          "of its own"),
      command
          ->add_option(
              "--huge-pages", options->huge_pages,
              "Query no fleet: memory.huge_pages of trainer and sidecars (default: advise)")
          ->check(CLI::IsMember({"off", "advise", "explicit"}))};
  for (CLI::Option* option : described) option->excludes(coordinator);
  command->callback([&context, options, described] {
    options->ask_fleet =
        std::ranges::none_of(described, [](const CLI::Option* option) { return !option->empty(); });
    context.run("plan", [&] { return plan(*options); });
  });
}

}  // namespace wsync::cli
