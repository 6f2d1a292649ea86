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
    if (!process.machine || stage.source != address_of(c)) continue;
    const auto found = process.snapshots.find(stage.version);
    if (found == process.snapshots.end()) continue;
    const bool maps = stage.transport == "memfd" && is_on_trainers_host(reader);
    if (parted_.contains(stage.version) && (stage.transport == "memfd" || stage.parts.size() != 1))
      violate(fmt::format("s{} takes {} from the trainer by {} from {} ranks, but it has 2 parts",
                          reader, stage.version.to_string(), stage.transport,
                          stage.parts.size() + 1));
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
    const auto relayed = process.relayed.find(stage.version);
    if (relayed == process.relayed.end() || relayed->second != sidecars_[reader].machine->fence())
      continue;
    // Only who has the base can use what changes from it.
    if (const auto change = process.changes.find(stage.version);
        change != process.changes.end() && !sidecars_[reader].store.contains(change->second))
      continue;
    if (found != process.store.end()) return Fetched{.content = found->second, .lease = {}};
    if (const auto content = contents_.find(stage.version);
        process.machine->incoming() == stage.version && content != contents_.end())
      return Fetched{.content = content->second, .lease = {}};
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
  const bool maps = command.stage.transport == "memfd";
  if (!maps) sidecars_[s].relayed[command.announce.version] = sidecars_[s].machine->fence();
  schedule_.after(schedule_.micros(2'000, 60'000), [=, this, life = sidecars_[s].life] {
    if (sidecars_[s].life == life) in_sidecar(s, [=, this] { end_staging(s, command); });
  });
}

void World::end_staging(std::size_t s, const staging::StartStaging& command) {
  SidecarProcess& process = sidecars_[s];
  // An older coordinator does not say it: a sidecar passes the version on as one part then.
  const bool says_it = std::ranges::none_of(
      coordinators_, [](const CoordinatorProcess& each) { return each.is_older; });
  const bool is_told = !command.announce.parts.empty();
  if (parted_.contains(command.announce.version) != is_told && (is_told || says_it))
    violate(fmt::format("s{} stages {} and was not told how it is cut", s,
                        command.announce.version.to_string()));
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
  // Its base is another copy of its own, which has its bytes.
  const bool as_changes =
      !fetched.lease && process.own_leases.contains(command.base) && schedule_.chance(0.8);
  // Then this is the late end of an earlier attempt.
  const bool was_held = process.machine->held().find(version) != nullptr;
  if (!as_changes && !was_held) process.hub->add_version(version);
  sidecar_step(s, {.now = schedule_.now(),
                   .what = staging::StagingDone{.attempt = command.attempt,
                                                .content_digest = fetched.content,
                                                .bytes = 1,
                                                .base = as_changes ? command.base : Version{}}});
  if (was_held) return;
  if (process.machine && process.machine->held().find(version) != nullptr) {
    process.store[version] = fetched.content;
    if (as_changes) {
      ++statistics_.as_changes;
      process.changes[version] = command.base;
    } else {
      (fetched.lease ? process.leases : process.own_leases)[version] =
          fetched.lease ? fetched.lease : std::make_shared<const int>(0);
    }
  } else {
    process.hub->remove_version(version);
  }
}

// As the receiver: in place when nobody reads the base any more, or in other memory after a while.
void World::complete(std::size_t s, const staging::CompleteVersion& command, TimePoint begin) {
  schedule_.after(schedule_.micros(100, 5'000), [=, this, life = sidecars_[s].life] {
    if (sidecars_[s].life != life) return;
    in_sidecar(s, [=, this] {
      const auto lease = sidecars_[s].own_leases.find(command.base);
      const bool is_read = lease != sidecars_[s].own_leases.end() && lease->second.use_count() > 1;
      if (command.in_place && is_read && schedule_.now() - begin < std::chrono::milliseconds(50))
        return complete(s, command, begin);
      const bool in_place = command.in_place && !is_read;
      // While the memory is changed it belongs to nobody.
      if (in_place) sidecars_[s].own_leases.erase(command.base);
      schedule_.after(schedule_.micros(500, 20'000), [=, this] {
        if (sidecars_[s].life == life)
          in_sidecar(s, [=, this] { end_completion(s, command, in_place); });
      });
    });
  });
}

