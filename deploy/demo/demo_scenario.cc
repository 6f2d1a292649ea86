// Main scenario of `wsync demo`: publish three versions, kill an engine in the middle of the last
// switch, repair it, refuse an invalid checkpoint, and roll back. Every engine is verified after
// each of these steps.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unistd.h>

#include "deploy/demo/copy_floor.h"
#include "deploy/demo/killed_engine.h"
#include "deploy/demo/scenario.h"
#include "deploy/demo/version_maker.h"
#include "inference_side/reload/pipeline_trace.h"
#include "shared/base/memory_limit.h"
#include "shared/base/units.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/recorder.h"
#include "shared/observe/trace/timeline.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/example/derived_checkpoint.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr std::uint32_t kSidecars = 2;
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
  json report;
};

class DemoScenario final : public Scenario {
 public:
  using Scenario::Scenario;

 private:
  [[nodiscard]] Result<> play() override;
  [[nodiscard]] Result<std::string> report() override;

  [[nodiscard]] Result<> measure_floor();
  [[nodiscard]] Result<> read_model();
  [[nodiscard]] Result<> start();
  [[nodiscard]] Result<> publish(unsigned number);
  [[nodiscard]] Result<> publish_and_kill(unsigned number);
  [[nodiscard]] Result<> kill_engine(fleet::Fleet::Question& push);
  [[nodiscard]] Result<> check_survivors(const Version& version);
  [[nodiscard]] Result<> repair(const Version& version);
  [[nodiscard]] Result<> refuse();
  [[nodiscard]] Result<> roll_back();
  [[nodiscard]] Result<> verify_update(Update& update, std::size_t engines);
  void add_update(const control::PushReply& reply, TimePoint begin, const std::string& to);
  [[nodiscard]] Result<> write_files();
  [[nodiscard]] Result<> write_picture(const std::string& path,
                                       const trace::ProcessTrace& sidecar) const;
  void finish_report();
  [[nodiscard]] std::string table() const;
  void record(std::string name, TimePoint begin);
  [[nodiscard]] const std::string& killed_replica() const {
    return fleet_->options().engines.back().replica;
  }

  VersionMaker versions_{context_};
  std::uint64_t model_bytes_ = 0;
  std::uint64_t buffer_bytes_ = 0;
  std::vector<Update> updates_;
  CopyFloor floor_;
  trace::Recorder recorder_;
  std::optional<KilledEngine> killed_engine_;
};

Result<> DemoScenario::play() {
  WSYNC_TRY(versions_.make_first());
  WSYNC_TRY(read_model());
  WSYNC_TRY(require_memory((options_.engines + kVersionsInMemory) * model_bytes_,
                           "the engines and the staged versions of the demo"));
  WSYNC_TRY(measure_floor());
  WSYNC_TRY(start());
  WSYNC_TRY(publish(1));
  WSYNC_TRY(publish(2));
  WSYNC_TRY(publish_and_kill(3));
  WSYNC_TRY(refuse());
  return roll_back();
}

Result<std::string> DemoScenario::report() {
  WSYNC_TRY(measure_floor());
  WSYNC_TRY(write_files());
  finish_report();
  return table();
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
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(versions_.first()));
  const Manifest& manifest = checkpoint.manifest();
  model_bytes_ = manifest.total_bytes();
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
  WSYNC_TRY(context_.children.in_thread(
      "the measurement of the floor", kFloorDeadline, [&](const std::atomic<bool>& cancelled) {
        return floor_.measure(model_bytes_, options_.engines, kFloorRounds, cancelled);
      }));
  record("copy floor", begin);
  const bench::Spread measured = floor_.bytes_per_s();
  context_.say("copy floor: {:.1f} GB/s into {} private memories at once (median of {} rounds)",
               measured.median * 1e-9, options_.engines, measured.count);
  return {};
}

Result<> DemoScenario::start() {
  const TimePoint begin = now();
  fleet::FleetOptions wanted = fleet_options({.sidecars = kSidecars,
                                              .devices = options_.devices,
                                              .buffer_bytes = buffer_bytes_,
                                              .model = {"--checkpoint", versions_.first()}});
  wanted.trainer = {fmt::format("min_sidecars={}", kSidecars),
                    fmt::format("min_replicas={}", options_.engines), "arenas=4",
                    fmt::format("trace_file={}/trainer", options_.trace_dir)};
  wanted.engines.back().output = ChildOutput::kLines;  // the engine that will be killed
  WSYNC_TRY(start_fleet(std::move(wanted)));
  record("start", begin);
  killed_engine_.emplace(context_.children, fleet_->engine(options_.engines - 1));
  context_.say("running: a trainer agent, {} sidecars with {} each (buffers of {}), {}", kSidecars,
               counted(options_.devices, "separate device"), human_bytes(buffer_bytes_),
               counted(options_.engines, "engine"));
  return {};
}

// ---- updates ----

Result<> DemoScenario::verify_update(Update& update, std::size_t engines) {
  const TimePoint begin = now();
  update.report["verified_bytes"] = WSYNC_TRY(verify(update.version, engines)).bytes;
  record("verify " + update.version.to_string(), begin);
  return {};
}

