// EngineLiveness: finds engines that no longer poll their link. Each engine is asked by a Ping, at
// most one at a time, and every message of it counts as an answer.
//
// An engine is silent when it has not answered during kTicks calls of tick(). Calls are counted
// instead of time, so that a sidecar that was itself suspended does not find its engines silent.
//
// Pure: no I/O. Thread: confined to one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"

namespace wsync::agent {

class EngineLiveness {
 public:
  static constexpr std::uint32_t kTicks = 4;
  // Call tick() so often that an engine is silent after `deadline`.
  [[nodiscard]] static std::chrono::milliseconds interval(std::chrono::milliseconds deadline) {
    return std::max(deadline / kTicks, std::chrono::milliseconds(1));
  }

  void attach(reload::EngineId engine) { engines_[engine] = {}; }
  void detach(reload::EngineId engine) { engines_.erase(engine); }
  // The engine has sent a message. Returns whether it was silent until now.
  bool heard(reload::EngineId engine);

  struct Due {
    std::vector<reload::EngineId> ping;    // send Ping to these
    std::vector<reload::EngineId> silent;  // these have become silent
  };
  // `is_busy`: the engine executes a command that has a deadline of its own, during which it does
  // not poll.
  [[nodiscard]] Due tick(const std::function<bool(reload::EngineId)>& is_busy);
  [[nodiscard]] bool is_silent(reload::EngineId engine) const;

 private:
  struct State {
    bool asked = false;  // a Ping has no answer
    std::uint32_t ticks = 0;
    bool silent = false;
  };
  std::map<reload::EngineId, State> engines_;
};

}  // namespace wsync::agent
