// The client and the faults of the world, and the checks.
#include <algorithm>

#include "shared/base/format.h"
#include "tests/simulation/world.h"

namespace wsync::simulation {

using std::chrono::milliseconds;

namespace {

// for a publish or rollback, including the time in the queue
constexpr std::chrono::seconds kBound{25};

}  // namespace

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
  EngineGroup& group = *sidecars_[s].groups[schedule_.pick(0, options_.replicas - 1)];
  const auto rank = static_cast<std::uint32_t>(schedule_.pick(0, options_.ranks - 1));
  switch (schedule_.pick(0, 11)) {
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
      schedule_.after(schedule_.micros(1'000, 500'000), [&group, rank] { group.start(rank); });
      return;
    case 6:
    case 7:
      break_link(s);
      return;
    case 8:  // the coordinator declares it lost; the sidecar does not notice
      if (sidecars_[s].home)
        coordinator_step(*sidecars_[s].home, {.now = schedule_.now(),
                                              .what = coordinator::PeerLost{peer_of(s), "silent"}});
      return;
    default:
      group.stall(schedule_.micros(50'000, 900'000));
      if (schedule_.chance(0.5)) silence(s, group.name(), rank);
  }
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
  const std::string name = fmt::format("s{}", s);
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
         {control::Message(control::Hello{.name = fmt::format("s{}", s),
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
  if (!sidecars_[s].machine || sidecars_[s].machine->record().decision.none()) return;
  const staging::SidecarRecord before = sidecars_[s].machine->record();
  sidecar_step(
      s, {.now = schedule_.now(),
          .what = staging::CoordinatorMessage{
              envelope, control::Decide{
                            .number = 3, .target = {.epoch = 9, .step = 9}, .origin = decision}}});
  if (sidecars_[s].machine && sidecars_[s].machine->record() != before)
    violate(fmt::format("s{} obeys a coordinator of another fleet", s));
}

// The faults end: one coordinator, every sidecar and every rank are up and stay up.
void World::heal() {
  faults_on_ = client_on_ = false;
  for (std::size_t c = 1; c < coordinators_.size(); ++c) crash_coordinator(c);
  if (coordinators_[0].machine &&
      coordinators_[0].machine->phase() == coordinator::CoordinatorPhase::kStopped)
    crash_coordinator(0);
  start_coordinator(0);
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    start_sidecar(s);
    for (const auto& group : sidecars_[s].groups)
      for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) group->start(rank);
  }
}

bool World::run() {
  faults_on_ = options_.faults;
  client_on_ = true;
  start_coordinator(0);
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    start_sidecar(s);
    for (const auto& group : sidecars_[s].groups)
      for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) group->start(rank);
  }
  client();
  inject();
  const TimePoint calm = schedule_.now() + options_.faulty;
  while (violations_.empty() && schedule_.run_one(calm)) {
  }
  heal();
  // The last version, which the fleet must reach.
  const TimePoint end = schedule_.now() + options_.calm;
  TimePoint try_at = schedule_.now() + milliseconds(3'000);
  const std::uint64_t requests_before = requests_;
  bool done = false;
  std::string unmet;  // reason why the last version is not published yet
  while (violations_.empty() && !done && schedule_.now() < end) {
    const TimePoint until = std::min(end, try_at);
    while (violations_.empty() && schedule_.run_one(until)) {
    }
    if (!coordinators_[0].machine ||
        coordinators_[0].machine->phase() == coordinator::CoordinatorPhase::kStopped) {
      crash_coordinator(0);  // a delayed message stopped it: restart it
      start_coordinator(0);
    } else if (coordinators_[0].machine->canary_waiting() > 0) {
      promote(0);
    } else if (last_ok_ <= requests_before) {
      unmet = unmet_obligation();
      if (unmet.empty()) publish(0);
    } else {
      done = converged();
    }
    try_at = schedule_.now() + milliseconds(1'000);
  }
  for (const CoordinatorProcess& process : coordinators_) {
    for (const auto& [request, since] : process.publishes)
      if (!process.kept.contains(request) && schedule_.now() - since > kBound)
        violate("a publish did not end in its time");
    for (const auto& [request, since] : process.rollbacks)
      if (schedule_.now() - since > kBound) violate("a rollback did not end in its time");
    for (const auto& [request, since] : process.promotions)
      if (schedule_.now() - since > kBound) violate("a promotion did not end in its time");
  }
  if (violations_.empty() && !done && !unmet.empty())
    violate("a decision has not come to everybody: " + unmet + ": " + where());
  if (violations_.empty() && !done) violate("the fleet did not come to its target: " + where());
  for (const SidecarProcess& process : sidecars_) {
    if (process.machine) statistics_.dropped += process.machine->dropped();
    for (const auto& group : process.groups) statistics_.steps += group->steps();
    statistics_.hubs.add(process.hub->statistics());
  }
  return violations_.empty();
}

// ---- checks ----

void World::violate(const std::string& what) {
  if (violations_.size() < 10)
    violations_.push_back(
        fmt::format("at {:.6f} s: {}", static_cast<double>(schedule_.now()) * 1e-9, what));
}

void World::check_sidecar(std::size_t s, const staging::SidecarEvent& event,
                          const staging::SidecarRecord& before, std::size_t acts) {
  const staging::SidecarRecord& after = sidecars_[s].machine->record();
  const staging::SidecarRecord& disc = sidecars_[s].disc;
  // Before its first decision a sidecar may follow another fleet, whose epochs are not comparable.
  const bool moved = after.fence.fleet != before.fence.fleet && before.decision.none();
  if (after.fence < before.fence && !moved)
    violate(fmt::format("s{} goes back to a lower fence", s));
  if (after.decision < before.decision)
    violate(fmt::format("s{} goes back to an older decision", s));
  // The disk may be ahead of the state in memory, but never behind it.
  if (after.fence > disc.fence || after.decision > disc.decision)
    violate(fmt::format("s{} acts on what it has not stored", s));
  const auto* message = std::get_if<staging::CoordinatorMessage>(&event.what);
  // The sidecar stores the new fence first. Until then its record is the old one, and only the
  // message belongs to the other fleet.
  const bool moves = message != nullptr && before.decision.none() &&
                     message->envelope.fence.fleet != before.fence.fleet;
  if (message != nullptr && message->envelope.fence < before.fence && !moved && !moves &&
      (acts != 0 || after != before))
    violate(fmt::format("s{} obeys a lower fence", s));
  check_origin(s, before);
  for (const Version& version : before.withdrawn)
    if (std::ranges::find(after.withdrawn, version) == after.withdrawn.end())
      violate(fmt::format("s{} forgets that {} was withdrawn", s, version.to_string()));
}

// Invariant 4: decisions only increase, and only a rollback returns to an older version.
void World::check_origin(std::size_t s, const staging::SidecarRecord& before) {
  const staging::SidecarRecord& after = sidecars_[s].machine->record();
  const bool withdrawn = std::ranges::find(after.withdrawn, before.target) != after.withdrawn.end();
  if (after.origin < before.origin && !withdrawn)
    violate(fmt::format("s{} goes back from the decision for {} to the older one for {}", s,
                        before.target.to_string(), after.target.to_string()));
  // Two coordinators without a common record may both claim the same epoch and count its steps
  // independently. The run id then decides which of their decisions is newer.
  const control::Fence& was = before.origin.fence;
  const control::Fence& is = after.origin.fence;
  if (was.epoch == is.epoch && was.run_id != is.run_id) return;
  if (after.target < before.target && !withdrawn && !rollbacks_decided_.contains(after.origin))
    violate(fmt::format("s{} goes back from {} to {} without a rollback", s,
                        before.target.to_string(), after.target.to_string()));
}

// Must hold before a new version is published: every joined sidecar has the coordinator's newest
// decision, and no sidecar's target differs from the coordinator's.
std::string World::unmet_obligation() const {
  const coordinator::Coordinator& coordinator = *coordinators_[0].machine;
  if (coordinator.phase() != coordinator::CoordinatorPhase::kReady)
    return fmt::format("the coordinator is {}", coordinator::phase_name(coordinator.phase()));
  const coordinator::CoordinatorRecord& record = coordinator.record();
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    const staging::SidecarRecord& disc = sidecars_[s].disc;
    const auto member = coordinator.roster().members().find(fmt::format("s{}", s));
    if (member == coordinator.roster().members().end() || !member->second.joined)
      return fmt::format("s{} has not joined", s);
    if (record.number > 0 &&
        disc.decision != control::Decision{.fence = record.fence, .number = record.number})
      return fmt::format("s{} has decision {} of epoch {}, the coordinator {} of epoch {} ({})", s,
                         disc.decision.number, disc.decision.fence.epoch, record.number,
                         record.fence.epoch, member->second.refused);
    if (record.number == 0 && !disc.target.none())
      return fmt::format("s{} has target {}, and nothing was decided", s, disc.target.to_string());
    for (const Version& version : record.withdrawn)
      if (std::ranges::find(disc.withdrawn, version) == disc.withdrawn.end())
        return fmt::format("s{} does not know that {} was withdrawn", s, version.to_string());
  }
  return {};
}

