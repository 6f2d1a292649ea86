#include "inference_side/reload/pipeline_runner.h"

#include <algorithm>
#include <map>
#include <string>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/switch_deadlines.h"
#include "shared/device/memory_gate.h"

namespace wsync::reload {
namespace {

// How often deadlines, and errors that no callback reports, are checked.
constexpr std::chrono::milliseconds kPoll{50};

}  // namespace

struct PipelineRunner::Run {
  PipelineJob job;
  PipelineListener& listener;
  PipelineSet pipeline;
  PipelineTrace trace;
  TimePoint begin{};
  TimePoint next_check{};
  std::uint64_t bytes = 0;
  std::map<std::uint64_t, std::uint64_t> bucket_bytes;  // of those that were begun
  // Of copies that have not ended. Less than the bucket with own links.
  std::map<std::pair<DeviceIndex, std::uint64_t>, std::uint64_t> copied_bytes;
  std::map<EngineId, TimePoint> heard;  // time of the newest bucket acknowledgement
  // The shorter of the options' and the job's deadline.
  std::chrono::nanoseconds bucket_ack_deadline{};
  std::deque<Posted> at_once;  // ends of operations that take no time
};

namespace {

// Connects with buffers, so that they are warmed up. Buffers that are not kept may not fit at
// present.
Result<> connect_gpus(DeviceGroup& group, std::int64_t deadline_ms) {
  if (group.kind() != DeviceKind::kCuda || group.connected()) return {};
  const auto gate = device::MemoryGate::run();  // devices are warmed up by broadcasts
  const bool held = group.holds_buffers();
  if (auto made = group.hold_buffers(); !made && group.keeps_buffers()) return made;
  const auto connected = group.connect(now() + std::chrono::milliseconds(deadline_ms));
  if (!held && !group.keeps_buffers()) group.free_buffers();
  return connected;
}

}  // namespace

Result<std::unique_ptr<PipelineRunner>> PipelineRunner::create(PipelineOptions options) {
  if (options.bucket_ack_deadline.count() <= 0)
    return fail(ErrorCode::kInvalidInput, "the acknowledgement deadline must be more than 0");
  auto group = WSYNC_TRY(DeviceGroup::create({.devices = std::move(options.devices),
                                              .buffer_bytes = options.buffer_bytes,
                                              .keep_buffers = options.keep_buffers,
                                              .collective = options.collective}));
  WSYNC_TRY(connect_gpus(*group, limits::kGroupStartDeadlineMs));
  return std::unique_ptr<PipelineRunner>(new PipelineRunner(std::move(options), std::move(group)));
}

PipelineRunner::PipelineRunner(PipelineOptions options, std::unique_ptr<DeviceGroup> group)
    : options_(std::move(options)),
      group_(std::move(group)),
      choice_(options_.stages, group_->size()) {
  std::map<std::string, std::size_t> of_gpu;
  for (std::uint32_t d = 0; d < group_->size(); ++d) {
    const std::string uuid = group_->device(DeviceIndex{d}).uuid();
    // Host devices have no UUID, and each has a link of its own.
    const auto [link, is_new] =
        of_gpu.try_emplace(uuid.empty() ? std::to_string(d) : uuid, link_count_);
    if (is_new) ++link_count_;
    links_.push_back(link->second);
  }
}

Result<bool> PipelineRunner::choose_own_links(const PipelineJob& job) const {
  if (job.needed.empty() || group_->unified()) return false;
  if (job.needed.size() != group_->size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("what {} devices need was given for a group of {}", job.needed.size(),
                            group_->size()));
  std::vector<std::uint64_t> links(link_count_);
  for (std::size_t d = 0; d < job.needed.size(); ++d)
    for (const auto& needed : job.needed[d]) {
      if (needed->bucket_count() != job.buckets)
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("what device {} needs has {} buckets, and the version has {}", d,
                                needed->bucket_count(), job.buckets));
      links[links_[d]] += needed->bytes();
    }
  if (options_.transfer != Transfer::kAuto) return options_.transfer == Transfer::kOwnLinks;
  return own_links_pay(job.version_bytes, links);
}

PipelineRunner::~PipelineRunner() {
  abort({ErrorCode::kCancelled, "the weight pipeline was closed"});
  {
    const std::lock_guard lock(driver_mutex_);
    if (driver_.joinable()) driver_.join();
  }
  group_->break_up({ErrorCode::kCancelled, "the weight pipeline was closed"});
}

