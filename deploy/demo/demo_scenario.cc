// Main scenario of `wsync demo`: publish three versions, kill an engine in the middle of the last
// switch, repair it, refuse an invalid checkpoint, and roll back. Every engine is verified after
// each of these steps.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unistd.h>

#include "deploy/demo/copy_floor.h"
#include "deploy/demo/demo.h"
#include "deploy/demo/killed_engine.h"
#include "deploy/demo/update_picture.h"
#include "deploy/demo/versions.h"
#include "shared/base/memory_limit.h"
#include "shared/base/units.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/recorder.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/example/derived_checkpoint.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kFloorDeadline{900'000};
constexpr unsigned kFloorRounds = 3;            // before the updates, and again after them
constexpr std::uint64_t kVersionsInMemory = 3;  // serving, previous and incoming; shared by all
constexpr std::uint64_t kSmallModelBytes = 96 * limits::kMiB;
constexpr std::size_t kPictured = 1;  // second update: engines were serving when it began

std::string duration(std::uint64_t ns) {
  return trace::format_duration(std::chrono::nanoseconds(ns));
}

// A version that the engines loaded.
struct Update {
  Version version;
  TimePoint begin{};
  TimePoint end{};
  std::uint64_t loaded_bytes = 0;  // sum over all engines
  std::uint64_t paused_ns = 0;     // longest pause of a replica
  json report;
  // Bytes loaded per second of the longest pause, over all engines.
  [[nodiscard]] double bytes_per_s() const {
    return paused_ns == 0
               ? 0
               : static_cast<double>(loaded_bytes) / (static_cast<double>(paused_ns) * 1e-9);
  }
};

class DemoScenario {
 public:
  explicit DemoScenario(const DemoContext& context)
      : context_(context),
        options_(context.options),
        versions_(context.children,
                  {.checkpoint = options_.checkpoint,
                   .size = options_.size,
                   .work_dir = options_.work_dir},
                  context.on_line) {}
  Result<Outcome> run();

 private:
  [[nodiscard]] Result<> measure_floor();
  [[nodiscard]] Result<> read_model();
  [[nodiscard]] Result<> start_fleet();
  [[nodiscard]] Result<> publish(unsigned number);
  [[nodiscard]] Result<> publish_and_kill(unsigned number);
  [[nodiscard]] Result<> kill_engine(fleet::Fleet::Question& push);
  [[nodiscard]] Result<> check_survivors(const Version& version);
  [[nodiscard]] Result<> repair(const Version& version);
  [[nodiscard]] Result<> refuse();
  [[nodiscard]] Result<> roll_back();
  [[nodiscard]] Result<> verify(Update& update, std::size_t engines);
  void add_update(const control::PushReply& reply, TimePoint begin, const std::string& to);
  [[nodiscard]] Result<> stop_fleet();
  [[nodiscard]] Result<> write_files();
  void finish_report();
  [[nodiscard]] std::string text() const;
  void record(std::string name, TimePoint begin);

  const DemoContext& context_;
  const DemoOptions& options_;
  VersionMaker versions_;
  const TimePoint begin_ = now();
  json report_;  // output of --json
  std::uint64_t model_bytes_ = 0;
  std::uint64_t buffer_bytes_ = 0;
  std::vector<Update> updates_;
  std::vector<fleet::EngineResult> engines_;
  StepCounts counts_;
  CopyFloor floor_;
  std::string first_directory_;  // checkpoint from which engines read names and shapes
  std::unique_ptr<fleet::Fleet> fleet_;
  trace::Recorder recorder_;
  // Declared after fleet_ and so destroyed before it: its destructor uses a process of the fleet.
  std::optional<KilledEngine> killed_engine_;
};

Result<Outcome> DemoScenario::run() {
  first_directory_ = WSYNC_TRY(versions_.make(1));
  WSYNC_TRY(read_model());
  WSYNC_TRY(require_memory((options_.engines + kVersionsInMemory) * model_bytes_,
                           "the engines and the staged versions of the demo"));
  WSYNC_TRY(measure_floor());
  WSYNC_TRY(start_fleet());
  WSYNC_TRY(publish(1));
  WSYNC_TRY(publish(2));
  WSYNC_TRY(publish_and_kill(3));
  WSYNC_TRY(refuse());
  WSYNC_TRY(roll_back());
  WSYNC_TRY(stop_fleet());
  WSYNC_TRY(measure_floor());
  WSYNC_TRY(write_files());
  finish_report();
  return Outcome{.result = report_,
                 .text = text(),
                 .complaint = {},
                 .exit_code = counts_.torn == 0 ? kExitOk : kExitFailed};
}

