// Sidecars that join and leave, those with equal names, and processes that stand still.
#include <algorithm>
#include <utility>

#include "tests/simulation/world.h"

namespace wsync::simulation {

using std::chrono::milliseconds;

// ---- membership ----

std::size_t World::present_count() const {
  std::size_t count = 0;
  for (std::size_t s = 0; s < sidecars_.size(); ++s)
    count += sidecars_[s].present && !is_twin(s) ? 1U : 0U;
  return count;
}

void World::change_membership() {
  const std::size_t s = schedule_.pick(0, options_.sidecars + options_.late - 1);
  if (!sidecars_[s].present)
    join(s);
  else if (present_count() > 1)
    leave(s);
}

void World::join(std::size_t s) {
  SidecarProcess& process = sidecars_[s];
  if (process.present) return;
  ++(std::exchange(process.was_there, true) ? statistics_.returns : statistics_.joins);
  process.present = true;
  start_sidecar(s);
  start_engines(s);
}

// Its engines mostly end before it. It comes back with what it has stored.
void World::leave(std::size_t s) {
  SidecarProcess& process = sidecars_[s];
  if (!process.machine || process.stopped) return;
  ++statistics_.leaves;
  process.present = false;
  if (schedule_.chance(0.7)) crash_engines(s);
  schedule_.after(schedule_.micros(1'000, 50'000), [this, s, life = process.life] {
    if (sidecars_[s].present) return;  // it has changed its mind
    if (sidecars_[s].life == life)
      in_sidecar(s, [this, s] {
        control::Envelope envelope;
        envelope.fence = sidecars_[s].machine->fence();
        to_coordinator(s, envelope, numbered_heartbeat(s));
        to_coordinator(s, envelope, control::Leave{});
      });
    schedule_.after(milliseconds(5), [this, s] {
      crash_sidecar(s);
      if (sidecars_[s].present)
        start_sidecar(s);
      else
        crash_engines(s);
    });
  });
}

void World::start_engines(std::size_t s) {
  for (std::uint32_t r = 0; r < options_.replicas; ++r)
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) sidecars_[s].groups[r]->start(rank);
}

void World::crash_engines(std::size_t s) {
  for (const auto& group : sidecars_[s].groups)
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) group->crash(rank);
}

// ---- equal names ----

// Starts another process with the name of a sidecar, on another host and with its own disk, or one
// with the name of a replica, on the host of that replica.
void World::start_twin() {
  if (schedule_.chance(0.5)) {
    sidecars_[*twin_].present = true;
    start_sidecar(*twin_);
    start_engines(*twin_);
    return;
  }
  EngineGroup& group = *sidecars_[0].groups.back();
  if (!sidecars_[0].present) return;
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) group.start(rank);
}

void World::stop_twin() {
  if (schedule_.chance(0.5)) {
    sidecars_[*twin_].present = false;
    crash_sidecar(*twin_);
    crash_engines(*twin_);
    return;
  }
  EngineGroup& group = *sidecars_[0].groups.back();
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) group.crash(rank);
}

// The operators find the mistake.
void World::stop_twins() {
  if (!twin_) return;
  sidecars_[*twin_].present = false;
  crash_sidecar(*twin_);
  crash_engines(*twin_);
  EngineGroup& group = *sidecars_[0].groups.back();
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) group.crash(rank);
}

// ---- processes that stand still ----

// Without a time it stands still as long as there are faults. It keeps its leases, and its peers
// find that it is silent.
void World::stand_still(std::size_t s, std::optional<std::chrono::nanoseconds> time) {
  SidecarProcess& process = sidecars_[s];
  if (!process.machine || process.stopped) return;
  ++statistics_.stops;
  process.stopped = true;
  const std::uint64_t stop = ++process.stops;
  const TimePoint until = time ? schedule_.now() + *time : calm_at_;
  if (process.home) lose_late(s, *process.home, process.peer);
  if (schedule_.chance(0.5))
    for (const auto& group : process.groups) group->stand_still(until);
  schedule_.at(until, [this, s, stop] {
    if (sidecars_[s].stops == stop) go_on(s);
  });
}

void World::go_on(std::size_t s) {
  SidecarProcess& process = sidecars_[s];
  if (!std::exchange(process.stopped, false)) return;
  const std::uint64_t stop = ++process.stops;
  while (process.stops == stop && !process.waiting.empty()) {
    const auto action = std::move(process.waiting.front());
    process.waiting.pop_front();
    action();
  }
  if (process.stops == stop)
    for (const auto& group : process.groups) group->attach_all();
}

void World::in_sidecar(std::size_t s, std::function<void()> action) {
  SidecarProcess& process = sidecars_[s];
  if (!process.machine) return;
  if (process.stopped)
    process.waiting.push_back(std::move(action));
  else
    action();
}

}  // namespace wsync::simulation
