#include "inference_side/reference_engine/step_gate.h"

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine::reference {

StepGate StepGate::holding(const Version& version) {
  StepGate gate;
  gate.state_ = {.phase = GatePhase::kPaused, .version = version};
  return gate;
}

Result<bool> StepGate::enter(const Version& version) {
  const std::lock_guard lock(mutex_);
  if (state_.phase == GatePhase::kLoading)
    return fail(ErrorCode::kRefused, "the rank is loading and holds no version");
  if (state_.inside) return fail(ErrorCode::kRefused, "the rank is inside a step already");
  if (state_.version != version && !planted("header_not_compared"))
    return fail(ErrorCode::kRefused,
                fmt::format("the rank holds version {}, the step's header says {}",
                            state_.version.to_string(), version.to_string()));
  const bool began = state_.phase == GatePhase::kPaused;
  state_.phase = GatePhase::kServing;
  state_.inside = true;
  return began;
}

void StepGate::leave() {
  const std::lock_guard lock(mutex_);
  state_.inside = false;
}

bool StepGate::stop() {
  const std::lock_guard lock(mutex_);
  state_.inside = false;
  if (state_.phase == GatePhase::kServing) state_.phase = GatePhase::kPaused;
  return state_.phase == GatePhase::kPaused;
}

Result<> StepGate::resume() {
  const std::lock_guard lock(mutex_);
  if (state_.phase == GatePhase::kLoading)
    return fail(ErrorCode::kRefused, "the rank is loading and holds no version to serve");
  state_.phase = GatePhase::kServing;
  return {};
}

Result<> StepGate::begin_load(bool in_place) {
  const std::lock_guard lock(mutex_);
  if (state_.phase == GatePhase::kServing)
    return fail(ErrorCode::kRefused, "the rank serves; its weights do not change before a pause");
  if (in_place) state_ = {};
  return {};
}

Result<> StepGate::commit(const Version& version) {
  const std::lock_guard lock(mutex_);
  if (state_.phase == GatePhase::kServing)
    return fail(ErrorCode::kRefused,
                fmt::format("the rank serves version {}; it cannot become {} before a pause",
                            state_.version.to_string(), version.to_string()));
  state_ = {.phase = GatePhase::kPaused, .version = version};
  return {};
}

StepGate::View StepGate::view() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace wsync::engine::reference