void DemoScenario::record(std::string name, TimePoint begin) {
  recorder_.record({.name = std::move(name),
                    .lane = "story",
                    .category = trace::Category::kOther,
                    .begin = begin,
                    .end = now(),
                    .label = {},
                    .args = {}});
}

// ---- before the updates ----

Result<> DemoScenario::read_model() {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(first_directory_));
  const Manifest& manifest = checkpoint.manifest();
  for (const TensorInfo& tensor : manifest.tensors()) model_bytes_ += WSYNC_TRY(tensor.byte_size());
  // Buckets must be large enough to be efficient for caches, and so numerous that the kill can
  // happen between the first and the last.
  buffer_bytes_ = model_bytes_ < kSmallModelBytes ? limits::kMiB : 4 * limits::kMiB;
  report_["bytes"] = model_bytes_;
  report_["tensors"] = manifest.size();
  context_.say("model: {} in {}, {} with embeddings and head", human_bytes(model_bytes_),
               counted(manifest.size(), "tensor"), counted(manifest.layer_count(), "layer"));
  return {};
}

Result<> DemoScenario::measure_floor() {
  const TimePoint begin = now();
  FloorRounds measured;
  WSYNC_TRY(context_.children.in_thread(
      "the measurement of the floor", kFloorDeadline,
      [&](const std::atomic<bool>& cancelled) -> Result<> {
        measured =
            WSYNC_TRY(measure_copy_floor(model_bytes_, options_.engines, kFloorRounds, cancelled));
        return {};
      }));
  record("copy floor", begin);
  floor_.add(measured);
  context_.say("copy floor: {:.1f} GB/s into {} private memories at once (median of {} rounds)",
               floor_.bytes_per_s() * 1e-9, options_.engines, floor_.rounds());
  return {};
}

Result<> DemoScenario::start_fleet() {
  const TimePoint begin = now();
  fleet::FleetOptions wanted = demo_fleet(options_, {.sidecars = kDemoSidecars,
                                                     .devices = options_.devices,
                                                     .buffer_bytes = buffer_bytes_,
                                                     .model = {"--checkpoint", first_directory_}});
  wanted.trainer = {fmt::format("min_sidecars={}", kDemoSidecars),
                    fmt::format("min_replicas={}", options_.engines), "arenas=4",
                    fmt::format("trace_file={}/trainer", options_.trace_dir)};
  wanted.engines.back().output = ChildOutput::kLines;  // the engine that will be killed
  fleet_ = std::make_unique<fleet::Fleet>(context_.children, std::move(wanted));
  WSYNC_TRY(fleet_->start());
  record("start", begin);
  killed_engine_.emplace(context_.children, fleet_->engine(options_.engines - 1));
  context_.say("running: a trainer agent, {} sidecars with {} each (buffers of {}), {}",
               kDemoSidecars, counted(options_.devices, "separate device"),
               human_bytes(buffer_bytes_), counted(options_.engines, "engine"));
  return {};
}

// ---- updates ----

Result<> DemoScenario::verify(Update& update, std::size_t engines) {
  const TimePoint begin = now();
  const auto ranks = fleet_->verify(update.version, engines);
  if (!ranks) return fail(ranks.error().with_context("verify"));
  update.report["verified_bytes"] = bytes_of(*ranks);
  record("verify " + update.version.to_string(), begin);
  context_.say("  verified: {} engines hold {}, every tensor equal ({} read back)", engines,
               update.version.to_string(), human_bytes(bytes_of(*ranks)));
  return {};
}

