#include "trainer_side/publish/trainer_agent.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/config/trainer_config.h"
#include "shared/control/zmq/ports.h"
#include "trainer_side/coordinator/page/page_routes.h"
#include "trainer_side/publish/active_publish.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};
// After so long it is said that a publish waits for sidecars; a fleet that starts takes less.
constexpr std::chrono::seconds kTellWhy{5};

CoordinatorOptions coordinator_options(const config::TrainerConfig& config) {
  CoordinatorOptions options;
  std::random_device random;
  const auto word = [&random] { return (static_cast<std::uint64_t>(random()) << 32U) | random(); };
  for (std::uint64_t& half : options.run_id) half = word();
  options.new_fleet_id = {.high = word(), .low = word()};
  options.take_over = config.take_over;
  options.min_sidecars = config.min_sidecars;
  options.min_replicas = config.min_replicas;
  options.commit = config.commit;
  options.transport = config.transport;
  options.pause_mode = config.pause_mode;
  options.boot_id = boot_id();
  options.host_socket = config.run_dir + "/trainer-host.sock";
  options.gather_recorded = config.deadlines.gather;
  options.attach = config.heartbeat.deadline;
  options.announce = config.deadlines.announce;
  options.stage = config.deadlines.stage;
  options.pause = config.deadlines.pause;
  options.load = config.deadlines.load;
  options.whole_switch = std::max<std::chrono::milliseconds>(
      config.deadlines.pause + config.deadlines.load + config.deadlines.commit,
      std::chrono::milliseconds(1));
  return options;
}

// Said at once: who is missing may not come for a long time.
void log_record(const CoordinatorRecord& record, std::chrono::milliseconds gather) {
  log_info("going on from epoch {} of fleet {}, target {}{}", record.fence.epoch,
           record.fence.fleet.to_string(),
           record.target.none() ? "none" : record.target.to_string(),
           record.members.empty()
               ? std::string()
               : fmt::format("; waiting {} s at most (deadlines.gather) for sidecars {}",
                             gather.count() / 1000, fmt::join(record.members, ", ")));
}

}  // namespace

Result<std::unique_ptr<TrainerAgent>> TrainerAgent::create(Loop& loop,
                                                           const config::TrainerConfig& config,
                                                           TrainerAgentCallbacks callbacks) {
  WSYNC_TRY(make_private_directory(config.run_dir));
  WSYNC_TRY(make_private_directory(config.state_dir));
  const std::filesystem::path state = std::filesystem::path(config.state_dir) / config.fleet;
  WSYNC_TRY(make_private_directory(state.string()));
  CoordinatorOptions options = coordinator_options(config);
  auto store = std::make_unique<FileDecisionStore>(
      state, config.take_over ? Claim::kTakeOver : Claim::kIfFree);
  auto record = WSYNC_TRY(store->read());
  options.record = std::move(record);
  const std::optional<CoordinatorRecord> before = options.record;
  if (!config.fleet_id.empty()) {
    const auto id = control::FleetId::parse(config.fleet_id);
    if (!id) return fail(id.error().with_context("fleet_id"));
    options.fleet_id = *id;
  }
  if (options.record && !options.fleet_id.none() && options.record->fence.fleet != options.fleet_id)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} is of fleet {}, fleet_id names {}: name another folder with "
                            "`fleet`, or leave fleet_id out",
                            store->path().string(), options.record->fence.fleet.to_string(),
                            options.fleet_id.to_string()));
  auto bulk = WSYNC_TRY(transport::tcp::UvThread::start());
  std::unique_ptr<transport::tcp::TcpSource> tcp;
  if (config.transport != TransportPolicy::kMemfd) {
    auto source = transport::tcp::TcpSource::listen(*bulk, {.listen = config.data_address});
    if (!source) return fail(source.error().with_context("data_address"));
    tcp = std::move(*source);
    options.data_address = tcp->address();
  }
  auto agent = std::unique_ptr<TrainerAgent>(
      new TrainerAgent(loop, config, std::move(callbacks), std::move(options), std::move(store)));
  agent->bulk_thread_ = std::move(bulk);
  agent->tcp_source_ = std::move(tcp);
  WSYNC_TRY(agent->listen());
  // One coordinator for each folder: a second one would end the first at its next decision. Asked
  // after the address, which is what people know a coordinator by.
  const std::string lock_path = (state / "coordinator.lock").string();
  auto lock = config.take_over ? LockFile::seize(lock_path) : LockFile::acquire(lock_path);
  if (!lock) return fail(lock.error().with_context("the state of fleet '" + config.fleet + "'"));
  agent->state_lock_.emplace(std::move(*lock));
  if (before) log_record(*before, config.deadlines.gather);
  if (auto opened = agent->open_pages(); !opened) {
    // Taken over, the fleet is ours already: it is not left alone for want of its pages.
    if (!config.take_over) return fail(std::move(opened).error());
    log_warning("no /metrics, /healthz, /readyz and page: {}", opened.error().message());
  }
  return agent;
}