Result<> PipelineRunner::start(PipelineJob job, PipelineListener& listener) {
  const std::lock_guard driver_lock(driver_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (running_) return fail(ErrorCode::kBusy, "the weight pipeline is running");
  }
  if (driver_.joinable()) {
    WSYNC_CHECK(driver_.get_id() != std::this_thread::get_id(),
                "a run is started from within the end of another one");
    driver_.join();
  }
  if (!group_->unified() && !group_->holds_buffers())
    return fail(ErrorCode::kRefused, "the device buffers are not allocated");
  const bool own_links = WSYNC_TRY(choose_own_links(job));
  PipelineShape shape{.devices = group_->size(),
                      .buckets = job.buckets,
                      .ipc_slots = kIpcSlots,
                      .direct = group_->alone(),
                      .engines = job.engines};
  if (group_->unified())
    shape.ipc_slots = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, job.buckets));
  auto pipeline = PipelineSet::create(std::move(shape), choice_, own_links);
  if (!pipeline) return fail(std::move(pipeline).error());
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
    abort_.reset();
    result_.reset();
    lost_.clear();
    events_.clear();
  }
  driver_ = std::jthread(
      [this, job = std::move(job), &listener, pipeline = std::move(*pipeline)]() mutable {
        drive(std::move(job), listener, std::move(pipeline));
      });
  return {};
}

void PipelineRunner::handle_bucket_ack(EngineId engine, std::uint64_t bucket) {
  {
    const std::lock_guard lock(mutex_);
    // An engine answers in order, so the acknowledgements of a failed run arrive first.
    if (owed_.erase({engine, bucket}) == 0) {
      if (!running_) return;
      events_.push_back({.event = BucketAck{.engine = engine, .bucket = bucket}, .at = now()});
    }
  }
  changed_.notify_all();
}

void PipelineRunner::engine_lost(EngineId engine, const Error& reason) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(owed_, [&](const Owed& owed) { return owed.first == engine; });
    if (running_) {
      lost_.push_back({.engine = engine, .reason = reason});
      events_.push_back({.event = EngineLost{.engine = engine}, .at = now()});
    }
  }
  changed_.notify_all();
}

void PipelineRunner::abort(const Error& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (running_ && !abort_) abort_ = reason;
  }
  changed_.notify_all();
}

Result<PipelineReport> PipelineRunner::wait() {
  std::unique_lock lock(mutex_);
  // The wait is bounded by the deadline of the run's job.
  changed_.wait(lock, [&] { return !running_ && !notifying_; });
  if (!result_) return fail(ErrorCode::kNotFound, "the weight pipeline has not been run");
  return *result_;
}

bool PipelineRunner::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

Result<> PipelineRunner::hold_buffers() {
  const std::lock_guard driver_lock(driver_mutex_);
  if (running()) return fail(ErrorCode::kBusy, "the weight pipeline is running");
  return group_->hold_buffers();
}

Result<> PipelineRunner::free_buffers() {
  const std::lock_guard driver_lock(driver_mutex_);
  if (running()) return fail(ErrorCode::kBusy, "the weight pipeline is running");
  group_->free_buffers();
  return {};
}

Result<> PipelineRunner::connect() {
  const std::lock_guard driver_lock(driver_mutex_);
  if (running()) return fail(ErrorCode::kBusy, "the weight pipeline is running");
  return connect_gpus(*group_, limits::kGroupJoinDeadlineMs);
}

void PipelineRunner::post(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back({.event = std::move(event), .at = now()});
  }
  changed_.notify_all();
}

void PipelineRunner::drive(PipelineJob job, PipelineListener& listener, PipelineSet pipeline) {
  const auto gate = device::MemoryGate::run();
  PipelineTraceJob traced{.names = std::move(job.engine_names),
                          .version = std::move(job.version),
                          .bucket_offsets = std::move(job.bucket_offsets)};
  Run run{
      .job = std::move(job),
      .listener = listener,
      .pipeline = std::move(pipeline),
      .trace = PipelineTrace(options_.trace, group_->size(), group_->unified(), std::move(traced)),
      .begin = now(),
      .bucket_bytes = {},
      .copied_bytes = {},
      .heard = {},
      .at_once = {}};
  run.bucket_ack_deadline = std::min(options_.bucket_ack_deadline, run.job.bucket_ack_deadline);
  auto ready = settle_debts(run);
  if (ready)
    ready = group_->connect(std::min(
        run.job.deadline, now() + std::chrono::milliseconds(limits::kGroupJoinDeadlineMs)));
  if (ready)
    step(run, Begin{}, now());
  else
    step(run, Failed{ready.error()}, now());
  loop(run);
  finish(run);
}