void DemoScenario::add_update(const control::PushReply& reply, TimePoint begin,
                              const std::string& to) {
  Update update{.version = reply.version, .begin = begin, .end = now(), .report = {}};
  for (const control::ReplicaOutcome& outcome : reply.outcomes) {
    if (outcome.outcome != control::SwitchOutcome::kCommitted) continue;
    update.loaded_bytes += outcome.bytes;
    update.paused_ns = std::max(update.paused_ns, outcome.paused_ns);
  }
  update.report = {{"version", reply.version.to_string()},
                   {"bytes", model_bytes_},  // the reply also counts alignment padding
                   {"loaded_bytes", update.loaded_bytes},
                   {"snapshot_ns", reply.snapshot_ns},
                   {"staged_ns", reply.staged_ns},
                   {"paused_ns", update.paused_ns},
                   {"bytes_per_s", update.bytes_per_s()},
                   {"content_digest", reply.content_digest.to_string()}};
  context_.say("published {}{}: staged in {}, engines paused {} at most; content digest {}",
               reply.version.to_string(), to, duration(reply.staged_ns), duration(update.paused_ns),
               reply.content_digest.to_string());
  updates_.push_back(std::move(update));
}

Result<> DemoScenario::publish(unsigned number) {
  const auto directory =
      WSYNC_TRY(number == 1 ? Result<std::string>(first_directory_) : versions_.make(number));
  const TimePoint begin = now();
  const auto reply =
      fleet_->ask<control::PushReply>(control::Push{.directory = directory, .step = number});
  if (!reply) return fail(reply.error().with_context("publish"));
  if (!reply->ok) return fail(ErrorCode::kInternal, "a publish failed: " + reply->reason);
  record("publish " + reply->version.to_string(), begin);
  add_update(*reply, begin, "");
  WSYNC_TRY(fleet_->until_ready(reply->version));
  WSYNC_TRY(verify(updates_.back(), options_.engines));
  versions_.done_with(directory);
  return {};
}

Result<> DemoScenario::refuse() {
  const std::string directory = options_.work_dir + "/wrong_shape";
  const auto wrong = WSYNC_TRY(write_wrong_shape(first_directory_, directory));
  const TimePoint begin = now();
  const auto reply = fleet_->ask<control::PushReply>(control::Push{.directory = directory});
  if (!reply) return fail(reply.error().with_context("publish of the wrong shape"));
  const bool is_named = std::any_of(reply->problems.begin(), reply->problems.end(),
                                    [&](const auto& p) { return p.tensor == wrong.tensor; });
  if (reply->ok || !is_named)
    return fail(ErrorCode::kInternal,
                fmt::format("a checkpoint with {} of shape {} instead of {} was not refused for "
                            "it: {}",
                            wrong.tensor, wrong.found, wrong.expected, reply->reason));
  record("refusal", begin);
  report_["refusal"] = {{"tensor", wrong.tensor}, {"reason", reply->reason}};
  context_.say("refused before anything moved: {}", reply->reason);
  WSYNC_TRY(verify(updates_.back(), options_.engines));
  versions_.done_with(directory);
  return {};
}

// ---- the kill ----

Result<> DemoScenario::kill_engine(fleet::Fleet::Question& push) {
  const auto killed = WSYNC_TRY(killed_engine_->kill([&push] { return push.answered(); }));
  const std::string& replica = fleet_->options().engines.back().replica;
  const pid_t pid = fleet_->engine(options_.engines - 1).pid();
  report_["kill"] = {{"replica", replica},
                     {"version", killed.version},
                     {"pid", pid},
                     {"buckets_taken", killed.taken},
                     {"buckets_acknowledged_at_least", killed.taken - 1},
                     {"buckets", killed.buckets}};
  context_.say(
      "killed engine {} (pid {}) with SIGKILL inside its switch to {}: it had taken {} of {} "
      "buckets and acknowledged at least {}, the first among them; the last one never came",
      replica, pid, killed.version, killed.taken, killed.buckets, killed.taken - 1);
  return {};
}

