#include "deploy/demo/story.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "deploy/demo/floor.h"
#include "deploy/demo/trace.h"
#include "deploy/demo/versions.h"
#include "deploy/demo/victim.h"
#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/base/units.h"
#include "shared/command/context.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/update_flows.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{900'000};          // writing, copying or publishing a checkpoint
constexpr unsigned kFloorRounds = 3;            // before the story, and again after it
constexpr std::uint64_t kVersionsInMemory = 3;  // serving, previous, incoming: shared by all
constexpr std::uint64_t kSmallModelBytes = 96 * limits::kMiB;
constexpr std::size_t kPictured = 1;  // the second update: the engines were serving before it

std::string duration(std::uint64_t ns) {
  return trace::format_duration(std::chrono::nanoseconds(ns));
}

class Story {
 public:
  Story(Children& children, const DemoOptions& options,
        const std::function<Result<std::string>()>& output,
        const std::function<void(const std::string&)>& say)
      : children_(children),
        options_(options),
        output_(output),
        say_(say),
        versions_(
            children,
            {.checkpoint = options.checkpoint, .size = options.size, .work_dir = options.work_dir},
            say) {}
  Result<DemoReport> tell();

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    say_(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] Result<> measure_floor();
  [[nodiscard]] Result<> read_model(const std::string& directory);
  [[nodiscard]] Result<> start_fleet(const std::string& directory);
  [[nodiscard]] Result<> publish(unsigned number);
  [[nodiscard]] Result<> refuse();
  [[nodiscard]] Result<> publish_and_kill(unsigned number);
  [[nodiscard]] Result<> kill_victim(DemoFleet::Question& push);
  [[nodiscard]] Result<> show_the_others(const Version& version);
  [[nodiscard]] Result<> repair(const Version& version);
  [[nodiscard]] Result<> roll_back();
  [[nodiscard]] Result<> verify(DemoUpdate& update, std::size_t engines);
  [[nodiscard]] DemoUpdate update_of(const control::PushReply& reply, TimePoint begin) const;
  [[nodiscard]] Result<> end();
  [[nodiscard]] Result<> write_traces();
  void record(std::string name, TimePoint begin);

  Children& children_;
  const DemoOptions& options_;
  const std::function<Result<std::string>()>& output_;
  const std::function<void(const std::string&)>& say_;
  VersionMaker versions_;
  const TimePoint begin_ = now();
  DemoReport report_;
  std::string first_directory_;  // where the engines read their names
  std::unique_ptr<DemoFleet> fleet_;
  trace::Recorder recorder_;
  std::optional<Victim> victim_;  // before the fleet goes
};

Result<DemoReport> Story::tell() {
  const auto first = WSYNC_TRY(versions_.make(1));
  first_directory_ = first;
  WSYNC_TRY(read_model(first));
  WSYNC_TRY(require_memory((options_.engines + kVersionsInMemory) * report_.bytes,
                           "the engines and the staged versions of the demo"));
  WSYNC_TRY(measure_floor());
  WSYNC_TRY(start_fleet(first));
  WSYNC_TRY(publish(1));
  WSYNC_TRY(publish(2));
  WSYNC_TRY(publish_and_kill(3));
  WSYNC_TRY(refuse());
  WSYNC_TRY(roll_back());
  WSYNC_TRY(end());
  WSYNC_TRY(measure_floor());
  WSYNC_TRY(write_traces());
  report_.same_bytes = versions_.same_bytes();
  report_.elapsed_s = seconds(now() - begin_);
  return std::move(report_);
}

void Story::record(std::string name, TimePoint begin) {
  recorder_.record({.name = std::move(name),
                    .lane = "story",
                    .category = trace::Category::kOther,
                    .begin = begin,
                    .end = now(),
                    .label = {},
                    .args = {}});
}

// ---- what is published ----

Result<> Story::read_model(const std::string& directory) {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(directory));
  const Manifest& manifest = checkpoint.manifest();
  for (const TensorInfo& tensor : manifest.tensors()) {
    const auto bytes = WSYNC_TRY(tensor.byte_size());
    report_.bytes += bytes;
  }
  report_.tensors = manifest.size();
  // Buckets of a size that caches like, and enough of them to stand between the first and the last.
  report_.buffer_bytes = report_.bytes < kSmallModelBytes ? limits::kMiB : 4 * limits::kMiB;
  say("model: {} in {}, {} with embeddings and head", human_bytes(report_.bytes),
      counted(report_.tensors, "tensor"), counted(manifest.layer_count(), "layer"));
  return {};
}