// Buffers that engines of a failed run may still read must not be overwritten before these engines
// have answered.
Result<> PipelineRunner::settle_debts(Run& run) {
  std::set<EngineId> silent;
  {
    std::unique_lock lock(mutex_);
    const TimePoint until = std::min(run.job.deadline, now() + run.bucket_ack_deadline);
    changed_.wait_until(lock, steady_time(until), [&] { return owed_.empty() || abort_; });
    if (abort_) return fail(*abort_);
    for (const Owed& owed : owed_) silent.insert(owed.first);
  }
  for (const EngineId engine : silent)
    drop(run, engine,
         {ErrorCode::kDeadline,
          fmt::format("engine {} has not sent all acknowledgements of the previous update",
                      number(engine))});
  return {};
}

void PipelineRunner::loop(Run& run) {
  while (run.pipeline.phase() == PipelinePhase::kRunning) {
    if (run.at_once.empty()) {
      run.at_once = next_events(std::min(run.job.deadline, run.next_check));
    }
    while (!run.at_once.empty() && run.pipeline.phase() == PipelinePhase::kRunning) {
      const Posted posted = std::move(run.at_once.front());
      run.at_once.pop_front();
      step(run, posted.event, posted.at);
    }
    const TimePoint at = now();
    if (at >= std::min(run.next_check, run.job.deadline)) check_clock(run, at);
  }
}

// Returns all posted events. Waits for the first one, at the latest until `until`.
std::deque<PipelineRunner::Posted> PipelineRunner::next_events(TimePoint until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, steady_time(until), [&] { return !events_.empty() || abort_; });
  if (abort_) return {{.event = Failed{*abort_}, .at = now()}};
  return std::exchange(events_, {});
}

void PipelineRunner::step(Run& run, const Event& event, TimePoint at) {
  std::uint64_t bytes = 0;
  const auto bytes_of = [&](std::uint64_t bucket) {
    const auto found = run.bucket_bytes.find(bucket);
    return found == run.bucket_bytes.end() ? 0 : found->second;
  };
  if (const auto* ack = std::get_if<BucketAck>(&event)) run.heard[ack->engine] = at;
  if (const auto* copied = std::get_if<H2DDone>(&event)) {
    const auto node = run.copied_bytes.extract({copied->device, copied->bucket});
    bytes = node.empty() ? 0 : node.mapped();
  }
  if (const auto* sent = std::get_if<BroadcastDone>(&event)) bytes = bytes_of(sent->bucket);
  if (!group_->unified()) {
    if (std::holds_alternative<H2DDone>(event)) h2d_bytes_ += bytes;
    if (std::holds_alternative<BroadcastDone>(event)) broadcast_bytes_ += bytes;
  }
  const auto commands = run.pipeline.step(event, at);
  for (const Command& command : commands) run.trace.started(command, now());
  run.trace.ended(event, at, bytes);
  for (const Command& command : commands) execute(run, command);
}

void PipelineRunner::execute(Run& run, const Command& command) {
  std::visit([&](const auto& c) { execute(run, c); }, command);
}

void PipelineRunner::execute(Run& run, const StartH2D& command) {
  const auto bytes = run.job.bucket_bytes(command.bucket);
  Result<> started;
  if (!bytes) {
    started = fail(bytes.error().with_context(fmt::format("bucket {}", command.bucket)));
  } else if (!group_->unified() && bytes->size() > group_->buffer_bytes()) {
    started = fail(ErrorCode::kInvalidInput,
                   fmt::format("bucket {} has {} bytes, but a device buffer has only {}",
                               command.bucket, bytes->size(), group_->buffer_bytes()));
  } else {
    if (run.bucket_bytes.emplace(command.bucket, bytes->size()).second) run.bytes += bytes->size();
    auto copied = copy(run, command, *bytes);
    if (copied)
      run.copied_bytes[{command.device, command.bucket}] = *copied;
    else
      started = fail(std::move(copied).error());
  }
  if (!started) run.at_once.push_front({.event = Failed{started.error()}, .at = now()});
}

// Returns how many bytes travel.
Result<std::uint64_t> PipelineRunner::copy(Run& run, const StartH2D& command,
                                           std::span<const std::byte> bytes) {
  const H2DDone done{.device = command.device, .bucket = command.bucket};
  if (group_->unified()) {
    run.at_once.push_back({.event = done, .at = now()});
    return bytes.size();
  }
  const auto on_end = [this, done](const Result<>& ended) {
    post(ended ? Event(done) : Event(Failed{ended.error()}));
  };
  if (run.pipeline.own_links())
    return group_->copy_needed({.device = command.device,
                                .slot = *command.slot,
                                .bucket = command.bucket,
                                .bytes = bytes,
                                .needed = run.job.needed[index_of(command.device)]},
                               on_end);
  WSYNC_TRY(group_->copy_in(command.device, command.slot, bytes, on_end));
  return bytes.size();
}

