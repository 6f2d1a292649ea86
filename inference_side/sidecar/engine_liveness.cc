#include "inference_side/sidecar/engine_liveness.h"

#include <utility>

namespace wsync::agent {

bool EngineLiveness::heard(reload::EngineId engine) {
  const auto found = engines_.find(engine);
  if (found == engines_.end()) return false;
  return std::exchange(found->second, {}).silent;
}

EngineLiveness::Due EngineLiveness::tick(const std::function<bool(reload::EngineId)>& is_busy) {
  Due due;
  for (auto& [engine, state] : engines_) {
    if (is_busy(engine)) {
      state.ticks = 0;
      continue;
    }
    if (!std::exchange(state.asked, true)) {
      due.ping.push_back(engine);
      state.ticks = 0;
    } else if (!state.silent && ++state.ticks >= kTicks) {
      state.silent = true;
      due.silent.push_back(engine);
    }
  }
  return due;
}

bool EngineLiveness::is_silent(reload::EngineId engine) const {
  const auto found = engines_.find(engine);
  return found != engines_.end() && found->second.silent;
}

}  // namespace wsync::agent
