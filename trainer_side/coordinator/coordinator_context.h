// CoordinatorContext: the data that the classes of a coordinator share in one step. Thread:
// confined to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_events.h"
#include "trainer_side/coordinator/coordinator_options.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

struct CoordinatorContext {
  CoordinatorOptions options;
  bool has_publisher = true;  // a trainer is attached, or is a part of this process
  Roster roster;
  control::Fence fence;                      // stored claim; in the envelope of every sent message
  TimePoint now{};                           // arrival time of the current event
  std::vector<CoordinatorCommand> commands;  // of this step, in order
  // Of the newest Announce. No sidecar gets two Announces of one round number.
  std::uint64_t last_round = 0;
  std::uint64_t dropped = 0;  // messages that were late, of another round, or of a lower fence

  void emit(CoordinatorCommand command) { commands.push_back(std::move(command)); }
  // Does nothing if the sidecar is not connected. `request`: the message that this answers; 0 if it
  // answers none.
  void send(const Member& member, control::Message message, std::uint64_t round,
            std::uint64_t request = 0);
  // Sends an ErrorReply with the code kRefused.
  void send_refusal(const std::string& peer, std::string reason);
};

}  // namespace wsync::coordinator