void PipelineRunner::execute(Run& run, const StartBroadcast& command) {
  for (std::uint32_t d = 0; d < group_->size(); ++d) {
    const BroadcastDone done{.device = DeviceIndex{d}, .bucket = command.bucket};
    if (group_->unified()) {
      run.at_once.push_back({.event = done, .at = now()});
      continue;
    }
    const auto started =
        group_->broadcast({.device = DeviceIndex{d},
                           .source = command.source,
                           .slot = command.slot,
                           .bytes = run.bucket_bytes[command.bucket],
                           .deadline = run.job.deadline},
                          [this, done](const Result<>& ended) {
                            post(ended ? Event(done) : Event(Failed{ended.error()}));
                          });
    if (!started) {
      run.at_once.push_front({.event = Failed{started.error()}, .at = now()});
      return;
    }
  }
}

void PipelineRunner::execute(Run& run, const StartReload& command) {
  run.listener.on_bucket_ready({.engine = command.engine,
                                .device = command.device,
                                .bucket = command.bucket,
                                .slot = command.slot,
                                .bytes = run.bucket_bytes[command.bucket]});
}

void PipelineRunner::check_clock(Run& run, TimePoint at) {
  run.next_check = at + kPoll;
  if (run.pipeline.phase() != PipelinePhase::kRunning) return;
  if (at >= run.job.deadline) return step(run, Failed{deadline_error(run)}, at);
  if (const auto health = group_->health(); !health) return step(run, Failed{health.error()}, at);
  std::map<EngineId, std::uint64_t> silent;
  for (const auto& open : run.pipeline.outstanding()) {
    const auto heard = run.heard.find(open.engine);
    const TimePoint since =
        heard == run.heard.end() ? open.since : std::max(open.since, heard->second);
    if (at - since >= run.bucket_ack_deadline) silent.emplace(open.engine, open.bucket);
  }
  for (const auto& [engine, bucket] : silent)
    drop(run, engine,
         {ErrorCode::kDeadline,
          fmt::format("engine {} has not acknowledged bucket {} within {} ms", number(engine),
                      bucket,
                      std::chrono::duration_cast<std::chrono::milliseconds>(run.bucket_ack_deadline)
                          .count())});
}

void PipelineRunner::drop(Run& run, EngineId engine, Error reason) {
  log_warning("weight pipeline: {}; the pipeline continues without this engine", reason.message());
  const LostEngine dropped{.engine = engine, .reason = std::move(reason)};
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(owed_, [&](const Owed& owed) { return owed.first == engine; });
    lost_.push_back(dropped);
  }
  run.listener.on_engine_dropped(dropped);
  step(run, EngineLost{.engine = engine}, now());
}

Error PipelineRunner::deadline_error(const Run& run) const {
  std::string waits;
  for (const auto& open : run.pipeline.outstanding())
    waits += fmt::format("{} engine {} for bucket {}", waits.empty() ? "" : ",",
                         number(open.engine), open.bucket);
  return {ErrorCode::kDeadline,
          fmt::format("the weight pipeline reached its deadline with {} of {} buckets done, "
                      "waiting for{}",
                      run.pipeline.buckets_done(), run.job.buckets,
                      waits.empty() ? " device copies" : waits)};
}

void PipelineRunner::finish(Run& run) {
  const bool failed = run.pipeline.phase() == PipelinePhase::kFailed;
  if (failed) group_->break_up(run.pipeline.error());
  choice_ = run.pipeline.choice();
  Result<PipelineReport> result;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& open : run.pipeline.outstanding()) owed_.insert({open.engine, open.bucket});
    // Bucket acknowledgements that arrived after the end must still be counted, because the next
    // run waits for them.
    for (const Posted& posted : run.at_once) events_.push_back(posted);
    run.at_once.clear();
    for (const Posted& posted : std::exchange(events_, {})) {
      if (const auto* ack = std::get_if<BucketAck>(&posted.event))
        owed_.erase({ack->engine, ack->bucket});
      if (const auto* lost = std::get_if<EngineLost>(&posted.event))
        std::erase_if(owed_, [&](const Owed& owed) { return owed.first == lost->engine; });
    }
    if (failed)
      result = fail(run.pipeline.error());
    else
      result = PipelineReport{.buckets = run.job.buckets,
                              .bytes = run.bytes,
                              .begin = run.begin,
                              .end = now(),
                              .lost = lost_,
                              .stray_bucket_acks = run.pipeline.stray_bucket_acks(),
                              .own_links = run.pipeline.own_links(),
                              .overlapped_rounds = run.pipeline.overlapped_rounds(),
                              .stages = choice_.decided(),
                              .timings = choice_.timings()};
    result_ = result;
    running_ = false;
    notifying_ = true;
  }
  run.listener.on_finished(result);
  {
    const std::lock_guard lock(mutex_);
    notifying_ = false;
  }
  changed_.notify_all();
}

}  // namespace wsync::reload