// Only an operator may have a sidecar forgotten that does not know of a withdrawn version.
void World::check_forgotten(std::size_t c, const coordinator::Forgotten& forgotten) {
  ++statistics_.forgotten;
  if (forced_.contains(forgotten.sidecar)) return;
  const coordinator::Coordinator& coordinator = *coordinators_[c].machine;
  if (coordinator.roster().members().contains(forgotten.sidecar))
    violate(fmt::format("{} is forgotten and in the roster", forgotten.sidecar));
  for (std::size_t s = 0; s < sidecars_.size(); ++s)
    if (fmt::format("s{}", s) == forgotten.sidecar)
      for (const Version& version : coordinator.record().withdrawn)
        if (std::ranges::find(sidecars_[s].disc.withdrawn, version) ==
            sidecars_[s].disc.withdrawn.end())
          violate(fmt::format("s{} is forgotten, and does not know that {} was withdrawn", s,
                              version.to_string()));
}

// If a version is reported as active, every rank holds it byte for byte.
void World::check_reports(std::size_t s) {
  for (const control::ReplicaReport& report :
       sidecars_[s].machine->heartbeat(schedule_.now()).replicas) {
    if (report.version.none()) continue;
    for (const auto& group : sidecars_[s].groups) {
      if (group->name() != report.replica) continue;
      for (const EngineGroup::Rank& rank : group->ranks())
        if (rank.attached &&
            (rank.active() != report.version || rank.memory != contents_[report.version]))
          violate(fmt::format("lie: '{}' is reported to hold {}", report.replica,
                              report.version.to_string()));
    }
  }
}