void DemoScenario::add_update(const control::PushReply& reply, TimePoint begin,
                              const std::string& to) {
  std::uint64_t loaded_bytes = 0;  // sum over all engines
  std::uint64_t paused_ns = 0;     // longest pause of a replica
  for (const control::ReplicaOutcome& outcome : reply.outcomes) {
    if (outcome.outcome != control::SwitchOutcome::kCommitted) continue;
    loaded_bytes += outcome.bytes;
    paused_ns = std::max(paused_ns, outcome.paused_ns);
  }
  const double paused_s = static_cast<double>(paused_ns) * 1e-9;
  updates_.push_back(
      {.version = reply.version,
       .begin = begin,
       .end = now(),
       .report = {
           {"version", reply.version.to_string()},
           {"bytes", model_bytes_},  // the reply also counts alignment padding
           {"loaded_bytes", loaded_bytes},
           {"snapshot_ns", reply.snapshot_ns},
           {"staged_ns", reply.staged_ns},
           {"paused_ns", paused_ns},
           {"bytes_per_s", paused_ns == 0 ? 0.0 : static_cast<double>(loaded_bytes) / paused_s},
           {"content_digest", reply.content_digest.to_string()}}});
  context_.say("published {}{}: staged in {}, engines paused {} at most; content digest {}",
               reply.version.to_string(), to, duration(reply.staged_ns), duration(paused_ns),
               reply.content_digest.to_string());
}

Result<> DemoScenario::publish(unsigned number) {
  const auto directory = WSYNC_TRY(versions_.make(number));
  const TimePoint begin = now();
  const auto reply =
      fleet_->ask<control::PushReply>(control::Push{.directory = directory, .step = number});
  if (!reply) return fail(reply.error().with_context("publish"));
  if (!reply->ok) return fail(ErrorCode::kInternal, "a publish failed: " + reply->reason);
  record("publish " + reply->version.to_string(), begin);
  add_update(*reply, begin, "");
  WSYNC_TRY(fleet_->until_ready(reply->version));
  WSYNC_TRY(verify_update(updates_.back(), options_.engines));
  versions_.done_with(directory);
  return {};
}

Result<> DemoScenario::refuse() {
  const std::string directory = options_.work_dir + "/wrong_shape";
  const auto wrong = WSYNC_TRY(write_wrong_shape(versions_.first(), directory));
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
  WSYNC_TRY(verify_update(updates_.back(), options_.engines));
  versions_.done_with(directory);
  return {};
}

// ---- the kill ----

Result<> DemoScenario::kill_engine(fleet::Fleet::Question& push) {
  const auto killed = WSYNC_TRY(killed_engine_->kill([&push] { return push.answered(); }));
  torn_ += killed_engine_->torn();
  const pid_t pid = fleet_->engine(options_.engines - 1).pid();
  report_["kill"] = {{"replica", killed_replica()},
                     {"version", killed.version},
                     {"pid", pid},
                     {"buckets_taken", killed.taken},
                     {"buckets_acknowledged_at_least", killed.taken - 1},
                     {"buckets", killed.buckets}};
  context_.say(
      "killed engine {} (pid {}) with SIGKILL inside its switch to {}: it had taken {} of {} "
      "buckets and acknowledged at least {}, the first among them; the last one never came",
      killed_replica(), pid, killed.version, killed.taken, killed.buckets, killed.taken - 1);
  return {};
}

Result<> DemoScenario::check_survivors(const Version& version) {
  WSYNC_TRY(fleet_->until_ready(version, killed_replica()));
  const auto lost = WSYNC_TRY(fleet_->until_replica(
      killed_replica(), "the loss of " + killed_replica(),
      [](const control::ReplicaReport& report) { return report.ranks_attached == 0; }));
  if (lost.ready)
    return fail(ErrorCode::kInternal,
                "replica " + killed_replica() + " is killed and reported as ready");
  const std::string state = lost.state == control::ReplicaState::kTainted ? "tainted" : "absent";
  report_["kill"]["state"] = state;
  report_["kill"]["reason"] = lost.reason;
  context_.say("  the other {} replicas serve {}; {} is {}, not ready: {}", options_.engines - 1,
               version.to_string(), killed_replica(), state, lost.reason);
  return {};
}

Result<> DemoScenario::publish_and_kill(unsigned number) {
  const auto directory = WSYNC_TRY(versions_.make(number));
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
    if (outcome.replica != killed_replica() &&
        outcome.outcome != control::SwitchOutcome::kCommitted)
      return fail(ErrorCode::kInternal, fmt::format("replica {} was not killed and failed: {}",
                                                    outcome.replica, outcome.reason));
  record("publish " + version.to_string() + ", one engine killed", begin);
  add_update(*reply, begin, " to the others");
  WSYNC_TRY(verify_update(updates_.back(), options_.engines - 1));
  WSYNC_TRY(repair(version));
  versions_.done_with(directory);
  return {};
}