TrainerAgent::TrainerAgent(Loop& loop, const config::TrainerConfig& config,
                           TrainerAgentCallbacks callbacks, CoordinatorOptions options,
                           std::unique_ptr<DecisionStore> store)
    : loop_(loop),
      config_(config),
      callbacks_(std::move(callbacks)),
      coordinator_(std::move(options)),
      store_(std::move(store)),
      snapshotter_(std::make_shared<Snapshotter>(SnapshotterOptions{.arenas = config.arenas})),
      trace_(config.trace_file, config.trace_spans),
      timer_(loop, [this] { step(CoordinatorTick{}); }),
      progress_timer_(loop, [this] { report_progress(); }),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "snapshot"})),
      store_worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "decisions"})),
      questions_(loop, [this](const std::string& peer, std::uint64_t request,
                              const control::Message& question) {
        control::Envelope envelope;
        envelope.fence = coordinator_.fence();
        envelope.request = request;
        return router_->send(peer, envelope, question);
      }) {}

Result<> TrainerAgent::listen() {
  // The control address first: it is what tells a second coordinator that one is running.
  control::RouterCallbacks callbacks;
  callbacks.on_message = [this](const std::string& peer, control::Envelope envelope,
                                control::Message message) {
    on_message(peer, std::move(envelope), std::move(message));
  };
  callbacks.on_lost = [this](const std::string& peer, const Error& error) {
    if (const std::string name = sidecar_of(peer); !name.empty()) {
      log_warning("sidecar {} lost: {}", name, error.message());
      journal_.incident(fmt::format("sidecar {} lost: {}", name, error.message()), now());
    }
    step(PeerLost{.peer = peer, .reason = error.message()});
    questions_.lost(peer, error.message());
  };
  callbacks.on_bad_message = [](const std::string& peer, const Error& error) {
    log_warning("message from {} dropped: {}", peer, error.message());
  };
  callbacks.heartbeat = [this] {
    control::Envelope envelope;
    envelope.fence = coordinator_.fence();
    control::Heartbeat heartbeat;
    heartbeat.target = coordinator_.target();
    return std::pair(std::move(envelope), std::move(heartbeat));
  };
  callbacks.on_address_taken = [this](const std::string& by) { step(Replaced{.by = by}); };
  auto router = control::listen_zmq(loop_,
                                    {.address = config_.listen,
                                     .times = {.heartbeat_interval = config_.heartbeat.interval,
                                               .silence_deadline = config_.heartbeat.deadline},
                                     .take_over = config_.take_over},
                                    std::move(callbacks));
  if (!router) return fail(router.error().with_context("coordinator address " + config_.listen));
  router_ = std::move(*router);
  memfd_source_ = WSYNC_TRY(transport::memfd::MemfdSource::listen(
      {.path = config_.run_dir + "/trainer-host.sock",
       .claim = config_.take_over ? Claim::kTakeOver : Claim::kIfFree},
      [this](std::function<void()> task, std::source_location made) {
        loop_.post(std::move(task), made);
      }));
  progress_timer_.start_repeating(kProgressInterval);
  return {};
}

