// The rules that hold after every step, and at the end.
#include <algorithm>
#include <cstdio>

#include "shared/base/format.h"
#include "tests/simulation/world.h"

namespace wsync::simulation {

namespace {

// for a publish or rollback, including the time in the queue
constexpr std::chrono::seconds kBound{25};

}  // namespace

void World::print_trace(const std::string& text) const {
  if (!text.empty())
    std::fprintf(stderr, "%10.6f %s\n", static_cast<double>(schedule_.now()) * 1e-9, text.c_str());
}

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

// Every request has had its answer in its time.
void World::check_ends() {
  for (const CoordinatorProcess& process : coordinators_) {
    for (const auto& [request, since] : process.publishes)
      if (!process.kept.contains(request) && schedule_.now() - since > kBound)
        violate("a publish did not end in its time");
    for (const auto& [request, since] : process.rollbacks)
      if (schedule_.now() - since > kBound) violate("a rollback did not end in its time");
    for (const auto& [request, since] : process.promotions)
      if (schedule_.now() - since > kBound) violate("a promotion did not end in its time");
  }
}

// Must hold before a new version is published: every joined sidecar has the coordinator's newest
// decision, and no sidecar's target differs from the coordinator's. If the trainer still has the
// target's snapshot, or a sidecar can pass the target on, every replica serves the target.
std::string World::unmet_obligation() const {
  const coordinator::Coordinator& coordinator = *coordinators_[0].machine;
  if (coordinator.phase() != coordinator::CoordinatorPhase::kReady)
    return fmt::format("the coordinator is {}", coordinator::phase_name(coordinator.phase()));
  const coordinator::CoordinatorRecord& record = coordinator.record();
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    if (!sidecars_[s].present) continue;
    const staging::SidecarRecord& disc = sidecars_[s].disc;
    const auto member = coordinator.roster().members().find(sidecars_[s].name);
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
  // A sidecar of an older release takes no version with parts.
  const bool has_parts = parted_.contains(record.target);
  const bool is_usable = std::ranges::all_of(sidecars_, [&](const SidecarProcess& process) {
    return !process.present ||
           (process.hub->can_use(record.target) && !(has_parts && process.is_older));
  });
  const bool can_come = coordinators_[0].snapshots.contains(record.target) ||
                        std::ranges::any_of(sidecars_, [&](const SidecarProcess& process) {
                          const auto copy = process.store.find(record.target);
                          return process.present && !process.is_older &&
                                 copy != process.store.end() &&
                                 copy->second == contents_.at(record.target) &&
                                 process.machine->held().is_complete(record.target);
                        });
  // Otherwise it is for a promotion to say.
  const bool is_for_all = record.kind != control::DecisionKind::kSwitchCanary;
  if (!record.target.none() && is_for_all && can_come && is_usable && !converged())
    return "a replica does not serve the target";
  return {};
}

bool World::is_owner(std::size_t c, const std::string& name, std::size_t s) const {
  if (!coordinators_[c].machine) return false;
  const auto member = coordinators_[c].machine->roster().members().find(name);
  return member == coordinators_[c].machine->roster().members().end() ||
         process_of(member->second.last_peer) == s;
}

std::string World::owner_of_name(std::size_t c, const coordinator::CoordinatorEvent& event) const {
  const auto* message = std::get_if<coordinator::PeerMessage>(&event.what);
  const auto* hello = message == nullptr ? nullptr : std::get_if<control::Hello>(&message->message);
  if (hello == nullptr || message->predecessor_gone) return {};
  const auto member = coordinators_[c].machine->roster().members().find(hello->name);
  if (member == coordinators_[c].machine->roster().members().end()) return {};
  return member->second.peer == message->peer ? std::string() : member->second.peer;
}

// A name belongs to the process that is connected under it, until the connection ends.
void World::check_name(std::size_t c, const coordinator::CoordinatorEvent& event,
                       const std::string& owner) {
  const auto* message = std::get_if<coordinator::PeerMessage>(&event.what);
  const auto* hello = message == nullptr ? nullptr : std::get_if<control::Hello>(&message->message);
  if (hello == nullptr) return;
  const auto sender = process_of(message->peer);
  const auto member = coordinators_[c].machine->roster().members().find(hello->name);
  const bool has_it = member != coordinators_[c].machine->roster().members().end() &&
                      member->second.peer == message->peer;
  if (has_it && !owner.empty())
    violate(fmt::format("{} takes the name {} while {} is connected", message->peer, hello->name,
                        owner));
  if (has_it && sender && is_twin(*sender)) ++statistics_.names_taken;
  if (!owner.empty() && sender && process_of(owner) != sender) ++statistics_.names_refused;
}

// Only an operator may have a sidecar forgotten that does not know of a withdrawn version. (Events
// that waited for the store follow in the same step. They may withdraw another version.)
void World::check_forgotten(const coordinator::Forgotten& forgotten,
                            const std::vector<Version>& withdrawn) {
  ++statistics_.forgotten;
  if (forced_.contains(forgotten.sidecar)) return;
  for (std::size_t s = 0; s < sidecars_.size(); ++s)
    if (sidecars_[s].name == forgotten.sidecar)
      for (const Version& version : withdrawn)
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
  // (Until the write has been answered, the process cannot know that its disk says so.)
  const std::vector<Version>& withdrawn = sidecars_[s].machine->record().withdrawn;
  if (std::ranges::find(withdrawn, version) != withdrawn.end())
    violate(
        fmt::format("'{}' activates {}, which was withdrawn", group.name(), version.to_string()));
  const auto gone = gone_for_good_.find(version);
  if (gone != gone_for_good_.end() && gone->second.contains(s))
    violate(fmt::format("'{}' activates {} after its rollback was reported as done", group.name(),
                        version.to_string()));
}

bool World::converged() const {
  const CoordinatorProcess& process = coordinators_[0];
  if (!process.machine || process.machine->phase() != coordinator::CoordinatorPhase::kReady)
    return false;
  const Version target = process.machine->target();
  for (const SidecarProcess& sidecar : sidecars_) {
    if (!sidecar.present) continue;
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
    text += fmt::format("coordinator {}, epoch {}, target {} (kind {}, {} wait for a canary)",
                        coordinator::phase_name(coordinators_[0].machine->phase()),
                        coordinators_[0].machine->fence().epoch,
                        coordinators_[0].machine->target().to_string(),
                        static_cast<int>(coordinators_[0].machine->record().kind),
                        coordinators_[0].machine->canary_waiting());
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    if (!sidecars_[s].machine) continue;
    const control::Heartbeat beat = sidecars_[s].machine->heartbeat(schedule_.now());
    text += fmt::format(
        "; s{} ({}, epoch {}, {}) target {}", s, sidecars_[s].home ? "connected" : "not connected",
        sidecars_[s].machine->fence().epoch,
        sidecars_[s].machine->welcomed() ? "welcomed" : "not welcomed", beat.target.to_string());
    for (const control::ReplicaReport& report : beat.replicas)
      text += fmt::format(", {} at {} ({}) {}", report.replica, report.version.to_string(),
                          report.ready ? "ready" : "not ready", report.reason);
    text += fmt::format(" held");
    for (const Version& version : beat.staged) text += " " + version.to_string();
    if (coordinators_[0].machine) {
      const auto member = coordinators_[0].machine->roster().members().find(sidecars_[s].name);
      if (member != coordinators_[0].machine->roster().members().end())
        text += fmt::format(" (delivery {} {})",
                            coordinator::delivery_state_name(member->second.delivery.state()),
                            member->second.delivery.version().to_string());
    }
  }
  return text;
}

}  // namespace wsync::simulation