void World::check_may_run(std::size_t s, const EngineGroup& group, const Version& version) {
  if (cancelled_.contains(version))
    violate(
        fmt::format("'{}' activates {}, which was cancelled", group.name(), version.to_string()));
  const std::vector<Version>& withdrawn = sidecars_[s].disc.withdrawn;
  const bool stored = std::ranges::find(sidecars_[s].machine->record().withdrawn, version) !=
                      sidecars_[s].machine->record().withdrawn.end();
  if (stored || (gone_for_good_.contains(version) &&
                 std::ranges::find(withdrawn, version) != withdrawn.end()))
    violate(
        fmt::format("'{}' activates {}, which was withdrawn", group.name(), version.to_string()));
  const auto gone = gone_for_good_.find(version);
  if (gone != gone_for_good_.end() && gone->second.contains(fmt::format("s{}", s)))
    violate(fmt::format("'{}' activates {} after its rollback was reported as done", group.name(),
                        version.to_string()));
}

bool World::converged() const {
  const CoordinatorProcess& process = coordinators_[0];
  if (!process.machine || process.machine->phase() != coordinator::CoordinatorPhase::kReady)
    return false;
  const Version target = process.machine->target();
  for (const SidecarProcess& sidecar : sidecars_) {
    const control::Heartbeat beat = sidecar.machine->heartbeat(schedule_.now());
    if (beat.target != target || beat.replicas.size() != options_.replicas) return false;
    for (const control::ReplicaReport& report : beat.replicas)
      if (!report.ready || report.version != target) return false;
  }
  return true;
}

std::string World::where() const {
  std::string text;
  if (coordinators_[0].machine)
    text += fmt::format("coordinator {}, target {}",
                        coordinator::phase_name(coordinators_[0].machine->phase()),
                        coordinators_[0].machine->target().to_string());
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    const control::Heartbeat beat = sidecars_[s].machine->heartbeat(schedule_.now());
    text += fmt::format("; s{} target {}", s, beat.target.to_string());
    for (const control::ReplicaReport& report : beat.replicas)
      text += fmt::format(", {} at {} ({}) {}", report.replica, report.version.to_string(),
                          report.ready ? "ready" : "not ready", report.reason);
  }
  return text;
}

}  // namespace wsync::simulation
