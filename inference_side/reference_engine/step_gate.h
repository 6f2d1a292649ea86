// StepGate: whether a rank may take part in a step, and whether its weights may change. The one
// place where the thread that serves and the thread that loads meet.
//
//   loading --commit--> paused --resume (leader), a go of its version (follower)--> serving
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
  kLoading,  // its memory matches no version
  kPaused,   // whole, not serving
  kServing,  // leader: may begin a step; follower: its last header was go
};

class StepGate {
 public:
  StepGate() = default;  // loading
  // Whole and paused on `version`, which may be 0.0 for weights that nobody named.
  static StepGate holding(const Version& version);
  StepGate(StepGate&& other) noexcept : state_(other.state_) {}

  // Begins a step of `version`: the rank is serving and inside the step until leave(). The value
  // says whether it was not serving before. kRefused, changing nothing, when it is loading, holds
  // another version or is inside a step already.
  [[nodiscard]] Result<bool> enter(const Version& version);
  void leave();
  // Leaves off serving (and the step, if it is inside one). Returns whether the rank is whole.
  bool stop();
  // Leader: begins to serve. kRefused while loading.
  [[nodiscard]] Result<> resume();

  // The weights are about to change. With `in_place` they match no version from here on; without
  // (the engine maps the next version beside the present one) the present one stays good. kRefused
  // while the rank serves.
  [[nodiscard]] Result<> begin_load(bool in_place);
  // The weights are those of `version`, whole. The rank is paused. kRefused while it serves.
  [[nodiscard]] Result<> commit(const Version& version);

  struct View {
    GatePhase phase = GatePhase::kLoading;
    Version version;      // of the weights, none while loading
    bool inside = false;  // a step
  };
  [[nodiscard]] View view() const;

 private:
  mutable std::mutex mutex_;
  View state_;  // under mutex_
};

}  // namespace wsync::engine::reference