Result<> TrainerAgent::open_pages() {
  if (config_.http_address.empty()) return {};
  metrics::StatusFacts facts;
  facts.readings = [this] {
    return fleet_readings(coordinator_, {.queued = queued_.size(),
                                         .arena_bytes = snapshotter_->arena_bytes(),
                                         .wire_bytes = tcp_wire_bytes(),
                                         .min_replicas = config_.min_replicas});
  };
  facts.readiness = [this] { return readiness(); };
  const auto shown = [this]() -> page::PageFacts {
    const metrics::Readiness ready = readiness();
    const TimePoint at = now();
    return {.status = status(),
            .ready = ready.ready,
            .not_ready = ready.reason,
            .rounds = history_.rounds(at),
            .at = at};
  };
  pages_ = WSYNC_TRY(metrics::StatusPages::create(
      loop_,
      {.address = config_.http_address, .take_over = config_.take_over, .role = "coordinator"},
      metrics_.registry(), std::move(facts),
      [shown](Asker& asker) { return page::page_routes(asker, shown); }));
  return {};
}

TrainerAgent::~TrainerAgent() {
  pages_.reset();
  if (snapshotting_) snapshotting_->stop.request_stop();
  *alive_ = false;
  store_worker_->stop();
  worker_->stop();
  trace_.write();
}

std::uint64_t TrainerAgent::tcp_wire_bytes() const {
  return tcp_source_ ? tcp_source_->counters().wire_bytes : 0;
}

// ---- the coordinator ----

std::string TrainerAgent::sidecar_of(const std::string& peer) const {
  for (const auto& [name, member] : coordinator_.roster().members())
    if (member.peer == peer) return name;
  return {};
}

void TrainerAgent::step(decltype(CoordinatorEvent::what) what) {
  for (CoordinatorCommand& command : coordinator_.step({.now = now(), .what = std::move(what)}))
    carry_out(std::move(command));
  arm_timer();
  pump_jobs();
}

void TrainerAgent::arm_timer() {
  if (const auto wake = coordinator_.next_wake(); wake)
    timer_.start_at(*wake);
  else
    timer_.stop();
}

void TrainerAgent::store(const Store& command) {
  auto stored = std::make_shared<Stored>(Stored{.token = command.token});
  const auto submitted = store_worker_->submit(
      [store = store_, stored, record = command.record] {
        auto written = store->write(record);
        if (written) {
          stored->record = std::move(*written);
        } else {
          stored->failure = written.error().message();
          stored->fenced = written.error().code() == ErrorCode::kFenced ||
                           written.error().code() == ErrorCode::kRefused;
        }
      },
      [this, alive = alive_, stored] {
        if (*alive) step(std::move(*stored));
      });
  if (submitted) return;
  stored->failure = submitted.error().message();
  loop_.post([this, alive = alive_, stored] {
    if (*alive) step(std::move(*stored));
  });
}

void TrainerAgent::incident(const std::string& text) {
  log_warning("{}", text);
  journal_.incident(text, now());
}

std::optional<Error> TrainerAgent::why_stopped() const {
  const std::optional<Stopped>& stopped = coordinator_.stopped();
  if (!stopped) return std::nullopt;
  return Error(stopped->code, "this coordinator has stopped: " + stopped->reason);
}