Result<> DemoScenario::repair(const Version& version) {
  const TimePoint begin = now();
  WSYNC_TRY(fleet_->restart_engine(options_.engines - 1));
  WSYNC_TRY(fleet_->until_ready(version));
  const auto repaired_ns = static_cast<std::uint64_t>((now() - begin).count());
  report_["kill"]["repaired_ns"] = repaired_ns;
  record("repair of " + killed_replica(), begin);
  context_.say("started {} again: brought to {} from the staged copy, ready after {}",
               killed_replica(), version.to_string(), duration(repaired_ns));
  return verify_update(updates_.back(), options_.engines);
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
  return verify_update(previous, options_.engines);
}

Result<> DemoScenario::write_files() {
  const auto output = WSYNC_TRY(context_.output());
  auto processes = WSYNC_TRY(read_traces({"trainer", sidecar_name(0), sidecar_name(1)}));
  report_["picture"] = output + "/timeline.svg";
  WSYNC_TRY(write_picture(output + "/timeline.svg", processes.back()));
  processes.insert(processes.begin(), {.name = "wsync demo",
                                       .pid = static_cast<std::uint32_t>(::getpid()),
                                       .spans = recorder_.spans()});
  return write_trace(output, std::move(processes));
}

// Draws the pipeline's lanes of one sidecar while its engines were paused in the pictured update.
Result<> DemoScenario::write_picture(const std::string& path,
                                     const trace::ProcessTrace& sidecar) const {
  const Update& update = updates_[kPictured];
  for (const trace::PauseBand& band : trace::pause_bands(sidecar.spans))
    if (band.begin >= update.begin && band.end <= update.end)
      return trace::write_timeline_svg(
          path, trace::spans_between(sidecar.spans, band.begin, band.end),
          {.title = fmt::format("One update as measured: {} into {} through {} devices",
                                human_bytes(model_bytes_),
                                counted(options_.engines / kSidecars, "engine"), options_.devices),
           .subtitle = fmt::format("version {} on one of {} sidecars that switch at the same time; "
                                   "separate host devices, buffers of {}; {}",
                                   update.version.to_string(), kSidecars,
                                   human_bytes(buffer_bytes_), machine_text()),
           .lanes = reload::PipelineTrace::chart_lanes(options_.devices)});
  return fail(ErrorCode::kNotFound,
              fmt::format("the trace of {} shows no pause for the picture", sidecar.name));
}

void DemoScenario::finish_report() {
  const bench::Spread floor = floor_.bytes_per_s();
  for (Update& update : updates_) {
    update.report["floor_share"] = update.report["bytes_per_s"].get<double>() / floor.median;
    report_["versions"].push_back(update.report);
  }
  report_["sidecars"] = kSidecars;
  report_["devices"] = options_.devices;
  report_["buffer_bytes"] = buffer_bytes_;
  report_["same_bytes"] = versions_.same_bytes();
  report_["floor"] = {{"bytes_per_s", floor.median},           {"slowest_bytes_per_s", floor.min},
                      {"fastest_bytes_per_s", floor.max},      {"copiers", options_.engines},
                      {"copied_bytes", floor_.copied_bytes()}, {"rounds", floor.count}};
}

std::string DemoScenario::table() const {
  std::string text = fmt::format("\n{:<9}{:>12}{:>10}{:>11}{:>8}{:>8}  {}\n", "version", "bytes",
                                 "staged s", "paused ms", "GB/s", "floor", "content digest");
  for (const json& version : report_.at("versions"))
    text += fmt::format("{:<9}{:>12}{:>10.3f}{:>11.1f}{:>8.2f}{:>7.0f}%  {}{}\n",
                        version.at("version").get<std::string>(), human_bytes(model_bytes_),
                        version.at("staged_ns").get<double>() * 1e-9,
                        version.at("paused_ns").get<double>() * 1e-6,
                        version.at("bytes_per_s").get<double>() * 1e-9,
                        version.at("floor_share").get<double>() * 100,
                        version.at("content_digest").get<std::string>(),
                        version.at("version") == report_.at("kill").at("version") ? " *" : "");
  const bench::Spread floor = floor_.bytes_per_s();
  return text +
         fmt::format(
             "* one engine was killed in this switch: {} engines took the version\n"
             "GB/s: bytes into all engines, by the longest pause. floor: its share of the copy "
             "floor of "
             "this run, {:.1f} GB/s\n({:.1f} to {:.1f}; {} threads copy {} each from one shared "
             "mapping; "
             "median of {} rounds, half of them before and half after).\nSeparate devices copy "
             "each byte "
             "{} more times on the way: to an H2D buffer and to an IPC buffer of each device.\n\n",
             options_.engines - 1, floor.median * 1e-9, floor.min * 1e-9, floor.max * 1e-9,
             options_.engines, human_bytes(floor_.copied_bytes()), floor.count,
             options_.devices + 1);
}

}  // namespace

std::unique_ptr<Scenario> make_demo_scenario(const DemoContext& context) {
  return std::make_unique<DemoScenario>(context);
}

}  // namespace wsync::cli