// ---- the floor ----

Result<> Story::measure_floor() {
  const TimePoint begin = now();
  FloorRounds measured;
  WSYNC_TRY(children_.in_thread(
      "the measurement of the floor", kLong, [&](const std::atomic<bool>& cancelled) -> Result<> {
        measured =
            WSYNC_TRY(measure_copy_floor(report_.bytes, options_.engines, kFloorRounds, cancelled));
        return {};
      }));
  record("copy floor", begin);
  report_.floor.add(measured);
  say("copy floor: {:.1f} GB/s into {} private memories at once (median of {} rounds)",
      report_.floor.bytes_per_s() * 1e-9, options_.engines, report_.floor.rounds());
  return {};
}

// ---- the fleet ----

Result<> Story::start_fleet(const std::string& directory) {
  const TimePoint begin = now();
  fleet_ = std::make_unique<DemoFleet>(children_, FleetOptions{.engines = options_.engines,
                                                               .devices = options_.devices,
                                                               .buffer_bytes = report_.buffer_bytes,
                                                               .run_dir = options_.run_dir,
                                                               .trace_dir = options_.trace_dir,
                                                               .checkpoint = directory});
  WSYNC_TRY(fleet_->start());
  record("start", begin);
  victim_.emplace(children_, fleet_->victim());
  say("running: a trainer agent, {} sidecars with {} each (buffers of {}), {}", kDemoSidecars,
      counted(options_.devices, "separate device"), human_bytes(report_.buffer_bytes),
      counted(options_.engines, "engine"));
  return {};
}

Result<> Story::verify(DemoUpdate& update, std::size_t engines) {
  const TimePoint begin = now();
  const Result<std::uint64_t> bytes = fleet_->verify(update.version, engines);
  if (!bytes) return fail(bytes.error().with_context("verify"));
  update.verified_bytes = *bytes;
  record("verify " + update.version.to_string(), begin);
  say("  verified: {} engines hold {}, every tensor equal ({} read back)", engines,
      update.version.to_string(), human_bytes(*bytes));
  return {};
}

DemoUpdate Story::update_of(const control::PushReply& reply, TimePoint begin) const {
  DemoUpdate update{
      .version = reply.version,
      .digest = reply.content_digest,
      .bytes = report_.bytes,  // the reply counts the alignment between tensors as well
      .snapshot_ns = reply.snapshot_ns,
      .staged_ns = reply.staged_ns,
      .begin = begin,
      .end = now()};
  for (const control::ReplicaOutcome& outcome : reply.outcomes) {
    if (outcome.outcome != control::SwitchOutcome::kCommitted) continue;
    update.loaded_bytes += outcome.bytes;
    update.paused_ns = std::max(update.paused_ns, outcome.paused_ns);
  }
  return update;
}

Result<> Story::publish(unsigned number) {
  const auto directory =
      WSYNC_TRY(number == 1 ? Result<std::string>(first_directory_) : versions_.make(number));
  const TimePoint begin = now();
  const auto reply =
      fleet_->ask<control::PushReply>(control::Push{.directory = directory, .step = number});
  if (!reply) return fail(reply.error().with_context("publish"));
  if (!reply->ok) return fail(ErrorCode::kInternal, "a publish failed: " + reply->reason);
  DemoUpdate update = update_of(*reply, begin);
  record("publish " + update.version.to_string(), begin);
  say("published {}: staged in {}, engines paused {} at most; content digest {}",
      update.version.to_string(), duration(update.staged_ns), duration(update.paused_ns),
      update.digest.to_string());
  WSYNC_TRY(fleet_->until_ready(update.version));
  WSYNC_TRY(verify(update, options_.engines));
  report_.updates.push_back(std::move(update));
  versions_.done_with(directory);
  return {};
}