Result<> DemoScenario::check_survivors(const Version& version) {
  const std::string& killed = fleet_->options().engines.back().replica;
  WSYNC_TRY(fleet_->until_ready(version, killed));
  const auto lost = WSYNC_TRY(fleet_->until_replica(
      killed, "the loss of " + killed,
      [](const control::ReplicaReport& report) { return report.ranks_attached == 0; }));
  if (lost.ready)
    return fail(ErrorCode::kInternal, "replica " + killed + " is killed and reported as ready");
  const std::string state = lost.state == control::ReplicaState::kTainted ? "tainted" : "absent";
  report_["kill"]["state"] = state;
  report_["kill"]["reason"] = lost.reason;
  context_.say("  the other {} replicas serve {}; {} is {}, not ready: {}", options_.engines - 1,
               version.to_string(), killed, state, lost.reason);
  return {};
}

Result<> DemoScenario::publish_and_kill(unsigned number) {
  const auto directory = WSYNC_TRY(versions_.make(number));
  const std::string& killed = fleet_->options().engines.back().replica;
  const TimePoint begin = now();
  killed_engine_->arm();
  const auto push = fleet_->begin(control::Push{.directory = directory, .step = number});
  if (const Result<> done = kill_engine(*push); !done) {
    if (!push->answered()) return done;
    const auto reply = fleet_->answer<control::PushReply>(*push);
    return fail(done.error().with_context(reply ? reply->reason : reply.error().message()));
  }
  const auto version = WSYNC_TRY(Version::parse(report_["kill"]["version"].get<std::string>()));
  WSYNC_TRY(check_survivors(version));
  const auto reply = fleet_->answer<control::PushReply>(*push);
  if (!reply) return fail(reply.error().with_context("publish"));
  for (const control::ReplicaOutcome& outcome : reply->outcomes)
    if (outcome.replica != killed && outcome.outcome != control::SwitchOutcome::kCommitted)
      return fail(ErrorCode::kInternal, fmt::format("replica {} was not killed and failed: {}",
                                                    outcome.replica, outcome.reason));
  record("publish " + version.to_string() + ", one engine killed", begin);
  add_update(*reply, begin, " to the others");
  WSYNC_TRY(verify(updates_.back(), options_.engines - 1));
  WSYNC_TRY(repair(version));
  versions_.done_with(directory);
  return {};
}

Result<> DemoScenario::repair(const Version& version) {
  const std::string& killed = fleet_->options().engines.back().replica;
  const TimePoint begin = now();
  WSYNC_TRY(fleet_->restart_engine(options_.engines - 1));
  WSYNC_TRY(fleet_->until_ready(version));
  const auto repaired_ns = static_cast<std::uint64_t>((now() - begin).count());
  report_["kill"]["repaired_ns"] = repaired_ns;
  record("repair of " + killed, begin);
  context_.say("started {} again: brought to {} from the staged copy, ready after {}", killed,
               version.to_string(), duration(repaired_ns));
  return verify(updates_.back(), options_.engines);
}

// ---- shutdown and report ----

Result<> DemoScenario::roll_back() {
  const TimePoint begin = now();
  const auto reply = fleet_->ask<control::RollbackReply>(control::Rollback{});
  if (!reply) return fail(reply.error().with_context("rollback"));
  Update& previous = updates_[updates_.size() - 2];
  if (!reply->ok || reply->to != previous.version)
    return fail(ErrorCode::kInternal,
                fmt::format("the rollback to {} went otherwise: to {}; {}",
                            previous.version.to_string(), reply->to.to_string(), reply->reason));
  std::uint64_t paused_ns = 0;
  for (const control::ReplicaOutcome& outcome : reply->outcomes)
    paused_ns = std::max(paused_ns, outcome.paused_ns);
  report_["rollback"] = {
      {"from", reply->from.to_string()}, {"to", reply->to.to_string()}, {"paused_ns", paused_ns}};
  record("rollback to " + reply->to.to_string(), begin);
  context_.say("rolled back from {} to {}: engines paused {} at most; {} is withdrawn",
               reply->from.to_string(), reply->to.to_string(), duration(paused_ns),
               reply->from.to_string());
  WSYNC_TRY(fleet_->until_ready(reply->to));
  return verify(previous, options_.engines);
}

Result<> DemoScenario::stop_fleet() {
  engines_ = WSYNC_TRY(fleet_->stop());
  counts_ = steps_of(engines_);
  counts_.torn += killed_engine_->torn();
  context_.say("stopped: the engines served {} steps, {} of them torn", counts_.steps,
               counts_.torn);
  return {};
}

