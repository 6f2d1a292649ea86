// The processes and the network of the world, and its execution of the machines' commands.
#include "tests/simulation/world.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/control/codec.h"
#include "tests/simulation/world_facts.h"

namespace wsync::simulation {

using std::chrono::milliseconds;

namespace {

coordinator::CoordinatorOptions coordinator_options(
    std::size_t c, std::uint64_t life, std::optional<coordinator::CoordinatorRecord> record,
    std::uint64_t run_id) {
  coordinator::CoordinatorOptions options;
  options.run_id = {run_id, life};
  options.record = std::move(record);
  options.new_fleet_id = {.high = 1 + c, .low = run_id};
  options.gather_recorded = milliseconds(400);
  options.min_sidecars = 2;
  options.boot_id = "host-0";
  options.gather = milliseconds(100);
  options.hello = milliseconds(300);
  options.announce = milliseconds(300);
  options.stage = milliseconds(1'500);
  options.pause = milliseconds(200);
  options.load = milliseconds(300);
  options.whole_switch = milliseconds(1'500);
  options.max_paused = static_cast<std::uint32_t>(run_id % 4);
  if (run_id % 3 == 0) {
    options.canary = kCanary;
    options.canary_time = milliseconds(run_id % 2 == 0 ? 2'000 : 0);
  }
  options.forget_after = milliseconds(run_id % 3 * 60);
  return options;
}

staging::SidecarOptions sidecar_options(std::size_t s, const std::string& name,
                                        bool is_on_trainers_host, std::uint64_t life) {
  staging::SidecarOptions options;
  options.name = name;
  options.pid = static_cast<std::uint32_t>(life);
  options.boot_id = is_on_trainers_host ? "host-0" : fmt::format("host-{}", s);
  options.transports = {{"memfd", ""}, {"tcp", fmt::format("s{}", s)}};
  options.versions_held = s == 0 ? 3 : 2;
  options.hello_retry = milliseconds(300);
  options.forget_after = milliseconds((life + s) % 3 * 100);
  options.pause = milliseconds(200);  // as the coordinators say
  options.load = milliseconds(300);
  options.replica.rank_return = milliseconds(300);
  options.replica.commit = milliseconds(200);
  options.replica.retry = milliseconds(150);
  options.replica.retry_max = milliseconds(2'000);
  return options;
}

}  // namespace

World::World(WorldOptions options)
    : options_(options),
      schedule_(options.seed),
      coordinators_(options.coordinators),
      sidecars_(options.sidecars + options.late + (options.twins ? 1U : 0U)) {
  intensity_ = 0.1 + 0.3 * static_cast<double>(schedule_.pick(0, 9));
  if (options_.twins) twin_ = sidecars_.size() - 1;
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    SidecarProcess& process = sidecars_[s];
    process.name = fmt::format("s{}", is_twin(s) ? schedule_.pick(0, options_.sidecars - 1) : s);
    if (is_twin(s)) forced_.insert(process.name);
    process.present = process.was_there = s < options_.sidecars;
    new_peer(s);
    make_hub(s);
    make_groups(s);
  }
}

void WorldStatistics::add(const WorldStatistics& other) {
  events += other.events;
  crashes += other.crashes;
  rounds_ok += other.rounds_ok;
  rounds_failed += other.rounds_failed;
  rollbacks_ok += other.rollbacks_ok;
  promotions_ok += other.promotions_ok;
  superseded += other.superseded;
  left_out += other.left_out;
  held += other.held;
  lost_rounds += other.lost_rounds;
  repeated += other.repeated;
  streamed += other.streamed;
  stream_failures += other.stream_failures;
  stream_cancels += other.stream_cancels;
  bytes_first += other.bytes_first;
  cancelled += other.cancelled;
  cancels_refused += other.cancels_refused;
  forgotten += other.forgotten;
  replicas_forgotten += other.replicas_forgotten;
  steps += other.steps;
  dropped += other.dropped;
  joins += other.joins;
  returns += other.returns;
  leaves += other.leaves;
  stops += other.stops;
  ok_beside_stopped += other.ok_beside_stopped;
  arenas_added += other.arenas_added;
  names_refused += other.names_refused;
  names_taken += other.names_taken;
  ranks_refused += other.ranks_refused;
  disks_broken += other.disks_broken;
  disks_hung += other.disks_hung;
  late_stores += other.late_stores;
  writes_failed += other.writes_failed;
  greetings_lost += other.greetings_lost;
  to_older += other.to_older;
  adopted += other.adopted;
  trainers_lost += other.trainers_lost;
  relayed += other.relayed;
  parted += other.parted;
  described += other.described;
  as_changes += other.as_changes;
  in_place += other.in_place;
  beside += other.beside;
  bases_lost += other.bases_lost;
  for (const auto& [reason, count] : other.reasons) reasons[reason] += count;
  hubs.add(other.hubs);
}

World::~World() = default;

void World::make_hub(std::size_t s) {
  HubHooks hooks;
  hooks.notify = [this, s](const std::string& replica, staging::RankEvent what) {
    sidecar_step(s,
                 {.now = schedule_.now(),
                  .what = staging::ReplicaEvent{
                      .replica = replica, .world_size = options_.ranks, .what = std::move(what)}});
  };
  hooks.fault = [this](double probability) {
    return faults_on_ && schedule_.chance(probability * intensity_);
  };
  hooks.violation = [this](const std::string& what) { violate(what); };
  hooks.run = [this, s](std::function<void()> action) { in_sidecar(s, std::move(action)); };
  sidecars_[s].hub = std::make_unique<SimulatedHub>(
      schedule_, options_.devices, options_.replicas * options_.ranks, std::move(hooks));
}

void World::make_groups(std::size_t s) {
  for (std::uint32_t r = 0; r < options_.replicas; ++r)
    make_group(s, r, fmt::format("r{}.{}", s, r));
  // Somebody has started a second process with the name of a replica on this host.
  if (options_.twins && s == 0) make_group(s, 0, sidecars_[s].groups[0]->name());
}

// `r`: the place of its devices.
void World::make_group(std::size_t s, std::uint32_t r, std::string name) {
  const std::size_t index = sidecars_[s].groups.size();
  const auto group = [this, s, index]() -> EngineGroup& { return *sidecars_[s].groups[index]; };
  GroupHooks hooks;
  hooks.refusal = [this, s, r, group](std::uint32_t rank) {
    const auto refusal = sidecars_[s].hub->refusal_of(group(), rank, r * options_.ranks + rank);
    if (refusal) ++statistics_.ranks_refused;
    if (refusal && !options_.twins) violate("a rank is refused: " + *refusal);
    return refusal;
  };
  hooks.attached = [this, s, r, group](std::uint32_t rank, const reload::RankAttached& what) {
    sidecars_[s].hub->attached(group(), r * options_.ranks + rank, what);
  };
  hooks.detached = [this, s, group](std::uint32_t rank) {
    in_sidecar(s, [this, s, group, rank] { sidecars_[s].hub->detached(group(), rank); });
  };
  hooks.say = [this, s, group](std::uint32_t rank, const control::Message& message,
                               std::uint64_t request) {
    in_sidecar(s, [this, s, group, rank, link = group().ranks()[rank].link, message, request] {
      if (group().ranks()[rank].link == link)
        sidecars_[s].hub->handle(group(), rank, message, request);
    });
  };
  hooks.sidecar_up = [this, s] { return sidecars_[s].machine != nullptr; };
  hooks.sidecar_answers = [this, s] { return sidecars_[s].machine && !sidecars_[s].stopped; };
  hooks.content_of = [this](const Version& version) {
    const auto found = contents_.find(version);
    return found == contents_.end() ? Digest{.low = 1} : found->second;
  };
  hooks.violation = [this](const std::string& what) { violate(what); };
  hooks.adopted = [this] { ++statistics_.adopted; };
  sidecars_[s].groups.push_back(std::make_unique<EngineGroup>(
      schedule_, std::move(name), options_.ranks, options_.adopts, std::move(hooks)));
}

// ---- processes ----

void World::start_coordinator(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  if (process.machine) return;
  ++process.life;
  trace([&] { return fmt::format("c{} starts", c); });
  process.is_older = (options_.seed + c + process.life) % 3 == 0;
  process.kept.clear();
  process.store_free_at = {};
  // A trainer sometimes starts on another host, where its own record is old or missing. This is
  // safe as soon as all sidecars, the absent ones too, have stored a decision of their fleet.
  const bool settled = std::ranges::all_of(
      sidecars_, [](const SidecarProcess& sidecar) { return !sidecar.disc.decision.none(); });
  process.store = settled && schedule_.chance(0.25) ? 1 : 0;
  coordinator::CoordinatorOptions options =
      coordinator_options(c, process.life, stores_[process.store], schedule_.pick(1, 1'000'000));
  process.is_apart = options_.faults && schedule_.chance(0.4);
  ++process.trainer;
  if (process.is_apart) {
    options.publisher_attaches = true;
    options.transports.clear();
  } else {
    options.transports = {{"memfd", address_of(c)}, {"tcp", address_of(c)}};
  }
  options.take_over = schedule_.chance(0.4);
  // The second store is a cluster: a write there may take any time, and ends nobody.
  if (process.store == 1) options.store = std::nullopt;
  const std::uint64_t policy = options_.seed % 4;
  if (policy == 2)
    options.commit = {.rule = CommitRule::kQuorum,
                      .quorum = std::min(2U, options_.sidecars * options_.replicas)};
  if (policy == 3) options.commit = {.rule = CommitRule::kEach};
  process.machine = std::make_unique<coordinator::Coordinator>(std::move(options));
  if (process.is_apart)
    start_trainer(c);
  else
    start_queue(c);
}

void World::crash_coordinator(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  if (!process.machine) return;
  ++statistics_.crashes;
  trace([&] { return fmt::format("c{} crashes", c); });
  statistics_.dropped += process.machine->dropped();
  end_trainer(c);
  process.machine.reset();
  ++process.life;
  process.publishes.clear();
  process.orphans.clear();
  process.rollbacks.clear();
  process.promotions.clear();
  for (std::size_t s = 0; s < sidecars_.size(); ++s)
    if (sidecars_[s].home == c) break_link(s);
}

void World::start_sidecar(std::size_t s) {
  SidecarProcess& process = sidecars_[s];
  if (process.machine || !process.present) return;
  ++process.life;
  process.is_older = (options_.seed + s + process.life) % 3 == 0;
  new_peer(s);
  process.machine = std::make_unique<staging::Sidecar>(
      sidecar_options(s, process.name, is_on_trainers_host(s), process.life), process.disc);
  process.store.clear();
  process.incoming.reset();
  connect(s);
  for (const auto& group : process.groups) group->attach_all();
  heartbeat(s);
}

void World::crash_sidecar(std::size_t s) {
  SidecarProcess& process = sidecars_[s];
  if (!process.machine) return;
  ++statistics_.crashes;
  trace([&] { return fmt::format("{} crashes", process.peer); });
  statistics_.dropped += process.machine->dropped();
  process.machine.reset();
  process.stopped = false;
  ++process.stops;
  process.waiting.clear();
  process.leases.clear();
  process.own_leases.clear();
  process.changes.clear();
  process.relayed.clear();
  const std::string peer = process.peer;
  ++process.life;
  new_peer(s);
  if (process.home) {
    const std::size_t c = *process.home;
    schedule_.after(schedule_.micros(100, 200'000), [this, c, peer] {
      coordinator_step(c, {.now = schedule_.now(), .what = coordinator::PeerLost{peer, "silent"}});
    });
  }
  process.home.reset();
  ++process.connection;
  process.hub->restart();
  for (const auto& group : process.groups) group->sidecar_lost();
}

// ---- the control network ----

void World::new_peer(std::size_t s) {
  sidecars_[s].peer = fmt::format("s{}#{}", s, sidecars_[s].life);
  processes_[sidecars_[s].peer] = s;
}

std::optional<std::size_t> World::process_of(const std::string& peer) const {
  const auto found = processes_.find(peer);
  return found == processes_.end() ? std::nullopt : std::optional(found->second);
}

void World::connect(std::size_t s) {
  schedule_.after(schedule_.micros(500, 120'000), [this, s, life = sidecars_[s].life] {
    SidecarProcess& process = sidecars_[s];
    if (!process.machine || process.life != life || process.home) return;
    if (process.stopped) return in_sidecar(s, [this, s] { connect(s); });
    std::vector<std::size_t> up;
    for (std::size_t c = 0; c < coordinators_.size(); ++c)
      if (coordinators_[c].machine) up.push_back(c);
    if (up.empty()) {
      connect(s);
      return;
    }
    process.home = up[schedule_.pick(0, up.size() - 1)];
    ++process.connection;
    sidecar_step(s, {.now = schedule_.now(), .what = staging::LinkUp{}});
  });
}

void World::break_link(std::size_t s) {
  SidecarProcess& process = sidecars_[s];
  if (!process.home) return;
  const std::size_t c = *process.home;
  process.home.reset();
  ++process.connection;
  if (schedule_.chance(0.7))
    schedule_.after(schedule_.micros(10, 150'000), [this, c, peer = process.peer] {
      coordinator_step(c, {.now = schedule_.now(), .what = coordinator::PeerLost{peer, "hung up"}});
    });
  else
    lose_late(s, c, process.peer);
  if (!process.machine) return;
  sidecar_step(s, {.now = schedule_.now(), .what = staging::CoordinatorLost{}});
  connect(s);
}

// A port eventually declares a silent peer lost.
void World::lose_late(std::size_t s, std::size_t c, const std::string& peer) {
  schedule_.after(milliseconds(900), [this, s, c, peer, life = coordinators_[c].life] {
    const SidecarProcess& process = sidecars_[s];
    const bool speaks = process.home == c && process.peer == peer && !process.stopped;
    if (!speaks && coordinators_[c].life == life)
      coordinator_step(c, {.now = schedule_.now(), .what = coordinator::PeerLost{peer, "silent"}});
  });
}

// A connection that stays open may lose the messages of a registration: the first ones come while
// it is being made, and a full queue drops what is sent.
bool World::loses_greeting(const control::Message& message) {
  const bool is_greeting = std::holds_alternative<control::Hello>(message) ||
                           std::holds_alternative<control::Welcome>(message);
  if (!is_greeting || !faults_on_ || !schedule_.chance(0.03 * intensity_)) return false;
  ++statistics_.greetings_lost;
  trace([&] {
    return fmt::format("a {} is lost", control::message_name(control::type_of(message)));
  });
  return true;
}

// What releases of one protocol version do: an older one names no capabilities. Returns whether the
// receiver can read the message: only one that was sent to the process before it may not.
bool World::suits(bool from_older, bool to_older, const control::Envelope& envelope,
                  control::Message& message) {
  if (from_older) {
    if (auto* hello = std::get_if<control::Hello>(&message)) hello->capabilities = 0;
    if (auto* welcome = std::get_if<control::Welcome>(&message)) welcome->capabilities = 0;
    return true;
  }
  statistics_.to_older += to_older ? 1 : 0;
  return !to_older || envelope.capabilities == 0;
}

void World::to_sidecar(std::size_t c, const std::string& peer, control::Envelope envelope,
                       control::Message message) {
  if (const auto process = process_of(peer)) {
    const std::size_t s = *process;
    if (sidecars_[s].peer != peer || !sidecars_[s].machine) return;
    if (!suits(coordinators_[c].is_older, sidecars_[s].is_older, envelope, message))
      violate(fmt::format("{} gets fields that its release lacks", peer));
    if (loses_greeting(message)) return;
    // Any other lost message also breaks its connection. Duplicates of it may still arrive later.
    const bool lost = faults_on_ && schedule_.chance(0.004 * intensity_);
    const std::uint64_t copies = faults_on_ && schedule_.chance(0.05 * intensity_) ? 2 : 1;
    for (std::uint64_t copy = 0; copy < copies; ++copy) {
      const bool wanders = copy > 0;
      const auto delay = wanders ? schedule_.micros(50, 400'000) : schedule_.micros(50, 3'000);
      if (lost && !wanders) continue;
      schedule_.after(delay, [=, this, connection = sidecars_[s].connection] {
        const SidecarProcess& now = sidecars_[s];
        // Each process has its own address, so nothing that was sent to one reaches the next one.
        if (!now.machine || now.peer != peer) return;
        if (!wanders && (now.connection != connection || now.home != c)) return;
        sidecar_step(
            s, {.now = schedule_.now(), .what = staging::CoordinatorMessage{envelope, message}});
      });
    }
    if (lost) break_link(s);
  }
}

void World::to_coordinator(std::size_t s, control::Envelope envelope, control::Message message) {
  if (!sidecars_[s].home) return;
  if (loses_greeting(message)) return;
  const std::size_t c = *sidecars_[s].home;
  const bool lost = faults_on_ && schedule_.chance(0.004 * intensity_);
  const std::uint64_t copies = faults_on_ && schedule_.chance(0.05 * intensity_) ? 2 : 1;
  for (std::uint64_t copy = 0; copy < copies; ++copy) {
    const bool wanders = copy > 0;
    const auto delay = wanders ? schedule_.micros(50, 400'000) : schedule_.micros(50, 3'000);
    if (lost && !wanders) continue;
    schedule_.after(
        delay, [=, this, life = coordinators_[c].life, peer = sidecars_[s].peer,
                connection = sidecars_[s].connection, is_older = sidecars_[s].is_older]() mutable {
          if (coordinators_[c].life != life && !wanders) return;
          if (!wanders && sidecars_[s].connection != connection) return;
          if (!suits(is_older, coordinators_[c].is_older, envelope, message)) {
            if (coordinators_[c].life == life)
              violate(fmt::format("coordinator {} gets fields that its release lacks", c));
            return;
          }
          // On the same host the coordinator sees that the last process of this name has ended.
          const bool gone = is_on_trainers_host(s) && peer == sidecars_[s].peer &&
                            is_owner(c, sidecars_[s].name, s);
          if (wanders) lose_late(s, c, peer);  // no later event may depend on a duplicate
          coordinator_step(c, {.now = schedule_.now(),
                               .what = coordinator::PeerMessage{peer, envelope, message, gone}});
        });
  }
  // Delayed, because the machine that sends is still inside its step.
  if (lost)
    schedule_.after(std::chrono::nanoseconds(1), [this, s, life = sidecars_[s].life] {
      if (sidecars_[s].life == life) break_link(s);
    });
}

control::Heartbeat World::numbered_heartbeat(std::size_t s) {
  control::Heartbeat heartbeat = sidecars_[s].machine->heartbeat(schedule_.now());
  heartbeat.sequence = ++sidecars_[s].heartbeats;
  heartbeat.staged_bytes = sidecars_[s].incoming && sidecars_[s].incoming->bytes ? 1 : 0;
  return heartbeat;
}

void World::heartbeat(std::size_t s) {
  schedule_.after(milliseconds(100), [this, s, life = sidecars_[s].life] {
    if (sidecars_[s].life == life)
      in_sidecar(s, [this, s] {
        to_coordinator(s, sidecars_[s].machine->envelope(), numbered_heartbeat(s));
        check_reports(s);
        heartbeat(s);
      });
  });
}

// ---- the machines ----

void World::coordinator_step(std::size_t c, coordinator::CoordinatorEvent event) {
  CoordinatorProcess& process = coordinators_[c];
  if (!process.machine) return;
  ++statistics_.events;
  const std::uint64_t life = process.life;
  const std::string owner = owner_of_name(c, event);
  if (const auto* message = std::get_if<coordinator::PeerMessage>(&event.what))
    trace([&] {
      return std::holds_alternative<control::Heartbeat>(message->message)
                 ? std::string()
                 : fmt::format("c{} <- {} {} round {} request {}", c, message->peer,
                               control::message_name(control::type_of(message->message)),
                               message->envelope.round, message->envelope.request);
    });
  else if (const auto* lost = std::get_if<coordinator::PeerLost>(&event.what))
    trace([&] { return fmt::format("c{} loses {}", c, lost->peer); });
  withdrawn_before_ = process.machine->record().withdrawn;
  const auto commands = process.machine->step(event);
  check_name(c, event, owner);
  if (const Result<> holds = process.machine->invariants(); !holds)
    violate(fmt::format("coordinator {}: {}", c, holds.error().message()));
  for (const coordinator::CoordinatorCommand& command : commands) {
    if (!process.machine || process.life != life) return;
    execute(c, command);
  }
  process.dropped.clear();
  if (!process.machine || process.life != life) return;
  // The time of a publish stands still while a canary is held, so it has no deadline here.
  if (process.machine->canary_waiting() > 0)
    for (const auto& [request, since] : process.publishes) process.kept.insert(request);
  arm_coordinator(c);
  if (process.queue) execute(c, process.queue->advance(schedule_.now()));
}

void World::arm_coordinator(std::size_t c) {
  const auto wake = coordinators_[c].machine->next_wake();
  const std::uint64_t timer = ++coordinators_[c].timer;
  if (!wake) return;
  schedule_.at(*wake, [this, c, timer, life = coordinators_[c].life] {
    if (coordinators_[c].life != life || coordinators_[c].timer != timer) return;
    coordinator_step(c, {.now = schedule_.now(), .what = coordinator::CoordinatorTick{}});
  });
}

void World::execute(std::size_t c, const coordinator::CoordinatorCommand& command) {
  CoordinatorProcess& process = coordinators_[c];
  if (const auto* send = std::get_if<coordinator::SendTo>(&command)) {
    to_sidecar(c, send->peer, send->envelope, send->message);
  } else if (const auto* write = std::get_if<coordinator::Store>(&command)) {
    store(c, *write);
  } else if (const auto* phase = std::get_if<coordinator::PhaseEntered>(&command)) {
    if (process.orphans.contains(phase->request)) return;
    if (const auto entered = process.queue->phase_entered(phase->request, phase->phase); !entered)
      violate(entered.error().message());
  } else if (const auto* done = std::get_if<coordinator::RoundDone>(&command)) {
    if (process.orphans.erase(done->request) == 1) {
      if (done->cancelled) cancelled_.insert(done->reply.version);
      return;
    }
    if (done->cancelled && !cancelled_.insert(done->reply.version).second)
      violate("a publish was cancelled twice");
    execute(c, process.queue->round_ended(done->request, {.superseded = done->superseded,
                                                          .cancelled = done->cancelled,
                                                          .reply = done->reply}));
  } else if (const auto* lost = std::get_if<coordinator::RoundLost>(&command)) {
    lose_round(c, *lost);
  } else if (const auto* back = std::get_if<coordinator::RollbackDone>(&command)) {
    if (process.rollbacks.erase(back->request) != 1) violate("a rollback ended twice");
    if (!back->reply.ok) ++statistics_.reasons["rollback: " + back->reply.reason];
    if (!back->reply.ok) return;
    ++statistics_.rollbacks_ok;
    std::set<std::size_t>& told = gone_for_good_[back->reply.from];
    for (const auto& [name, member] : process.machine->roster().members())
      if (const auto known = process_of(member.last_peer)) told.insert(*known);
  } else if (const auto* promoted = std::get_if<coordinator::PromotionDone>(&command)) {
    if (promoted->request != 0 && process.promotions.erase(promoted->request) != 1)
      violate("a promotion ended twice");
    ++(promoted->reply.ok ? statistics_.promotions_ok
                          : statistics_.reasons["promotion: " + promoted->reply.reason]);
  } else if (const auto* cancel = std::get_if<coordinator::CancelDone>(&command)) {
    ++(cancel->reply.ok ? statistics_.cancelled : statistics_.cancels_refused);
    if (cancel->reply.ok && !cancelled_.contains(cancel->reply.version))
      violate("a cancelled publish has not ended");
  } else if (const auto* forgotten = std::get_if<coordinator::Forgotten>(&command)) {
    check_forgotten(*forgotten, withdrawn_before_);
  } else if (const auto* drop = std::get_if<coordinator::DropVersion>(&command)) {
    if (auto dropped = process.snapshots.extract(drop->version); !dropped.empty())
      process.dropped.insert(std::move(dropped));
  }
}

void World::sidecar_step(std::size_t s, staging::SidecarEvent event) {
  SidecarProcess& process = sidecars_[s];
  if (!process.machine) return;
  if (process.stopped)
    return in_sidecar(s, [this, s, what = std::move(event.what)] {
      sidecar_step(s, {.now = schedule_.now(), .what = what});
    });
  ++statistics_.events;
  const std::uint64_t life = process.life;
  const staging::SidecarRecord before = process.machine->record();
  if (const auto* message = std::get_if<staging::CoordinatorMessage>(&event.what))
    trace([&] {
      return fmt::format("{} <- {} round {} request {} epoch {}", process.peer,
                         control::message_name(control::type_of(message->message)),
                         message->envelope.round, message->envelope.request,
                         message->envelope.fence.epoch);
    });
  const auto commands = process.machine->step(event);
  std::size_t acts = 0;
  for (const staging::SidecarCommand& command : commands)
    if (!std::holds_alternative<staging::Reply>(command)) ++acts;
  check_sidecar(s, event, before, acts);
  for (const staging::SidecarCommand& command : commands) {
    if (!process.machine || process.life != life) return;
    execute(s, command);
  }
  if (process.machine && process.life == life) {
    process.hub->expect_more(std::ranges::any_of(process.machine->replicas(), [](const auto& one) {
      return one.second.phase() == reload::SwitchPhase::kPausing;
    }));
    check_reports(s);
    arm_sidecar(s);
  }
}

void World::arm_sidecar(std::size_t s) {
  const auto wake = sidecars_[s].machine->next_wake();
  const std::uint64_t timer = ++sidecars_[s].timer;
  if (!wake) return;
  schedule_.at(*wake, [this, s, timer, life = sidecars_[s].life] {
    if (sidecars_[s].life != life || sidecars_[s].timer != timer) return;
    sidecar_step(s, {.now = schedule_.now(), .what = reload::Tick{}});
  });
}

void World::execute(std::size_t s, const staging::SidecarCommand& command) {
  SidecarProcess& process = sidecars_[s];
  const auto later = [this, s, life = process.life](std::chrono::nanoseconds delay, auto what) {
    schedule_.after(delay, [=, this] {
      if (sidecars_[s].life == life) sidecar_step(s, {.now = schedule_.now(), .what = what});
    });
  };
  if (const auto* reply = std::get_if<staging::Reply>(&command)) {
    to_coordinator(s, reply->envelope, reply->message);
  } else if (const auto* write = std::get_if<staging::Persist>(&command)) {
    persist(s, *write);
  } else if (const auto* check = std::get_if<staging::CheckLayout>(&command)) {
    staging::LayoutChecked checked{.round = check->round, .fits_beside = schedule_.chance(0.5)};
    if (faults_on_ && schedule_.chance(0.01)) checked.problems.push_back({.tensor = "w"});
    later(schedule_.micros(50, 3'000), checked);
  } else if (const auto* start = std::get_if<staging::StartStaging>(&command)) {
    stage(s, *start);
  } else if (const auto* expect = std::get_if<staging::ExpectContent>(&command)) {
    expect_content(s, *expect);
  } else if (const auto* cancel = std::get_if<staging::CancelStaging>(&command)) {
    process.incoming.reset();
    process.relayed.erase(cancel->version);
  } else if (const auto* relay = std::get_if<staging::RelayHeld>(&command)) {
    relay_held(s, *relay);
  } else if (const auto* release = std::get_if<staging::ReleaseVersion>(&command)) {
    trace(
        [&] { return fmt::format("{} releases {}", process.peer, release->version.to_string()); });
    process.store.erase(release->version);
    process.leases.erase(release->version);
    process.own_leases.erase(release->version);
    process.changes.erase(release->version);
    process.relayed.erase(release->version);
    process.hub->remove_version(release->version);
  } else if (const auto* change = std::get_if<staging::CompleteVersion>(&command)) {
    if (change->in_place) process.hub->remove_version(change->base);
    if (change->in_place) process.relayed.erase(change->base);
    complete(s, *change, schedule_.now());
  } else if (std::holds_alternative<staging::BeatNow>(command)) {
    to_coordinator(s, process.machine->envelope(), numbered_heartbeat(s));
  } else if (const auto* suspect = std::get_if<staging::CheckCopy>(&command)) {
    trace([&] { return fmt::format("{} checks {}", process.peer, suspect->version.to_string()); });
    const auto copy = process.store.find(suspect->version);
    const bool intact = copy != process.store.end() && copy->second == contents_[suspect->version];
    later(schedule_.micros(1'000, 30'000),
          staging::CopyChecked{.check = suspect->check, .intact = intact});
  } else if (const auto* replica = std::get_if<staging::ForReplica>(&command)) {
    for_replica(s, *replica);
  } else if (std::holds_alternative<staging::ReplicaForgotten>(command)) {
    ++statistics_.replicas_forgotten;
  }
}

// Applies the rule of decision_store.h. Writes of one process run one after the other. A crash
// between a write and its answer leaves the new record.
void World::store(std::size_t c, const coordinator::Store& command) {
  const coordinator::CoordinatorRecord& record = command.record;
  const control::Decision own{.fence = record.fence, .number = record.number};
  if (record.origin == own && record.kind == control::DecisionKind::kRollback) {
    rollbacks_decided_.insert(own);
    if (!record.target.none() && !decided_.contains(record.target))
      violate(fmt::format("the rollback of c{} at epoch {} goes to {}, which was never decided", c,
                          record.fence.epoch, record.target.to_string()));
  }
  const std::uint64_t life = coordinators_[c].life;
  const bool full = faults_on_ && (schedule_.chance(0.02) ||
                                   schedule_.now() < stores_work_at_[coordinators_[c].store]);
  if (full) ++statistics_.writes_failed;
  const TimePoint hangs_until = stores_hang_until_[coordinators_[c].store];
  const TimePoint at = std::max({schedule_.now(), coordinators_[c].store_free_at, hangs_until}) +
                       schedule_.micros(50, full ? 50'000 : 5'000);
  coordinators_[c].store_free_at = at;
  schedule_.at(at, [=, this] {
    if (coordinators_[c].life != life) return;
    std::optional<coordinator::CoordinatorRecord>& disc = stores_[coordinators_[c].store];
    coordinator::Stored stored{.token = command.token, .record = command.record};
    const auto may = coordinator::check_replaces(command.record, disc);
    if (full) {
      stored.record = fail(ErrorCode::kResourceExhausted, "no space left");
    } else if (!may) {
      stored.record = fail(may.error());
    } else {
      if (disc && disc->fence != command.record.fence)
        stored.record = coordinator::after_claim(command.record, *disc);
      disc = *stored.record;
      trace([&] {
        return fmt::format("c{} has stored epoch {} number {} of epoch {}: {} {}", c,
                           disc->fence.epoch, disc->number, disc->origin.fence.epoch,
                           disc->kind == control::DecisionKind::kRollback ? "back to" : "target",
                           disc->target.to_string());
      });
      if (disc->number > 0) decided_.insert(disc->target);
      // Of a publish; a rollback may go to a version whose digest only sidecars know.
      const bool is_published =
          disc->number > 0 && disc->kind != control::DecisionKind::kRollback &&
          disc->origin == control::Decision{.fence = disc->fence, .number = disc->number};
      if (is_published && disc->content == Digest{})
        violate(fmt::format("{} is decided without its content digest", disc->target.to_string()));
    }
    schedule_.after(schedule_.micros(10, 1'000), [=, this] {
      if (coordinators_[c].life != life) return;
      coordinator_step(c, {.now = schedule_.now(), .what = stored});
    });
  });
}

void World::promote(std::size_t c) {
  const std::uint64_t request = ++requests_;
  coordinators_[c].promotions[request] = schedule_.now();
  coordinator_step(
      c, {.now = schedule_.now(), .what = coordinator::PromoteRequested{.request = request}});
}

}  // namespace wsync::simulation
