// What a sidecar of the world does around its state machine: it stores, it fetches versions, and it
// passes commands to its engines.
#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "tests/simulation/world.h"

namespace wsync::simulation {

// A crash between the write and its answer leaves the new record.
void World::persist(std::size_t s, const staging::Persist& command) {
  const std::uint64_t life = sidecars_[s].life;
  const bool full =
      faults_on_ && (schedule_.chance(0.01) || schedule_.now() < sidecars_[s].disc_works_at);
  if (full) ++statistics_.writes_failed;
  const TimePoint begin = std::max(schedule_.now(), sidecars_[s].disc_hangs_until);
  schedule_.at(begin + schedule_.micros(50, 5'000), [=, this, record = command.record] {
    if (sidecars_[s].life != life) return;
    if (!full) sidecars_[s].disc = record;
    schedule_.after(schedule_.micros(10, 1'000), [=, this] {
      if (sidecars_[s].life != life) return;
      sidecar_step(s, {.now = schedule_.now(),
                       .what = staging::Persisted{.token = command.token,
                                                  .failure = full ? "no space left" : ""}});
    });
  });
}

// Returns the bytes behind a source: the snapshot of a coordinator, or another sidecar that has the
// bytes or is receiving them.
std::optional<World::Fetched> World::fetch(std::size_t reader, const control::Stage& stage) {
  for (std::size_t c = 0; c < coordinators_.size(); ++c) {
    const CoordinatorProcess& process = coordinators_[c];
    if (!process.machine || stage.source != fmt::format("c{}#{}", c, process.life)) continue;
    const auto found = process.snapshots.find(stage.version);
    if (found == process.snapshots.end()) continue;
    const bool maps = stage.transport == "memfd" && is_on_trainers_host(reader);
    if (stage.transport == "memfd" && !found->second.complete)
      violate(fmt::format("s{} maps {}, whose snapshot is being taken", reader,
                          stage.version.to_string()));
    return Fetched{.content = found->second.content,
                   .lease = maps ? found->second.hold.lease : Lease{},
                   .complete = found->second.complete};
  }
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    const SidecarProcess& process = sidecars_[s];
    if (!process.machine || process.stopped || stage.source != fmt::format("s{}", s)) continue;
    const auto found = process.store.find(stage.version);
    if (found != process.store.end()) return Fetched{.content = found->second, .lease = {}};
    if (process.machine->incoming() == stage.version)
      return Fetched{.content = contents_.at(stage.version), .lease = {}};
  }
  return std::nullopt;
}

void World::stage(std::size_t s, const staging::StartStaging& command) {
  std::optional<Incoming>& incoming = sidecars_[s].incoming;
  const bool goes_on =
      command.resume && incoming && incoming->command.announce.version == command.announce.version;
  const Digest known = goes_on ? incoming->expected : Digest{};
  const Digest& announced = command.announce.content_digest;
  incoming = Incoming{
      .command = command, .expected = announced == Digest{} ? known : announced, .bytes = {}};
  schedule_.after(schedule_.micros(2'000, 60'000), [=, this, life = sidecars_[s].life] {
    if (sidecars_[s].life == life) in_sidecar(s, [=, this] { end_staging(s, command); });
  });
}

void World::end_staging(std::size_t s, const staging::StartStaging& command) {
  SidecarProcess& process = sidecars_[s];
  std::optional<Fetched> fetched = fetch(s, command.stage);
  if (fetched && faults_on_ && schedule_.chance(0.01 * intensity_))
    fetched->content = Digest{.low = 3};  // corrupted
  if (!fetched || (faults_on_ && schedule_.chance(0.01 * intensity_))) {
    sidecar_step(
        s, {.now = schedule_.now(),
            .what = staging::StagingFailed{
                .attempt = command.attempt, .reason = "the source hung up", .source_lost = true}});
    return;
  }
  if (!fetched->complete) {  // the last bucket is missing
    schedule_.after(schedule_.micros(500, 5'000), [=, this, life = process.life] {
      if (sidecars_[s].life == life) in_sidecar(s, [=, this] { end_staging(s, command); });
    });
    return;
  }
  bytes_arrived(s, command, *fetched);
}

