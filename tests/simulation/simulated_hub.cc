#include "tests/simulation/simulated_hub.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"

namespace wsync::simulation {

using agent::AttachedRank;
using agent::LoadRank;
using agent::MappingState;
using agent::RegistryDevices;
using reload::EngineId;

namespace {

constexpr std::uint64_t kBuckets = 3;

std::string gpu(std::uint32_t device) { return fmt::format("GPU-{}", device); }

RegistryDevices registry_devices(HubDevices devices, std::uint32_t count) {
  RegistryDevices out;
  if (devices == HubDevices::kUnified) return out;
  out.kind = DeviceKind::kCuda;
  for (std::uint32_t d = 0; d < count; ++d)
    out.devices.push_back({.uuid = gpu(d), .name = fmt::format("GPU {}", d)});
  return out;
}

}  // namespace

void HubStatistics::add(const HubStatistics& other) {
  runs += other.runs;
  runs_failed += other.runs_failed;
  allocations += other.allocations;
  frees += other.frees;
  connects += other.connects;
  drops += other.drops;
  not_begun += other.not_begun;
}

SimulatedHub::SimulatedHub(Schedule& schedule, HubDevices devices, std::uint32_t ranks_of_sidecar,
                           HubHooks hooks)
    : schedule_(schedule), devices_(devices), ranks_(ranks_of_sidecar), hooks_(std::move(hooks)) {
  restart();
}

void SimulatedHub::restart() {
  ++life_;
  registry_ = std::make_unique<EngineRegistry>(registry_devices(devices_, ranks_));
  queue_ = std::make_unique<LoadQueue>(on_devices());
  buffers_ = std::make_unique<DeviceBuffers>(devices_ != HubDevices::kFreedBuffers);
  connections_.clear();
  versions_.clear();
  copies_.clear();
  run_.reset();
}

void SimulatedHub::later(std::chrono::nanoseconds delay, std::function<void()> action) {
  schedule_.after(delay, [this, life = life_, action = std::move(action)] {
    if (life == life_) hooks_.run(action);
  });
}

void SimulatedHub::check(const Result<>& moved) {
  if (!moved) hooks_.violation("hub: " + moved.error().message());
  check();
}

void SimulatedHub::check() {
  for (const Result<>& rules :
       {registry_->invariants(), queue_->invariants(), buffers_->invariants()})
    if (!rules) hooks_.violation("hub: " + rules.error().message());
}

// ---- links ----

control::EngineHello SimulatedHub::hello_of(const EngineGroup& group, std::uint32_t device) const {
  control::EngineHello hello;
  hello.world_size = static_cast<std::uint32_t>(group.ranks().size());
  hello.device = device;
  if (on_devices()) hello.gpu = gpu(device);
  return hello;
}

std::optional<std::string> SimulatedHub::refusal_of(const EngineGroup& group, std::uint32_t rank,
                                                    std::uint32_t device) const {
  control::Envelope envelope;
  envelope.replica = group.name();
  envelope.rank = rank;
  const auto refusal = registry_->refusal_of(envelope, hello_of(group, device), {}, nullptr);
  return refusal ? std::optional(refusal->reason) : std::nullopt;
}

EngineGroup* SimulatedHub::group_of(const std::string& replica, std::uint32_t rank) const {
  const AttachedRank* attached = registry_->find(replica, rank);
  return attached == nullptr ? nullptr : connections_.at(attached->id).group;
}

void SimulatedHub::attached(EngineGroup& group, std::uint32_t device,
                            const reload::RankAttached& what) {
  const EngineId id{next_engine_++};
  registry_->attach({.id = id,
                     .replica = group.name(),
                     .rank = what.rank,
                     .world_size = static_cast<std::uint32_t>(group.ranks().size()),
                     .device = device,
                     .tensors = std::make_shared<const std::vector<control::EngineTensor>>()});
  connections_[id] = {
      .group = &group, .rank = what.rank, .link = group.ranks()[what.rank].link, .prepared = {}};
  if (devices_ == HubDevices::kKeptBuffers) {
    check(buffers_->exported(id, std::nullopt));
    group.map_buffers(what.rank);
  }
  check();
  for (const auto& [version, ready] : versions_) prepare(id, version);
  hooks_.notify(group.name(), what);
}

std::optional<EngineId> SimulatedHub::id_of(const EngineGroup& group, std::uint32_t rank) const {
  for (const auto& [id, connection] : connections_)
    if (connection.group == &group && connection.rank == rank) return id;
  return std::nullopt;
}

// Common part of every way in which a connection can end.
void SimulatedHub::forget(EngineId id) {
  const auto connection = connections_.extract(id);
  (void)registry_->detach(id);
  queue_->engine_lost(connection.mapped().group->name(), id);
  leave_run(id, Error(ErrorCode::kPeerLost, "its connection has ended"));
}

void SimulatedHub::detached(EngineGroup& group, std::uint32_t rank) {
  const auto id = id_of(group, rank);
  if (!id) return;
  forget(*id);
  buffers_->disconnected(*id);
  check();
  later(std::chrono::nanoseconds(0), [this] { free_unused(); });
  hooks_.notify(group.name(), reload::RankDetached{.rank = rank});
}

void SimulatedHub::handle(EngineGroup& group, std::uint32_t rank, const control::Message& message,
                          std::uint64_t request) {
  const auto id = id_of(group, rank);
  if (!id) return hooks_.violation("a rank that is not attached speaks");
  if (const auto* done = std::get_if<control::BucketAck>(&message)) {
    if (queue_->is_current(group.name(), request)) handle_bucket_ack(*id, done->bucket);
  } else if (const auto* loaded = std::get_if<control::Loaded>(&message)) {
    buffers_->answered(*id, request);
    if (loaded->failure.empty()) queue_->loaded(group.name(), request, rank);
    check();
    free_unused();
    hooks_.notify(group.name(), reload::RankLoaded{.rank = rank,
                                                   .request = request,
                                                   .version = loaded->version,
                                                   .bytes = loaded->bytes,
                                                   .failure = loaded->failure});
  } else if (const auto* committed = std::get_if<control::Committed>(&message)) {
    hooks_.notify(group.name(), reload::RankCommitted{.rank = rank,
                                                      .request = request,
                                                      .version = committed->version,
                                                      .failure = committed->failure});
  } else if (std::holds_alternative<control::Paused>(message)) {
    hooks_.notify(group.name(), reload::RankPaused{.rank = rank, .request = request});
  } else {
    hooks_.notify(group.name(), reload::RankResumed{.rank = rank, .request = request});
  }
}

// The run gives up an engine. Its process notices later and keeps the buffers mapped until then,
// which nobody waits for.
void SimulatedHub::drop(EngineId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  ++statistics_.drops;
  const Connection connection = found->second;
  forget(id);
  if (buffers_->mapping_of(id) == MappingState::kMapped) {
    buffers_->disconnected(id);
    later({}, [this] { free_unused(); });
  }
  check();
  connection.group->drop_link(connection.rank);
  hooks_.notify(connection.group->name(), reload::RankDetached{.rank = connection.rank});
}

// ---- versions ----

void SimulatedHub::add_version(const Version& version) {
  versions_[version] = on_devices() ? std::nullopt : std::optional(Result<>{});
  if (on_devices()) {
    connect();
    const bool unusable = hooks_.fault(0.005);
    later(schedule_.micros(500, 15'000), [this, version, unusable] {
      const auto found = versions_.find(version);
      if (found == versions_.end()) return;
      found->second =
          unusable ? fail(ErrorCode::kResourceExhausted, "it cannot be registered") : Result<>{};
      advance_all();
    });
  }
  for (const auto& [id, connection] : connections_) prepare(id, version);
}

void SimulatedHub::remove_version(const Version& version) {
  if (versions_.erase(version) == 0) return;
  for (auto& [id, connection] : connections_) connection.prepared.erase(version);
  execute(queue_->release(version));
}

bool SimulatedHub::can_use(const Version& version) const {
  const auto found = versions_.find(version);
  return found == versions_.end() || !found->second || found->second->has_value();
}

void SimulatedHub::prepare(EngineId id, const Version& version) {
  const bool cannot = hooks_.fault(0.003);
  later(schedule_.micros(100, 15'000), [this, id, version, cannot] {
    const auto found = connections_.find(id);
    if (found == connections_.end() || !versions_.contains(version)) return;
    found->second.prepared[version] =
        cannot ? fail(ErrorCode::kRefused, "it cannot take the version") : Result<>{};
    advance(found->second.group->name());
  });
}

// ---- loads ----

void SimulatedHub::begin(const std::string& replica, const reload::BeginLoad& load, Digest bytes,
                         const Lease& lease, bool spoiled) {
  copies_[replica] = {.bytes = bytes, .lease = lease, .spoiled = spoiled};
  execute(queue_->begin(replica, load));
  advance(replica);
}

void SimulatedHub::cancel(const std::string& replica, std::uint64_t request) {
  execute(queue_->cancel(replica, request));
  free_unused();
}

void SimulatedHub::expect_more(bool expected) {
  queue_->expect_more(expected);
  start_run();
}

LoadNeeds SimulatedHub::needs_of(const std::string& replica, const Version& version) const {
  LoadNeeds needs;
  const auto found = versions_.find(version);
  needs.staged = found != versions_.end();
  needs.whole = registry_->whole(replica);
  needs.devices = needs.staged ? found->second : std::nullopt;
  for (const AttachedRank& attached : registry_->ranks_of(replica)) {
    LoadNeeds::Rank rank{.rank = {.engine = attached.id,
                                  .rank = attached.rank,
                                  .device = reload::DeviceIndex{attached.device}},
                         .prepared = std::nullopt};
    const auto& prepared = connections_.at(attached.id).prepared;
    if (const auto known = prepared.find(version); known != prepared.end())
      rank.prepared = known->second;
    needs.ranks.push_back(std::move(rank));
  }
  needs.connected = buffers_->connected();
  needs.buffers = buffers_->held();
  return needs;
}

void SimulatedHub::advance(const std::string& replica) {
  if (const auto version = queue_->waiting_for(replica))
    execute(queue_->advance(replica, needs_of(replica, *version)));
}

void SimulatedHub::advance_all() {
  for (const std::string& replica : queue_->waiting()) advance(replica);
}

// Notifies later, as the hub does: the state machine may still be inside the step that sent the
// command.
void SimulatedHub::notify_later(const std::string& replica, staging::RankEvent event) {
  later(std::chrono::nanoseconds(0),
        [this, replica, event = std::move(event)] { hooks_.notify(replica, event); });
}

void SimulatedHub::execute(const LoadCommands& commands) {
  for (const LoadCommand& command : commands)
    std::visit([this](const auto& one) { execute(one); }, command);
  check();
}

void SimulatedHub::execute(const SendLoad& command) {
  const Copy copy = copies_.at(command.replica);
  for (const LoadRank& seat : command.ranks) {
    const Connection& connection = connections_.at(seat.engine);
    if (!connection.prepared.contains(command.version))
      hooks_.violation("Load is sent to a rank that was not prepared");
    const bool brings = devices_ == HubDevices::kFreedBuffers;
    if (brings) check(buffers_->exported(seat.engine, command.request));
    connection.group->load(seat.rank, {.request = command.request,
                                       .version = command.version,
                                       .bytes = copy.bytes,
                                       .lease = copy.lease,
                                       .spoiled = copy.spoiled && seat.rank == 0,
                                       .buckets = on_devices() ? kBuckets : 0,
                                       .brings_buffers = brings});
  }
  if (on_devices()) later(std::chrono::nanoseconds(0), [this] { start_run(); });
}

void SimulatedHub::execute(const SendAbort& command) {
  for (const AttachedRank& attached : registry_->ranks_of(command.replica)) {
    Connection& connection = connections_.at(attached.id);
    connection.group->cancel_load(attached.rank, command.version);
    connection.prepared.erase(command.version);
    if (versions_.contains(command.version)) prepare(attached.id, command.version);
  }
}

void SimulatedHub::execute(const ReportLoadFailed& command) {
  if (registry_->find(command.replica, command.rank) == nullptr) return;
  notify_later(command.replica, reload::RankLoaded{.rank = command.rank,
                                                   .request = command.request,
                                                   .version = command.version,
                                                   .failure = command.why});
}

void SimulatedHub::execute(const ReportLoadNotBegun& command) {
  ++statistics_.not_begun;
  notify_later(command.replica,
               reload::LoadNotBegun{.request = command.request, .why = command.why});
}

void SimulatedHub::execute(const LeaveRun& command) { leave_run(command.engine, command.reason); }

void SimulatedHub::execute(const ConnectDevices& /*command*/) { connect(); }

void SimulatedHub::execute(const AllocateBuffers& /*command*/) {
  if (!buffers_->begin_allocate()) return;
  ++statistics_.allocations;
  const bool ok = !hooks_.fault(0.05);
  later(schedule_.micros(1'000, 20'000), [this, ok] {
    check(buffers_->allocated(ok));
    execute(
        queue_->made(DeviceNeed::kBuffers,
                     ok ? Result<>{} : fail(ErrorCode::kResourceExhausted, "too little is free")));
    advance_all();
    free_unused();
  });
}

// ---- the pipeline ----

void SimulatedHub::start_run() {
  if (on_devices() && !buffers_->connecting()) execute(queue_->start_run(schedule_.now()));
}

void SimulatedHub::execute(const StartRun& command) {
  ++statistics_.runs;
  run_ =
      Run{.number = ++runs_, .job = command, .bucket = 0, .engines = {}, .owing = {}, .lost = {}};
  for (const RunSeat& seat : command.seats) run_->engines.insert(seat.rank.engine);
  later(command.deadline - schedule_.now(), [this, number = runs_] {
    if (run_ && run_->number == number)
      finish_run(Error(ErrorCode::kDeadline, "the run has not ended in its time"));
  });
  begin_bucket();
}

void SimulatedHub::begin_bucket() {
  later(schedule_.micros(300, 3'000), [this, number = runs_] {
    if (!run_ || run_->number != number) return;
    if (hooks_.fault(0.01))
      return finish_run(Error(ErrorCode::kIo, "a copy to a device has failed"));
    if (!buffers_->held()) hooks_.violation("a bucket is copied while there are no buffers");
    const std::uint64_t bucket = run_->bucket;
    run_->owing = run_->engines;
    const std::set<EngineId> engines = run_->engines;
    for (const EngineId id : engines) {
      const auto seat = queue_->seat_of(id);
      if (!seat)
        leave_run(id, Error(ErrorCode::kPeerLost, "it is gone"));
      else if (!hooks_.fault(0.003))  // otherwise the message is lost
        connections_.at(id).group->bucket_ready(seat->rank.rank, seat->request, bucket);
    }
    if (run_ && run_->number == number)
      later(run_->job.bucket_ack_deadline, [this, number, bucket] {
        if (run_ && run_->number == number) drop_silent(bucket);
      });
  });
}

void SimulatedHub::handle_bucket_ack(EngineId id, std::uint64_t bucket) {
  if (!run_ || bucket != run_->bucket || run_->owing.erase(id) == 0 || !run_->owing.empty()) return;
  if (++run_->bucket < kBuckets) return begin_bucket();
  finish_run(std::nullopt);
}

void SimulatedHub::leave_run(EngineId id, const Error& reason) {
  if (!run_ || run_->engines.erase(id) == 0) return;
  run_->lost.emplace_back(id, reason);
  if (run_->engines.empty())
    return finish_run(Error(ErrorCode::kPeerLost, "every engine of the group is lost"));
  if (run_->owing.erase(id) == 0 || !run_->owing.empty()) return;
  if (++run_->bucket < kBuckets) return begin_bucket();
  finish_run(std::nullopt);
}

void SimulatedHub::drop_silent(std::uint64_t bucket) {
  if (run_->bucket != bucket) return;
  const std::set<EngineId> silent = run_->owing;
  for (const EngineId id : silent) drop(id);
}

// The run ends now. Its end is reported later, as from the runner's thread.
void SimulatedHub::finish_run(const std::optional<Error>& failure) {
  Run run = *std::exchange(run_, std::nullopt);
  if (failure) ++statistics_.runs_failed;
  const Result<LoadQueue::LostEngines> outcome =
      failure ? Result<LoadQueue::LostEngines>(fail(*failure)) : std::move(run.lost);
  // A failed run destroys streams and communicators.
  check(buffers_->run_finished(!failure));
  later(schedule_.micros(0, 300), [this, outcome] {
    execute(queue_->run_finished(outcome));
    connect();
    start_run();
    free_unused();
  });
}

// ---- the devices ----

void SimulatedHub::connect() {
  if (!on_devices() || !buffers_->begin_connect(run_.has_value())) return;
  ++statistics_.connects;
  const bool ok = !hooks_.fault(0.1);
  later(schedule_.micros(2'000, 40'000), [this, ok] {
    check(buffers_->connect_finished(ok));
    execute(queue_->made(
        DeviceNeed::kConnection,
        ok ? Result<>{} : fail(ErrorCode::kResourceExhausted, "the devices cannot be connected")));
    advance_all();
    start_run();
  });
}

void SimulatedHub::free_unused() {
  if (!buffers_->begin_free(queue_->needs_buffers() || run_)) return;
  ++statistics_.frees;
  check_unmapped("are being freed");
  const bool ok = !hooks_.fault(0.05);
  later(schedule_.micros(100, 10'000), [this, ok] {
    check_unmapped("are freed");
    check(buffers_->freed(ok));
    advance_all();
  });
}

// Asks the engines themselves instead of the hub's records, which could be wrong.
void SimulatedHub::check_unmapped(const char* when) {
  const auto check_one = [&](const Connection& connection) {
    if (connection.group->ranks()[connection.rank].mapped_link == connection.link)
      hooks_.violation(fmt::format("buffers {} while rank {} of '{}' has them mapped", when,
                                   connection.rank, connection.group->name()));
  };
  for (const auto& [id, connection] : connections_) check_one(connection);
}

}  // namespace wsync::simulation