Result<> Story::refuse() {
  const std::string directory = options_.work_dir + "/wrong_shape";
  const auto wrong = WSYNC_TRY(write_wrong_shape(first_directory_, directory));
  const TimePoint begin = now();
  const auto reply = fleet_->ask<control::PushReply>(control::Push{.directory = directory});
  if (!reply) return fail(reply.error().with_context("publish of the wrong shape"));
  const bool named = std::any_of(reply->problems.begin(), reply->problems.end(),
                                 [&](const auto& p) { return p.tensor == wrong.tensor; });
  if (reply->ok || !named)
    return fail(ErrorCode::kInternal,
                fmt::format("a checkpoint with {} of shape {} instead of {} was not refused for "
                            "it: {}",
                            wrong.tensor, wrong.found, wrong.expected, reply->reason));
  record("refusal", begin);
  report_.refusal = {.tensor = wrong.tensor, .reason = reply->reason};
  say("refused before anything moved: {}", reply->reason);
  WSYNC_TRY(verify(report_.updates.back(), options_.engines));
  versions_.done_with(directory);
  return {};
}

// ---- the kill ----

Result<> Story::kill_victim(DemoFleet::Question& push) {
  const auto killed = WSYNC_TRY(victim_->kill([&push] { return push.answered(); }));
  report_.kill.replica = fleet_->victim_replica();
  report_.kill.version = killed.version;
  report_.kill.pid = fleet_->victim().pid();
  report_.kill.taken = killed.taken;
  report_.kill.buckets = killed.buckets;
  report_.kill.torn = victim_->torn();
  say("killed engine {} (pid {}) with SIGKILL inside its switch to {}: it had taken {} of {} "
      "buckets and acknowledged at least {}, the first among them; the last one never came",
      report_.kill.replica, report_.kill.pid, killed.version, killed.taken, killed.buckets,
      killed.taken - 1);
  return {};
}

Result<> Story::show_the_others(const Version& version) {
  const std::string& victim = report_.kill.replica;
  WSYNC_TRY(fleet_->until_ready(version, victim));
  const auto lost = WSYNC_TRY(fleet_->until_replica(
      victim, "the loss of " + victim,
      [](const control::ReplicaReport& report) { return report.ranks_attached == 0; }));
  if (lost.ready)
    return fail(ErrorCode::kInternal, "replica " + victim + " is killed and reported as ready");
  report_.kill.state = lost.state == control::ReplicaState::kTainted ? "tainted" : "absent";
  report_.kill.reason = lost.reason;
  say("  the other {} replicas serve {}; {} is {}, not ready: {}", options_.engines - 1,
      version.to_string(), victim, report_.kill.state, lost.reason);
  return {};
}

Result<> Story::publish_and_kill(unsigned number) {
  const auto directory = WSYNC_TRY(versions_.make(number));
  const TimePoint begin = now();
  victim_->arm();
  const auto push = fleet_->begin(control::Push{.directory = directory, .step = number});
  if (const Result<> killed = kill_victim(*push); !killed) {
    if (!push->answered()) return killed;
    const auto reply = fleet_->answer<control::PushReply>(*push);
    return fail(killed.error().with_context(reply ? reply->reason : reply.error().message()));
  }
  const auto version = WSYNC_TRY(Version::parse(report_.kill.version));
  WSYNC_TRY(show_the_others(version));
  const auto reply = fleet_->answer<control::PushReply>(*push);
  if (!reply) return fail(reply.error().with_context("publish"));
  for (const control::ReplicaOutcome& outcome : reply->outcomes)
    if (outcome.replica != report_.kill.replica &&
        outcome.outcome != control::SwitchOutcome::kCommitted)
      return fail(ErrorCode::kInternal, fmt::format("replica {} was not killed and failed: {}",
                                                    outcome.replica, outcome.reason));
  DemoUpdate update = update_of(*reply, begin);
  record("publish " + update.version.to_string() + ", one engine killed", begin);
  say("published {} to the others: staged in {}, engines paused {} at most; content digest {}",
      update.version.to_string(), duration(update.staged_ns), duration(update.paused_ns),
      update.digest.to_string());
  WSYNC_TRY(verify(update, options_.engines - 1));
  report_.updates.push_back(std::move(update));
  WSYNC_TRY(repair(version));
  versions_.done_with(directory);
  return {};
}

