// The configuration of a coordinator.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/kinds.h"
#include "shared/base/liveness.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/switch_deadlines.h"
#include "shared/control/messages.h"
#include "shared/transport/pair_key.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::coordinator {

struct CoordinatorOptions {
  std::array<std::uint64_t, 2> run_id{};  // 128 random bits, new in each process
  // The record that was stored when this process started; std::nullopt if there was none.
  std::optional<CoordinatorRecord> record;
  control::FleetId fleet_id;      // configured; none: from the record or the sidecars
  control::FleetId new_fleet_id;  // 128 random bits, used if no other id is known
  bool take_over = false;         // claim above a higher fence instead of stopping
  // Number of sidecars to wait for before the claim, at most for the time `gather`.
  std::uint32_t min_sidecars = 1;
  std::uint32_t min_replicas = 1;  // complete replicas that must have staged
  CommitPolicy commit;
  // How many replicas of the whole fleet may be paused at once by the switch of a publish; 0: any
  // number.
  std::uint32_t max_paused = 0;
  // The name of the replica that switches first in a publish; the others wait for a promotion.
  // Empty: none.
  std::string canary;
  // How long the canary must serve a version until the others switch without being asked to; 0:
  // only on request.
  std::chrono::milliseconds canary_time{0};
  // How long a sidecar that is gone is remembered; 0: for ever.
  std::chrono::milliseconds forget_after{0};
  // The trainer is another process: no version can be served before PublisherAttached.
  bool publisher_attaches = false;
  // By which the trainer serves versions, preferred first. Sent in Welcome.
  std::vector<control::TransportAddress> transports;
  // What the keys of those who receive from this trainer are made of; std::nullopt: none of its
  // kinds has keys.
  std::optional<transport::PairSecret> secret;
  // Sidecars of other hosts may connect. Weights go to them only at an address beyond loopback, and
  // in the way that `security` says.
  bool serves_other_hosts = false;
  DataSecurity security = DataSecurity::kTls;
  // The configuration permits one kind only. Then it is used even if the hosts seem to differ.
  bool one_transport = false;
  std::string boot_id;        // of the trainer's host
  std::uint64_t trainer = 0;  // Welcome::trainer
  PauseMode pause_mode = PauseMode::kAbort;
  CachePolicy caches = CachePolicy::kEngine;
  // Measured from the first Hello. A coordinator without a known fleet id always waits for this
  // time, because any sidecar that arrives in it may name one.
  std::chrono::milliseconds gather{500};
  // How long it waits for the sidecars in its record, measured from its first event.
  std::chrono::milliseconds gather_recorded{limits::kGatherDeadlineMs};
  std::chrono::milliseconds hello{limits::kHelloDeadlineMs};
  std::chrono::milliseconds announce{limits::kAnnounceDeadlineMs};
  std::chrono::milliseconds stage{limits::kStageDeadlineMs};
  // A record that is not stored after this time stops this coordinator, because it is unknown which
  // decision is in force; std::nullopt: it waits.
  std::optional<std::chrono::milliseconds> store = std::chrono::seconds(40);
  // If all members have staged but too few complete replicas are attached: how long it waits for
  // engines that are connecting to a sidecar again. A sidecar reports each engine at once.
  std::chrono::milliseconds attach{2 * limits::kReconnectMaxMs};
  std::chrono::milliseconds pause{limits::kPauseDeadlineMs};
  std::chrono::milliseconds load{limits::kLoadDeadlineMs};
  std::chrono::milliseconds whole_switch{limits::kSwitchDeadlineMs};
};

}  // namespace wsync::coordinator
