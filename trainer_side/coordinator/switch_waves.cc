#include "trainer_side/coordinator/switch_waves.h"

#include <algorithm>
#include <array>
#include <limits>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::coordinator {
namespace {

constexpr std::array<Transition<WaveState>, 6> kWaveTransitions = {{
    {WaveState::kNone, "its replicas wait for a turn", WaveState::kQueued, "note its position"},
    {WaveState::kQueued, "a place is free", WaveState::kGranted, "Turns"},
    {WaveState::kQueued, "its replicas need no turn any more, or it is lost", WaveState::kNone, ""},
    {WaveState::kGranted, "more places are free, or it needs fewer", WaveState::kGranted, "Turns"},
    {WaveState::kGranted, "it needs no place, or it is lost", WaveState::kNone,
     "Turns with 0; share the places"},
    {WaveState::kGranted, "it has a newer decision, and its replicas wait again",
     WaveState::kQueued, "Turns with 0; share the places"},
}};

}  // namespace

std::string_view wave_state_name(WaveState state) noexcept {
  switch (state) {
    case WaveState::kNone:
      return "none";
    case WaveState::kQueued:
      return "queued";
    case WaveState::kGranted:
      return "granted";
  }
  return "unknown";
}

TransitionTable wave_transitions() {
  return describe<WaveState>("SwitchWaves",
                             "The places of one sidecar while replicas switch in turns "
                             "(`max_paused`).",
                             kWaveTransitions, wave_state_name);
}

std::uint32_t SwitchWaves::Sidecar::used() const {
  return std::max({turns, needs.known, needs.held});
}

void SwitchWaves::move(Sidecar& sidecar, WaveState to) {
  if (sidecar.state == to && to != WaveState::kGranted) return;
  WSYNC_CHECK(allows<WaveState>(kWaveTransitions, sidecar.state, to),
              fmt::format("the places of a sidecar cannot go from {} to {}",
                          wave_state_name(sidecar.state), wave_state_name(to)));
  sidecar.state = to;
}

void SwitchWaves::set(const std::string& name, Sidecar& sidecar, const TurnNeeds& needs) {
  used_ -= sidecar.used();
  waiting_ -= sidecar.needs.waiting;
  const bool waited = sidecar.needs.waiting > 0;
  sidecar.needs = needs;
  sidecar.turns = std::min(sidecar.turns, sidecar.wanted());
  used_ += sidecar.used();
  waiting_ += needs.waiting;
  if (waited && needs.waiting == 0) queue_.erase({sidecar.position, name});
  if (!waited && needs.waiting > 0) {
    sidecar.position = next_position_++;
    queue_.insert({sidecar.position, name});
  }
  move(sidecar, sidecar.turns > 0   ? WaveState::kGranted
                : needs.waiting > 0 ? WaveState::kQueued
                                    : WaveState::kNone);
}

bool SwitchWaves::report(const std::string& name, const TurnNeeds& needs) {
  Sidecar& sidecar = sidecars_[name];
  const bool begun = needs.waiting < sidecar.needs.waiting;
  set(name, sidecar, needs);
  return begun;
}

void SwitchWaves::forget(const std::string& name) {
  const auto sidecar = sidecars_.find(name);
  if (sidecar == sidecars_.end()) return;
  set(name, sidecar->second, {});
  sidecars_.erase(sidecar);
}

std::vector<std::string> SwitchWaves::share() {
  std::vector<std::string> more;
  constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t limit = limit_ == 0 ? kAll : limit_;
  for (auto next = queue_.begin(); next != queue_.end() && used_ < limit; ++next) {
    Sidecar& sidecar = sidecars_.at(next->second);
    const std::uint64_t may_use = sidecar.used() + (limit - used_);
    const auto turns =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(sidecar.wanted(), may_use));
    if (turns <= sidecar.turns) continue;
    used_ -= sidecar.used();
    sidecar.turns = turns;
    used_ += sidecar.used();
    move(sidecar, WaveState::kGranted);
    more.push_back(next->second);
  }
  return more;
}

std::uint32_t SwitchWaves::turns(const std::string& name) const {
  const auto sidecar = sidecars_.find(name);
  return sidecar == sidecars_.end() ? 0 : sidecar->second.turns;
}

WaveState SwitchWaves::state(const std::string& name) const {
  const auto sidecar = sidecars_.find(name);
  return sidecar == sidecars_.end() ? WaveState::kNone : sidecar->second.state;
}

Result<> SwitchWaves::invariants() const {
  const auto broken = [](std::string rule) { return fail(ErrorCode::kInternal, std::move(rule)); };
  std::uint64_t used = 0;
  std::uint64_t given = 0;
  std::uint32_t waiting = 0;
  std::size_t queued = 0;
  for (const auto& [name, sidecar] : sidecars_) {
    used += sidecar.used();
    given += sidecar.turns;
    waiting += sidecar.needs.waiting;
    if (sidecar.turns > sidecar.wanted())
      return broken(fmt::format("sidecar '{}' has {} turns and needs {}", name, sidecar.turns,
                                sidecar.wanted()));
    if (sidecar.needs.waiting == 0) continue;
    ++queued;
    if (!queue_.contains({sidecar.position, name}))
      return broken(fmt::format("sidecar '{}' waits, but is not in the queue", name));
  }
  if (used != used_ || waiting != waiting_ || queued != queue_.size())
    return broken(fmt::format("{} places are counted as taken, and {} are", used_, used));
  if (limit_ > 0 && given > limit_)
    return broken(fmt::format("{} turns are given, at most {} are allowed", given, limit_));
  return {};
}

}  // namespace wsync::coordinator
