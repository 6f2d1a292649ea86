// SwitchWaves: how many replicas of each sidecar may switch now, so that a publish pauses no more
// than `max_paused` replicas of the fleet at once. A place is the right to pause one replica. The
// sidecars that have replicas waiting get the free places in the order in which they began to wait,
// and a place is free again when the sidecar needs it no more, or is lost.
//
// Nothing of this is stored: a restarted coordinator learns from the Hellos and heartbeats which
// replicas wait and which switch, and shares the places anew.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::coordinator {

enum class WaveState : std::uint8_t {
  kNone,     // none of its replicas waits for a turn, and it has no places
  kQueued,   // its replicas wait, and it has no places
  kGranted,  // it has places
};
[[nodiscard]] std::string_view wave_state_name(WaveState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable wave_transitions();

// What a sidecar reports about the turns of its replicas (control::ReplicaTurn, control::Turns).
struct TurnNeeds {
  std::uint32_t waiting = 0;  // replicas that wait for a turn
  std::uint32_t held = 0;     // replicas that hold one
  std::uint32_t known = 0;    // turns that the sidecar may give
};

class SwitchWaves {
 public:
  // `limit`: places in the whole fleet; 0: as many as are needed.
  explicit SwitchWaves(std::uint32_t limit) : limit_(limit) {}

  // A report of a sidecar. It loses the places that it does not need. Returns whether one of its
  // replicas has begun to switch in its turn, or needs no turn any more.
  bool report(const std::string& name, const TurnNeeds& needs);
  // The sidecar is lost, so its places are free.
  void forget(const std::string& name);
  // Shares the free places. Returns the names of the sidecars that have got more.
  [[nodiscard]] std::vector<std::string> share();

  // How many turns the sidecar may give now.
  [[nodiscard]] std::uint32_t turns(const std::string& name) const;
  // Number of replicas that wait, of all sidecars.
  [[nodiscard]] std::uint32_t waiting() const noexcept { return waiting_; }
  // Places that are taken. More than the limit only if sidecars report turns that they were not
  // given by this process.
  [[nodiscard]] std::uint64_t used() const noexcept { return used_; }
  [[nodiscard]] WaveState state(const std::string& name) const;
  // Counts everything again. Returns kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Sidecar {
    WaveState state = WaveState::kNone;
    TurnNeeds needs;
    std::uint32_t turns = 0;
    std::uint64_t position = 0;  // in the queue, while its replicas wait
    // A turn that the sidecar still has, or that a replica still holds, counts until it reports
    // that this has ended.
    [[nodiscard]] std::uint32_t used() const;
    [[nodiscard]] std::uint32_t wanted() const { return needs.waiting + needs.held; }
  };

  static void move(Sidecar& sidecar, WaveState to);
  void set(const std::string& name, Sidecar& sidecar, const TurnNeeds& needs);

  std::uint32_t limit_;
  std::map<std::string, Sidecar> sidecars_;
  std::set<std::pair<std::uint64_t, std::string>> queue_;  // of those whose replicas wait
  std::uint64_t next_position_ = 0;
  std::uint64_t used_ = 0;
  std::uint32_t waiting_ = 0;
};

}  // namespace wsync::coordinator