void TrainerAgent::carry_out(CoordinatorCommand command) {
  if (auto* sent = std::get_if<SendTo>(&command)) {
    if (const std::string name = sidecar_of(sent->peer); !name.empty())
      trace_.sent(name, sent->message, now());
    if (const auto result = router_->send(sent->peer, sent->envelope, sent->message); !result) {
      if (result.error().code() == ErrorCode::kInvalidInput)  // ours: it cannot be encoded
        log_error("send to {}: {}", sent->peer, result.error().message());
      else
        log_debug("send to {}: {}", sent->peer, result.error().message());
    }
  } else if (auto* record = std::get_if<Store>(&command)) {
    store(*record);
  } else if (auto* told = std::get_if<Incident>(&command)) {
    incident(told->text);
    if (told->refusal) complaint_ = told->text;
  } else if (auto* ready = std::get_if<Ready>(&command)) {
    log_info("fleet {}: fence epoch {} claimed; target {}", ready->fence.fleet.to_string(),
             ready->fence.epoch, ready->target.none() ? "none yet" : ready->target.to_string());
    loop_.post([this, target = ready->target] { callbacks_.on_ready(target); });
  } else if (auto* phase = std::get_if<PhaseEntered>(&command)) {
    const auto it = running_.find(phase->request);
    if (it == running_.end()) return;
    it->second->progress.phase = phase->phase;
    trace_.entered(phase->request, it->second->version, phase->phase, now());
    journal_.entered(phase->request, phase->phase, now());
    history_.entered(phase->request, phase->phase, now());
    metrics_.entered(phase->request, phase->phase, now());
    if (it->second->job.on_phase) it->second->job.on_phase(phase->phase);
  } else if (auto* done = std::get_if<RoundDone>(&command)) {
    end_round(*done);
  } else if (auto* began = std::get_if<RollbackBegan>(&command)) {
    journal_.rollback_began(began->request, began->to, now());
    history_.rollback_began(began->request, began->to, now());
  } else if (auto* back = std::get_if<RollbackDone>(&command)) {
    end_rollback(std::move(*back));
  } else if (auto* cancel = std::get_if<CancelDone>(&command)) {
    cancelled_ = std::move(cancel->reply);
  } else if (auto* drop = std::get_if<DropVersion>(&command)) {
    memfd_source_->withdraw(drop->version, "the coordinator has dropped this version");
    if (tcp_source_)
      tcp_source_->withdraw(drop->version, "the coordinator has dropped this version");
  } else if (auto* stopped = std::get_if<Stopped>(&command)) {
    log_error("{}", stopped->reason);
    loop_.post([this, alive = alive_, code = stopped->code, reason = stopped->reason] {
      if (!*alive) return;
      pages_
          .reset();  // what it knows of the fleet stands still, and its successor may want the port
      callbacks_.on_stopped(Error(code, reason));
    });
  }
}

void TrainerAgent::end_round(const RoundDone& done) {
  const auto it = running_.find(done.request);
  if (it == running_.end()) return;
  const std::shared_ptr<Active> active = it->second;
  running_.erase(it);
  trace_.ended(done.request, now());
  UpdateEnd end = done.reply.ok ? UpdateEnd::kCommitted : UpdateEnd::kFailed;
  if (done.superseded) end = UpdateEnd::kSuperseded;
  if (done.cancelled) end = UpdateEnd::kCancelled;
  record_end(done.request, end, done.reply);
  metrics_.ended(done, now());
  if (done.reply.ok)
    log_info("{} is served", done.reply.version.to_string());
  else
    log_warning("the publish of {} failed: {}", done.reply.version.to_string(), done.reply.reason);
  PublishResult result{.superseded = done.superseded, .reply = done.reply, .error = {}};
  if (done.cancelled)
    result.error =
        Error(ErrorCode::kCancelled,
              fmt::format("{} was {}", done.reply.version.to_string(), done.reply.reason));
  if (active->job.on_done) active->job.on_done(std::move(result));
}

void TrainerAgent::end_rollback(RollbackDone done) {
  journal_.rollback_ended(done.request, done.reply, now());
  history_.ended(done.request,
                 done.reply.ok        ? "served"
                 : done.reply.partial ? "partial"
                                      : "failed",
                 done.reply.reason, done.reply.outcomes, now());
  metrics_.rolled_back(done.reply);
  if (done.reply.ok)
    log_info("rolled back from {} to {}", done.reply.from.to_string(), done.reply.to.to_string());
  else
    log_warning("rollback: {}", done.reply.reason);
  if (auto entry = rollbacks_.extract(done.request); !entry.empty())
    entry.mapped()(std::move(done.reply));
}

