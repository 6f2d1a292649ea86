// StepGate: decides whether a rank may take part in a step and whether its weights may change. It
// is the only place where the serving thread and the loading thread meet.
//
//   loading --commit--> paused --resume (leader), go with its version (follower)--> serving
//   serving --stop, a broken group, a refused header--> paused
//   paused --begin_load (copying)--> loading
//
// Thread: any; every method is atomic.
#pragma once

#include <cstdint>
#include <mutex>

#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::engine::reference {

enum class GatePhase : std::uint8_t {
  kLoading,  // the memory does not hold a complete version
  kPaused,   // the weights are complete, but the rank does not serve
  kServing,  // leader: may begin a step; follower: its last header was go
};

class StepGate {
 public:
  StepGate() = default;  // starts in kLoading
  // A gate that is paused on the complete weights of `version`. Version 0.0 means weights without a
  // name.
  static StepGate holding(const Version& version);
  StepGate(StepGate&& other) noexcept : state_(other.state_) {}

  // Begins a step of `version`: the rank is serving and inside the step until leave(). The value is
  // true if the rank was not serving before. Returns kRefused and changes nothing if the rank is
  // loading, holds another version or is already inside a step.
  [[nodiscard]] Result<bool> enter(const Version& version);
  void leave();
  // Stops serving, and leaves the step if the rank is inside one. Returns whether the weights are
  // complete.
  bool stop();
  // Leader: starts serving. Returns kRefused while loading.
  [[nodiscard]] Result<> resume();

  // Announces that the weights are about to change. With `in_place` they belong to no version from
  // now on. Without it, the engine maps the next version beside the current one, and the current
  // one stays valid. Returns kRefused while the rank serves.
  [[nodiscard]] Result<> begin_load(bool in_place);
  // Declares that the weights are those of `version` and complete. The rank is then paused. Returns
  // kRefused while the rank serves.
  [[nodiscard]] Result<> commit(const Version& version);

  struct View {
    GatePhase phase = GatePhase::kLoading;
    Version version;      // version of the weights; none while loading
    bool inside = false;  // inside a step
  };
  [[nodiscard]] View view() const;

 private:
  mutable std::mutex mutex_;
  View state_;  // guarded by mutex_
};

}  // namespace wsync::engine::reference