void World::end_completion(std::size_t s, const staging::CompleteVersion& command, bool in_place) {
  SidecarProcess& process = sidecars_[s];
  trace([&] {
    return fmt::format("{} has made {} of {} {}", process.peer, command.version.to_string(),
                       command.base.to_string(), in_place ? "in place" : "in other memory");
  });
  // What has changed in the base may be among the words that are compared, or not.
  const bool has_changed = process.store[command.base] != contents_[command.base];
  const bool fails = faults_on_ && schedule_.chance(has_changed ? 0.5 : 0.02);
  if (fails) {
    if (in_place) ++statistics_.bases_lost;
    if (command.in_place && !in_place) process.hub->add_version(command.base);
    sidecar_step(s, {.now = schedule_.now(),
                     .what = staging::VersionCompleted{.version = command.version,
                                                       .failure = "a block differs",
                                                       .in_place = in_place,
                                                       .base_lost = in_place,
                                                       .no_memory = schedule_.chance(0.5)}});
    return;
  }
  ++(in_place ? statistics_.in_place : statistics_.beside);
  if (has_changed) process.store[command.version] = Digest{.low = 4};
  if (in_place) process.changes[command.base] = command.version;
  if (command.in_place && !in_place) process.hub->add_version(command.base);
  process.changes.erase(command.version);
  process.relayed[command.version] = process.machine->fence();
  process.own_leases[command.version] = std::make_shared<const int>(0);
  process.hub->add_version(command.version);
  sidecar_step(s, {.now = schedule_.now(),
                   .what = staging::VersionCompleted{
                       .version = command.version, .failure = {}, .in_place = in_place}});
}

void World::relay_held(std::size_t s, const staging::RelayHeld& command) {
  SidecarProcess& process = sidecars_[s];
  ++statistics_.relayed;
  if (command.with_layout) ++statistics_.described;
  const staging::HeldCopy* copy = process.machine->held().find(command.version);
  if (copy == nullptr || process.changes.contains(command.version))
    return violate(fmt::format(
        "{} is to pass on {}, {}", process.peer, command.version.to_string(),
        copy == nullptr ? "which it does not hold" : "of which only what changes is here"));
  process.relayed[command.version] = process.machine->fence();
  control::Envelope envelope = process.machine->envelope();
  envelope.request = command.request;
  to_coordinator(
      s, envelope,
      control::RelayReady{.version = command.version,
                          .layout_digest = {.low = 5},
                          .layout = command.with_layout ? Bytes(1) : Bytes(),
                          .content_digest = copy->content,
                          .bucket_bytes = 1,
                          .arena_bytes = 1,
                          .failure = {},
                          .parts = parted_.contains(command.version) ? Bytes(1) : Bytes()});
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
    if (!process.machine->held().is_complete(load->version))
      violate(fmt::format("{} loads {}, whose bytes are not here", command.replica,
                          load->version.to_string()));
    // A bit of the copy flips, or an engine fails to load for an unrelated reason. A copy that is
    // loaded in the same step that staged it is not in the store yet.
    const bool stored = copy != process.store.end();
    if (stored && faults_on_ && schedule_.chance(0.005 * intensity_))
      copy->second = Digest{.low = 4};
    const bool changed = stored && copy->second != contents_[load->version];
    const bool spoiled = changed || (faults_on_ && schedule_.chance(0.02 * intensity_));
    Lease lease;
    for (const auto* leases : {&process.leases, &process.own_leases})
      if (const auto found = leases->find(load->version); found != leases->end())
        lease = found->second;
    process.hub->begin(command.replica, *load, stored ? copy->second : contents_[load->version],
                       lease, spoiled);
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
