// The client and the faults of the world.
#include <algorithm>

#include "shared/base/format.h"
#include "tests/simulation/world.h"

namespace wsync::simulation {

using std::chrono::milliseconds;

// ---- client and faults ----

void World::client() {
  if (!client_on_) return;
  schedule_.after(schedule_.micros(50'000, 500'000), [this] { client(); });
  const std::size_t c = schedule_.pick(0, coordinators_.size() - 1);
  if (!coordinators_[c].machine) return;
  if (schedule_.chance(0.7)) {
    if (publish(c) && schedule_.chance(0.2))
      schedule_.after(schedule_.micros(100, 80'000), [this, c] { cancel(c); });
    return;
  }
  if (schedule_.chance(0.5)) {
    cancel(c);
    return;
  }
  if (schedule_.chance(0.3)) {
    promote(c);
    return;
  }
  if (schedule_.chance(0.2)) {
    give_up(c);
    return;
  }
  const std::uint64_t request = ++requests_;
  coordinators_[c].rollbacks[request] = schedule_.now();
  coordinator_step(
      c, {.now = schedule_.now(), .what = coordinator::RollbackRequested{.request = request}});
}

void World::inject() {
  if (!faults_on_) return;
  const auto pause = static_cast<std::uint64_t>(300'000.0 / intensity_);
  schedule_.after(schedule_.micros(10'000, 10'000 + pause), [this] { inject(); });
  const std::size_t s = schedule_.pick(0, sidecars_.size() - 1);
  const std::size_t c = schedule_.pick(0, coordinators_.size() - 1);
  if (options_.changing && schedule_.chance(0.2)) return change_membership();
  if (options_.holders && schedule_.chance(0.15)) {
    const bool for_ever = schedule_.chance(0.25);
    return stand_still(
        s, for_ever ? std::nullopt : std::optional(schedule_.micros(50'000, 3'000'000)));
  }
  if (options_.twins && schedule_.chance(0.15)) {
    if (schedule_.chance(0.6))
      start_twin();
    else
      stop_twin();
    return;
  }
  inject_usual(s, c);
}

void World::inject_usual(std::size_t s, std::size_t c) {
  EngineGroup& group = *sidecars_[s].groups[schedule_.pick(0, options_.replicas - 1)];
  const auto rank = static_cast<std::uint32_t>(schedule_.pick(0, options_.ranks - 1));
  switch (schedule_.pick(0, 13)) {
    case 13:
      lose_trainer(c);
      return;
    case 12:
      break_disc(s);
      return;
    case 11:
      forget(s, c);
      return;
    case 10:
      inject_stranger(s, c);
      return;
    case 0:
      crash_coordinator(c);
      schedule_.after(schedule_.micros(1'000, 600'000), [this, c] {
        if (faults_on_) start_coordinator(c);
      });
      return;
    case 1:
      start_coordinator(c);  // in addition to the coordinator that runs
      return;
    case 2:
      crash_sidecar(s);
      schedule_.after(schedule_.micros(1'000, 400'000), [this, s] { start_sidecar(s); });
      return;
    case 3:
    case 4:
    case 5:
      ++statistics_.crashes;
      group.crash(rank);
      schedule_.after(schedule_.micros(1'000, 500'000), [this, s, &group, rank] {
        if (sidecars_[s].present) group.start(rank);
      });
      return;
    case 6:
    case 7:
      break_link(s);
      return;
    case 8:  // the coordinator declares it lost; the sidecar does not notice
      if (sidecars_[s].home)
        coordinator_step(
            *sidecars_[s].home,
            {.now = schedule_.now(), .what = coordinator::PeerLost{sidecars_[s].peer, "silent"}});
      return;
    default:
      group.stall(schedule_.micros(50'000, 900'000));
      if (schedule_.chance(0.5)) silence(s, group.name(), rank);
  }
}

// A disk fails for a while, or its writes do not return: that of the sidecar, or one of those on
// which the coordinators store.
void World::break_disc(std::size_t s) {
  const std::size_t store = schedule_.pick(0, stores_.size() - 1);
  const bool is_sidecars = schedule_.chance(0.4);
  if (schedule_.chance(0.3)) {
    ++statistics_.disks_hung;
    const bool is_cluster = !is_sidecars && store == 1;
    const TimePoint until = std::min(
        calm_at_, schedule_.now() + schedule_.micros(0, is_cluster ? 90'000'000 : 8'000'000));
    (is_sidecars ? sidecars_[s].disc_hangs_until : stores_hang_until_[store]) = until;
    return;
  }
  ++statistics_.disks_broken;
  const TimePoint until = schedule_.now() + schedule_.micros(50'000, 2'500'000);
  (is_sidecars ? sidecars_[s].disc_works_at : stores_work_at_[store]) = until;
}

// The sidecar finds that the rank does not poll its link, rightly or not, and hears from it later.
void World::silence(std::size_t s, const std::string& replica, std::uint32_t rank) {
  const auto report = [this, s, replica](staging::RankEvent what) {
    if (sidecars_[s].machine)
      sidecar_step(
          s, {.now = schedule_.now(),
              .what = staging::ReplicaEvent{
                  .replica = replica, .world_size = options_.ranks, .what = std::move(what)}});
  };
  report(reload::RankSilent{.rank = rank, .why = "does not poll its link"});
  schedule_.after(schedule_.micros(1'000, 2'000'000),
                  [report, rank] { report(reload::RankHeard{.rank = rank}); });
}

// An operator has a sidecar forgotten, mostly one that is connected: that is refused.
void World::forget(std::size_t s, std::size_t c) {
  const std::string name = sidecars_[s].name;
  const bool force = schedule_.chance(0.3);
  if (force) forced_.insert(name);
  coordinator_step(c, {.now = schedule_.now(),
                       .what = coordinator::ForgetRequested{.sidecar = name, .force = force}});
}

// A sidecar and a coordinator of another fleet connect to the wrong address. Their epoch is far
// above the epoch of this fleet. Neither may change anything here.
void World::inject_stranger(std::size_t s, std::size_t c) {
  const control::FleetId other{.high = 99, .low = 99};
  control::Envelope envelope;
  envelope.fence = {.epoch = 1'000'000, .run_id = {5, 5}, .fleet = other};
  const control::Decision decision{.fence = envelope.fence, .number = 3};
  // Before the first decision, a fleet id does not bind anyone.
  if (coordinators_[c].machine && !coordinators_[c].machine->record().origin.none()) {
    const control::Fence before = coordinators_[c].machine->fence();
    const bool had_stopped = coordinators_[c].machine->stopped().has_value();
    for (const control::Message& message :
         {control::Message(control::Hello{.name = sidecars_[s].name,
                                          .decision = decision,
                                          .target = {.epoch = 9, .step = 9},
                                          .origin = decision}),
          control::Message(control::Heartbeat{.target = {.epoch = 9, .step = 9}})})
      coordinator_step(c, {.now = schedule_.now(),
                           .what = coordinator::PeerMessage{"stranger", envelope, message}});
    if (coordinators_[c].machine &&
        (coordinators_[c].machine->fence() != before ||
         coordinators_[c].machine->stopped().has_value() != had_stopped))
      violate(fmt::format("coordinator {} obeys a sidecar of another fleet", c));
  }
  if (!sidecars_[s].machine || sidecars_[s].stopped ||
      sidecars_[s].machine->record().decision.none())
    return;
  const staging::SidecarRecord before = sidecars_[s].machine->record();
  sidecar_step(
      s, {.now = schedule_.now(),
          .what = staging::CoordinatorMessage{
              envelope, control::Decide{
                            .number = 3, .target = {.epoch = 9, .step = 9}, .origin = decision}}});
  if (sidecars_[s].machine && sidecars_[s].machine->record() != before)
    violate(fmt::format("s{} obeys a coordinator of another fleet", s));
}

// The faults end: one coordinator, every sidecar that is present and every rank are up and stay up.
void World::heal() {
  faults_on_ = client_on_ = false;
  for (std::size_t c = 1; c < coordinators_.size(); ++c) crash_coordinator(c);
  if (coordinators_[0].machine &&
      coordinators_[0].machine->phase() == coordinator::CoordinatorPhase::kStopped)
    crash_coordinator(0);
  start_coordinator(0);
  stop_twins();
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    if (is_twin(s)) continue;
    // A publish needs the sidecar of the canary, and the replicas of a quorum.
    if (!sidecars_[s].present && (s == 0 || present_count() < 2 || schedule_.chance(0.5))) join(s);
    if (sidecars_[s].stopped && schedule_.chance(0.5)) crash_sidecar(s);
    go_on(s);
    start_sidecar(s);
    if (sidecars_[s].present) start_engines(s);
  }
}

bool World::run() {
  faults_on_ = options_.faults;
  client_on_ = true;
  start_coordinator(0);
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    start_sidecar(s);
    if (sidecars_[s].present) start_engines(s);
  }
  client();
  inject();
  calm_at_ = schedule_.now() + options_.faulty;
  if (options_.stands_still_after)
    schedule_.after(*options_.stands_still_after, [this] { stand_still(1, std::nullopt); });
  while (violations_.empty() && schedule_.run_one(calm_at_)) {
  }
  heal();
  // The last version, which the fleet must reach.
  const TimePoint end = schedule_.now() + options_.calm;
  TimePoint try_at = schedule_.now() + milliseconds(3'000);
  std::uint64_t requests_before = requests_;
  bool done = false;
  std::string unmet;  // reason why the last version is not published yet
  while (violations_.empty() && !done && schedule_.now() < end) {
    const TimePoint until = std::min(end, try_at);
    while (violations_.empty() && schedule_.run_one(until)) {
    }
    done = advance_calm(requests_before, unmet);
    try_at = schedule_.now() + milliseconds(1'000);
  }
  check_ends();
  if (violations_.empty() && !done && !unmet.empty())
    violate("a decision has not come to everybody: " + unmet + ": " + where());
  if (violations_.empty() && !done) violate("the fleet did not come to its target: " + where());
  for (const CoordinatorProcess& process : coordinators_)
    if (process.arenas) statistics_.arenas_added += process.arenas->additional();
  for (const SidecarProcess& process : sidecars_) {
    if (process.machine) statistics_.dropped += process.machine->dropped();
    for (const auto& group : process.groups) statistics_.steps += group->steps();
    statistics_.hubs.add(process.hub->statistics());
  }
  return violations_.empty();
}

// Publishes the last version as soon as nothing is owed. Returns true if every replica serves it.
bool World::advance_calm(std::uint64_t& requests_before, std::string& unmet) {
  if (!coordinators_[0].machine ||
      coordinators_[0].machine->phase() == coordinator::CoordinatorPhase::kStopped) {
    crash_coordinator(0);  // a delayed message stopped it: restart it
    start_coordinator(0);
    requests_before = requests_;  // the snapshots of its last process are gone
  } else if (coordinators_[0].machine->canary_waiting() > 0) {
    promote(0);
  } else if (last_ok_ <= requests_before) {
    unmet = unmet_obligation();
    if (unmet.empty()) publish(0);
  } else {
    return converged();
  }
  return false;
}

}  // namespace wsync::simulation