Result<> DemoScenario::write_files() {
  const auto output = WSYNC_TRY(context_.output());
  auto processes =
      WSYNC_TRY(read_traces(options_.trace_dir, {"trainer", demo_sidecar(0), demo_sidecar(1)}));
  const trace::ProcessTrace& sidecar = processes.back();
  const Update& pictured = updates_[kPictured];
  report_["picture"] = output + "/timeline.svg";
  report_["trace"] = output + "/trace.json";
  WSYNC_TRY(write_update_picture(output + "/timeline.svg", sidecar,
                                 {.version = pictured.version,
                                  .model_bytes = model_bytes_,
                                  .buffer_bytes = buffer_bytes_,
                                  .engines = options_.engines / kDemoSidecars,
                                  .devices = options_.devices,
                                  .sidecars = kDemoSidecars,
                                  .begin = pictured.begin,
                                  .end = pictured.end}));
  processes.insert(processes.begin(), {.name = "wsync demo",
                                       .pid = static_cast<std::uint32_t>(::getpid()),
                                       .spans = recorder_.spans()});
  return write_traces(output + "/trace.json", std::move(processes));
}

void DemoScenario::finish_report() {
  for (Update& update : updates_) {
    update.report["floor_share"] =
        floor_.bytes_per_s() == 0 ? 0 : update.bytes_per_s() / floor_.bytes_per_s();
    report_["versions"].push_back(update.report);
  }
  report_["sidecars"] = kDemoSidecars;
  report_["devices"] = options_.devices;
  report_["buffer_bytes"] = buffer_bytes_;
  report_["same_bytes"] = versions_.same_bytes();
  report_["engines"] = engines_json(engines_);
  report_["torn"] = counts_.torn;
  report_["floor"] = {
      {"bytes_per_s", floor_.bytes_per_s()},     {"slowest_bytes_per_s", floor_.slowest()},
      {"fastest_bytes_per_s", floor_.fastest()}, {"copiers", floor_.copiers()},
      {"copied_bytes", floor_.copied_bytes()},   {"rounds", floor_.rounds()}};
  report_["elapsed_ms"] = static_cast<std::uint64_t>(seconds(now() - begin_) * 1000);
}

std::string DemoScenario::text() const {
  std::string text = fmt::format("\n{:<9}{:>12}{:>10}{:>11}{:>8}{:>8}  {}\n", "version", "bytes",
                                 "staged s", "paused ms", "GB/s", "floor", "content digest");
  for (const Update& update : updates_)
    text += fmt::format("{:<9}{:>12}{:>10.3f}{:>11.1f}{:>8.2f}{:>7.0f}%  {}{}\n",
                        update.version.to_string(), human_bytes(model_bytes_),
                        update.report["staged_ns"].get<double>() * 1e-9,
                        static_cast<double>(update.paused_ns) * 1e-6, update.bytes_per_s() * 1e-9,
                        update.report["floor_share"].get<double>() * 100,
                        update.report["content_digest"].get<std::string>(),
                        update.report["version"] == report_["kill"]["version"] ? " *" : "");
  text += fmt::format(
      "* one engine was killed in this switch: {} engines took the version\n"
      "GB/s: bytes into all engines, by the longest pause. floor: its share of the copy floor of "
      "this run, {:.1f} GB/s\n({:.1f} to {:.1f}; {} threads copy {} each from one shared mapping; "
      "median of {} rounds, half of them before and half after).\nSeparate devices copy each byte "
      "{} more times on the way: to an H2D buffer and to an IPC buffer of each device.\n\n"
      "torn steps: {} of {}\n",
      engines_.size() - 1, floor_.bytes_per_s() * 1e-9, floor_.slowest() * 1e-9,
      floor_.fastest() * 1e-9, floor_.copiers(), human_bytes(floor_.copied_bytes()),
      floor_.rounds(), options_.devices + 1, counts_.torn, counts_.steps);
  return text + ending_text(report_["picture"], report_["trace"], seconds(now() - begin_));
}

}  // namespace

Result<Outcome> run_demo_scenario(const DemoContext& context) {
  return run_scenario<DemoScenario>(context);
}

}  // namespace wsync::cli