Result<> Story::repair(const Version& version) {
  const TimePoint begin = now();
  WSYNC_TRY(fleet_->restart_victim());
  WSYNC_TRY(fleet_->until_ready(version));
  report_.kill.repaired_ns = static_cast<std::uint64_t>((now() - begin).count());
  record("repair of " + report_.kill.replica, begin);
  say("started {} again: brought to {} from the staged copy, ready after {}", report_.kill.replica,
      version.to_string(), duration(report_.kill.repaired_ns));
  return verify(report_.updates.back(), options_.engines);
}

// ---- back, and the end ----

Result<> Story::roll_back() {
  const TimePoint begin = now();
  const auto reply = fleet_->ask<control::RollbackReply>(control::Rollback{});
  if (!reply) return fail(reply.error().with_context("rollback"));
  const Version& expected = report_.updates[report_.updates.size() - 2].version;
  if (!reply->ok || reply->to != expected)
    return fail(ErrorCode::kInternal,
                fmt::format("the rollback to {} went otherwise: to {}; {}", expected.to_string(),
                            reply->to.to_string(), reply->reason));
  report_.rollback = {.from = reply->from, .to = reply->to};
  for (const control::ReplicaOutcome& outcome : reply->outcomes)
    report_.rollback.paused_ns = std::max(report_.rollback.paused_ns, outcome.paused_ns);
  record("rollback to " + reply->to.to_string(), begin);
  say("rolled back from {} to {}: engines paused {} at most; {} is withdrawn",
      reply->from.to_string(), reply->to.to_string(), duration(report_.rollback.paused_ns),
      reply->from.to_string());
  WSYNC_TRY(fleet_->until_ready(reply->to));
  return verify(report_.updates[report_.updates.size() - 2], options_.engines);
}

Result<> Story::end() {
  auto engines = WSYNC_TRY(fleet_->stop());
  report_.engines = std::move(engines);
  const std::uint64_t steps =
      std::accumulate(report_.engines.begin(), report_.engines.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const EngineResult& e) { return sum + e.steps; });
  say("stopped: the engines served {} steps, {} of them torn", steps, report_.torn());
  return {};
}

Result<> Story::write_traces() {
  const auto output = WSYNC_TRY(output_());
  report_.trace = output + "/trace.json";
  report_.picture = output + "/timeline.svg";
  std::vector<std::string> names = {"trainer"};
  for (std::uint32_t i = 0; i < kDemoSidecars; ++i) names.push_back(DemoFleet::sidecar_name(i));
  std::vector<trace::ProcessTrace> processes{{.name = "wsync demo",
                                              .pid = static_cast<std::uint32_t>(::getpid()),
                                              .spans = recorder_.spans()}};
  for (const std::string& name : names) {
    auto traced = WSYNC_TRY(read_trace(fmt::format("{}/{}.json", options_.trace_dir, name)));
    processes.push_back(std::move(traced));
  }
  const DemoUpdate& update = report_.updates[kPictured];
  WSYNC_TRY(write_update_picture(report_.picture, processes.back(),
                                 {.version = update.version,
                                  .model_bytes = report_.bytes,
                                  .buffer_bytes = report_.buffer_bytes,
                                  .engines = options_.engines / kDemoSidecars,
                                  .devices = options_.devices,
                                  .sidecars = kDemoSidecars,
                                  .begin = update.begin,
                                  .end = update.end}));
  trace::Trace trace{.processes = std::move(processes)};
  trace.flows = trace::update_flows(trace.processes);
  return trace::write_chrome_trace(report_.trace, trace);
}

}  // namespace

std::uint64_t DemoReport::torn() const {
  return std::accumulate(
      engines.begin(), engines.end(), kill.torn,
      [](std::uint64_t sum, const EngineResult& engine) { return sum + engine.torn; });
}

Result<DemoReport> tell_demo(Children& children, const DemoOptions& options,
                             const std::function<Result<std::string>()>& output,
                             const std::function<void(const std::string&)>& say) {
  Story story(children, options, output, say);
  auto told = story.tell();
  if (!told) return fail(children.explained(std::move(told).error()));
  return told;
}

}  // namespace wsync::cli