// ---- publish ----

void TrainerAgent::publish(PublishJob job) {
  auto active = std::make_shared<Active>();
  active->request = next_request_++;
  active->job = std::move(job);
  active->begun = now();
  active->deadline = active->begun + config_.deadlines.publish;
  queued_.push_back(std::move(active));
  pump_jobs();
}

void TrainerAgent::pump_jobs() {
  if (snapshotting_ || queued_.empty()) return;
  const std::shared_ptr<Active> active = queued_.front();
  if (const auto stopped = why_stopped()) {
    queued_.erase(queued_.begin());
    fail_job(active, *stopped);
    return;
  }
  if (const std::string why = why_not_ready(); !why.empty()) {
    if (now() < active->deadline) {
      if (!active->told_why && now() >= active->begun + kTellWhy) {
        active->told_why = true;
        const std::string text =
            fmt::format("a publish waits, {} s at most (deadlines.publish): {}",
                        config_.deadlines.publish.count() / 1000, why);
        log_warning("{}", text);
        journal_.incident(text, now());
      }
      return;
    }
    queued_.erase(queued_.begin());
    fail_job(active, Error(ErrorCode::kDeadline,
                           fmt::format("after {} s (deadlines.publish) {}",
                                       config_.deadlines.publish.count() / 1000, why)));
    return;
  }
  queued_.erase(queued_.begin());
  if (now() >= active->deadline) {
    fail_job(active, Error(ErrorCode::kDeadline,
                           "its deadline (deadlines.publish) came while the snapshot before it was "
                           "taken"));
    return;
  }
  const Result<Version> version = coordinator_.next_version(active->job.step);
  if (!version) {
    fail_job(active, version.error());
    return;
  }
  take_snapshot(active, *version);
}

std::string TrainerAgent::why_not_ready() const {
  const std::size_t joined = coordinator_.roster().joined_count();
  const std::uint32_t needed = std::max(1U, config_.min_sidecars);  // they have the fence
  if (coordinator_.phase() >= CoordinatorPhase::kReady && joined >= config_.min_sidecars) return {};
  std::string why =
      fmt::format("{} of at least {} sidecars have joined {}", joined, needed, address());
  if (const std::vector<std::string> names = coordinator_.awaited(); !names.empty())
    why += fmt::format(
        "; the record names sidecars that have not come, for which it waits {} s at "
        "most (deadlines.gather): {}",
        config_.deadlines.gather.count() / 1000, fmt::join(names, ", "));
  if (!complaint_.empty()) why += "; " + complaint_;
  return why;
}

void TrainerAgent::give_up(std::uint64_t step) {
  const auto found =
      std::ranges::find(queued_, step, [](const auto& job) { return job->job.step; });
  if (found != queued_.end()) {
    const std::shared_ptr<Active> active = *found;
    queued_.erase(found);
    const std::string why = why_not_ready();
    fail_job(active, Error(ErrorCode::kDeadline,
                           why.empty() ? "the snapshot before it is still being taken" : why));
  } else if (snapshotting_ && snapshotting_->job.step == step &&
             snapshotting_->snapshot_bytes.load(std::memory_order_relaxed) == 0) {
    snapshotting_->stop.request_stop();
  }
}

