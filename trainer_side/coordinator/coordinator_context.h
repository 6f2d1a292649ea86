// CoordinatorContext: what the parts of a coordinator work on together in one step.
// Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_events.h"
#include "trainer_side/coordinator/coordinator_options.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::publish {

struct CoordinatorContext {
  CoordinatorOptions options;
  Roster roster;
  control::Fence fence;  // in the envelope of everything that is sent: the claim that is stored
  TimePoint now{};       // when the event came that is being handled
  std::vector<CoordinatorCommand> commands;  // of this step, in order
  std::uint64_t dropped = 0;  // messages that were late, of another round, or of a lower fence

  void emit(CoordinatorCommand command) { commands.push_back(std::move(command)); }
  // Does nothing when the sidecar is not connected. `request`: of the message that this answers; 0
  // when it answers none.
  void send(const Member& member, control::Message message, std::uint64_t round,
            std::uint64_t request = 0);
  // An ErrorReply with the code kRefused.
  void send_refusal(const std::string& peer, std::string reason);
};

}  // namespace wsync::publish
