// What a coordinator is configured with.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "shared/base/kinds.h"
#include "shared/base/liveness.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/switch_deadlines.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::coordinator {

struct CoordinatorOptions {
  std::array<std::uint64_t, 2> run_id{};  // 128 random bits, new for each process
  // What was stored when this process began; nothing if nothing was ever stored here.
  std::optional<CoordinatorRecord> record;
  control::FleetId fleet_id;      // of the configuration; none: the record's, or the sidecars'
  control::FleetId new_fleet_id;  // 128 random bits, taken when nobody names a fleet
  bool take_over = false;         // claim above a higher fence instead of stopping
  // Sidecars to wait for before the claim, for the time of `gather` at most.
  std::uint32_t min_sidecars = 1;
  std::uint32_t min_replicas = 1;  // whole replicas that must have staged
  CommitPolicy commit;
  TransportPolicy transport = TransportPolicy::kAuto;
  std::string boot_id;       // of this host
  std::string host_socket;   // sent in Welcome
  std::string data_address;  // sent in Welcome; empty: there is no TCP source
  PauseMode pause_mode = PauseMode::kAbort;
  // From the first Hello on. A coordinator that knows no fleet id always waits so long, because any
  // sidecar that comes in this time may name one.
  std::chrono::milliseconds gather{500};
  // How long it waits for the sidecars that its record names, from its first event on.
  std::chrono::milliseconds gather_recorded{limits::kGatherDeadlineMs};
  std::chrono::milliseconds hello{limits::kHelloDeadlineMs};
  std::chrono::milliseconds announce{limits::kAnnounceDeadlineMs};
  std::chrono::milliseconds stage{limits::kStageDeadlineMs};
  // When all members have staged and too few whole replicas are attached: how long heartbeats may
  // bring more of them.
  std::chrono::milliseconds attach{limits::kHeartbeatDeadlineMs};
  std::chrono::milliseconds pause{limits::kPauseDeadlineMs};
  std::chrono::milliseconds load{limits::kLoadDeadlineMs};
  std::chrono::milliseconds whole_switch{limits::kSwitchDeadlineMs};
};

}  // namespace wsync::coordinator