void TrainerAgent::take_snapshot(const std::shared_ptr<Active>& active, const Version& version) {
  snapshotting_ = active;
  active->version = version;
  journal_.began(active->request, version, now());
  history_.began(active->request, version, now());
  SnapshotRequest request;
  request.fence_epoch = coordinator_.fence().epoch;
  request.fence_run_id = coordinator_.fence().run_id;
  request.version = version;
  request.bucket_bytes = config_.bucket_bytes;
  request.deadline = active->deadline;
  request.copy_deadline = active->deadline;
  request.stop = active->stop.get_token();
  request.done_bytes = &active->snapshot_bytes;
  request.total_bytes = &active->model_bytes;
  auto outcome = std::make_shared<Result<std::shared_ptr<const Snapshot>>>();
  const auto submitted = worker_->submit(
      [active, request, outcome, snapshotter = snapshotter_] {
        const TimePoint begin = now();
        Result<std::unique_ptr<WeightSource>> source = active->job.open();
        if (!source) {
          *outcome = fail(source.error());
          return;
        }
        *outcome = snapshotter->take(**source, request);
        active->snapshot_ns = static_cast<std::uint64_t>((now() - begin).count());
      },
      [this, active, outcome] { on_snapshot(active, std::move(*outcome)); });
  if (submitted) return;
  snapshotting_.reset();
  fail_job(active, submitted.error());
}

void TrainerAgent::on_snapshot(const std::shared_ptr<Active>& active,
                               Result<std::shared_ptr<const Snapshot>> snapshot) {
  snapshotting_.reset();
  if (active->cancelled)
    snapshot = fail(ErrorCode::kCancelled,
                    fmt::format("{} was cancelled on request while its snapshot was taken",
                                active->version.to_string()));
  if (const auto stopped = why_stopped()) snapshot = fail(*stopped);
  if (!snapshot) {
    fail_job(active, snapshot.error());
    pump_jobs();
    return;
  }
  active->snapshot = *snapshot;
  const Snapshot& taken = **snapshot;
  active->version = taken.version();
  const TimePoint at = now();
  metrics_.snapshot_taken(taken.plan()->arena_bytes(),
                          std::chrono::nanoseconds(active->snapshot_ns));
  trace_.snapshot_taken(taken, at + -std::chrono::nanoseconds(active->snapshot_ns), at);
  if (active->job.on_snapshotted)
    active->job.on_snapshotted(taken.version(), std::chrono::nanoseconds(active->snapshot_ns));
  offer(active->snapshot);
  ByteWriter layout;
  taken.manifest()->encode(layout);
  running_[active->request] = active;
  journal_.snapshot_taken(active->request, taken.version(), taken.plan()->arena_bytes());
  history_.snapshot_taken(active->request, taken.version(), at);
  step(PublishRequested{.request = active->request,
                        .version = taken.version(),
                        .layout_digest = taken.manifest()->layout_digest(),
                        .content_digest = taken.identity().content,
                        .layout = std::move(layout).take(),
                        .bucket_bytes = taken.plan()->bucket_bytes(),
                        .arena_bytes = taken.plan()->arena_bytes(),
                        .snapshot_ns = active->snapshot_ns,
                        .deadline = active->deadline});
  active->snapshot.reset();  // the offers hold it from here on
}

void TrainerAgent::offer(const std::shared_ptr<const Snapshot>& snapshot) {
  transport::Offer offer;
  const ArenaIdentity& identity = snapshot->identity();
  offer.key = {.fence = {.epoch = identity.fence_epoch, .run_id = identity.fence_run_id},
               .version = snapshot->version(),
               .layout = identity.layout};
  const BucketPlan& plan = *snapshot->plan();
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    offer.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  offer.data = snapshot->data();
  offer.hold = snapshot;
  offer.share = [snapshot] { return snapshot->share(); };
  if (tcp_source_) tcp_source_->offer(offer);
  memfd_source_->offer(std::move(offer));
}

void TrainerAgent::fail_job(const std::shared_ptr<Active>& active, const Error& why) {
  log_warning("publish failed: {}", why.message());
  metrics_.failed(why.code());
  control::PushReply reply;
  reply.reason = why.message();
  record_end(active->request,
             why.code() == ErrorCode::kCancelled ? UpdateEnd::kCancelled : UpdateEnd::kFailed,
             reply);
  if (active->job.on_done)
    active->job.on_done({.superseded = false, .reply = std::move(reply), .error = why});
}

}  // namespace wsync::publish