// The bytes are compared when their digest is known.
void World::bytes_arrived(std::size_t s, const staging::StartStaging& command,
                          const Fetched& fetched) {
  SidecarProcess& process = sidecars_[s];
  const bool is_current = process.incoming && process.incoming->command.attempt == command.attempt;
  if (is_current && process.incoming->expected == Digest{}) {
    ++statistics_.bytes_first;
    process.incoming->bytes = fetched;
    return;
  }
  if (is_current) process.incoming.reset();
  const Version& version = command.announce.version;
  process.hub->add_version(version);
  sidecar_step(s, {.now = schedule_.now(),
                   .what = staging::StagingDone{
                       .attempt = command.attempt, .content_digest = fetched.content, .bytes = 1}});
  if (process.machine && process.machine->held().find(version) != nullptr) {
    process.store[version] = fetched.content;
    if (fetched.lease) process.leases[version] = fetched.lease;
  } else {
    process.hub->remove_version(version);
  }
}

void World::expect_content(std::size_t s, const staging::ExpectContent& command) {
  SidecarProcess& process = sidecars_[s];
  if (!process.incoming || process.incoming->command.announce.version != command.version) return;
  process.incoming->expected = command.content_digest;
  if (!process.incoming->bytes) return;
  const staging::StartStaging staging = process.incoming->command;
  schedule_.after(schedule_.micros(10, 500),
                  [=, this, life = process.life, bytes = *process.incoming->bytes] {
                    if (sidecars_[s].life == life)
                      in_sidecar(s, [=, this] { bytes_arrived(s, staging, bytes); });
                  });
}

// While only the canary gets a version, no other replica that serves may be paused for it.
void World::check_may_pause(std::size_t s, const EngineGroup& group) {
  const staging::Sidecar& sidecar = *sidecars_[s].machine;
  if (sidecar.record().kind != control::DecisionKind::kSwitchCanary || group.name() == kCanary ||
      !group.serves())
    return;
  for (const control::ReplicaReport& report : sidecar.heartbeat(schedule_.now()).replicas)
    if (report.replica == group.name() && report.turn != control::ReplicaTurn::kNone)
      violate(fmt::format("'{}' is paused for {}, which only the canary may take", group.name(),
                          sidecar.record().target.to_string()));
}

void World::for_replica(std::size_t s, const staging::ForReplica& command) {
  SidecarProcess& process = sidecars_[s];
  if (const auto* pause = std::get_if<reload::SendPause>(&command.command)) {
    if (EngineGroup* group = process.hub->group_of(command.replica, pause->rank)) {
      check_may_pause(s, *group);
      group->pause(pause->rank, pause->request);
    }
  } else if (const auto* load = std::get_if<reload::BeginLoad>(&command.command)) {
    const auto copy = process.store.find(load->version);
    if (process.machine->held().find(load->version) == nullptr)
      violate(fmt::format("{} loads {}, which is not held", command.replica,
                          load->version.to_string()));
    // A bit of the copy flips, or an engine fails to load for an unrelated reason. A copy that is
    // loaded in the same step that staged it is not in the store yet.
    const bool stored = copy != process.store.end();
    if (stored && faults_on_ && schedule_.chance(0.005 * intensity_))
      copy->second = Digest{.low = 4};
    const bool changed = stored && copy->second != contents_[load->version];
    const bool spoiled = changed || (faults_on_ && schedule_.chance(0.02 * intensity_));
    const auto lease = process.leases.find(load->version);
    process.hub->begin(command.replica, *load, stored ? copy->second : contents_[load->version],
                       lease == process.leases.end() ? Lease{} : lease->second, spoiled);
  } else if (const auto* cancel = std::get_if<reload::CancelLoad>(&command.command)) {
    process.hub->cancel(command.replica, cancel->request);
  } else if (const auto* commit = std::get_if<reload::SendCommit>(&command.command)) {
    if (EngineGroup* group = process.hub->group_of(command.replica, commit->rank)) {
      check_may_run(s, *group, commit->version);
      group->commit(commit->rank, commit->request, commit->version);
    }
  } else if (const auto* resume = std::get_if<reload::SendResume>(&command.command)) {
    if (EngineGroup* group = process.hub->group_of(command.replica, resume->rank)) {
      check_may_run(s, *group, group->ranks()[resume->rank].active());
      group->resume(resume->rank, resume->request);
    }
  }
}

}  // namespace wsync::simulation
