// Messages between a coordinator that is a process of its own and the trainer that publishes to it
// (messages.h). A trainer that has its coordinator in its own process sends none of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/shared_bytes.h"
#include "shared/control/command_messages.h"
#include "shared/control/envelope.h"
#include "shared/control/sidecar_messages.h"

namespace wsync::control {

// A publish whose round was requested and has not ended, as its trainer knows it.
struct OpenRound {
  std::uint64_t request = 0;
  Version version;
};

// The first message of a trainer on each connection, and again when it misses an answer. The
// coordinator answers it with FleetFacts, then with RoundEnd or RoundLoss for each round of
// `rounds` that does not run any more, and with VersionDropped for each version that no sidecar
// will ask for. A trainer that may not publish gets an Error.
struct PublisherHello {
  static constexpr MessageType kType = MessageType::kPublisherHello;
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::uint64_t pid_namespace = 0;  // as in Hello
  std::string boot_id;              // as in Hello
  std::uint64_t process = 0;        // random bits of this process of the trainer
  // By which it serves versions, preferred first.
  std::vector<TransportAddress> transports;
  // 32 random bytes: what the keys of those who receive from it are made of. Empty: none of its
  // kinds has keys. Never logged.
  Bytes secret;
  std::vector<Version> versions;  // that it serves
  std::vector<OpenRound> rounds;
  bool take_over = false;  // it may take the place of a trainer that is connected
};

// What a trainer must know of its fleet in order to decide about its publishes. Sent after each
// change. The fence is that of the envelope.
struct FleetFacts {
  static constexpr MessageType kType = MessageType::kFleetFacts;
  std::string stopped;          // not empty: this coordinator has stopped, for this reason
  std::string not_ready;        // what every round waits for; empty: one may begin
  std::string too_few_engines;  // why a round would find too few; empty: there are enough
  std::string rollback_waits;   // why a rollback would be refused now, and not later
  // The next step is above all these (VersionNames).
  std::uint64_t seen_step = 0;
  std::uint64_t used_step = 0;   // the greatest of this epoch
  bool is_claimed = false;       // versions can be named
  std::vector<Version> updates;  // a round of these runs or waits
  bool has_round = false;
  bool may_stream = false;
  bool may_hold_changes = false;
  std::uint32_t patch_value_cost = 0;
  Version target;
  std::uint64_t moved_bytes = 0;  // in the running round
  std::uint64_t moved_total = 0;
};

// A snapshot is to be published, complete or not.
struct RoundRequest {
  static constexpr MessageType kType = MessageType::kRoundRequest;
  std::uint64_t request = 0;  // grows with each of one process
  Version version;
  Digest layout_digest;
  Digest content_digest;  // zero if it is not complete
  SharedBytes layout;     // encoded Manifest
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t snapshot_ns = 0;
  bool is_complete = true;  // false: a SnapshotEnd follows
  bool was_streamed = false;
  bool is_kept = false;           // it stays if its round loses every sidecar
  std::uint64_t deadline_ms = 0;  // of the whole publish, from now on; 0: none
};
// The snapshot of a version that was requested before it was complete.
struct SnapshotEnd {
  static constexpr MessageType kType = MessageType::kSnapshotEnd;
  Version version;
  Digest content_digest;
  std::uint64_t snapshot_ns = 0;
  std::string failure;     // not empty: there is no such version
  bool cancelled = false;  // with a failure
};
// A version that waits for its round gives way to a newer one, which needs its memory.
struct RoundReplaced {
  static constexpr MessageType kType = MessageType::kRoundReplaced;
  Version version;
  Version by;
};
// Its trainer gives a version up that is not decided.
struct RoundGivenUp {
  static constexpr MessageType kType = MessageType::kRoundGivenUp;
  Version version;
  std::string why;
};

// A round of the trainer enters this phase. kSwitch: its version is decided.
struct RoundPhase {
  static constexpr MessageType kType = MessageType::kRoundPhase;
  std::uint64_t request = 0;
  ProgressPhase phase = ProgressPhase::kAnnounce;
};
struct RoundEnd {
  static constexpr MessageType kType = MessageType::kRoundEnd;
  std::uint64_t request = 0;
  bool superseded = false;
  bool cancelled = false;
  PushReply reply;
};
// The round has ended without an outcome: it has lost every sidecar before its decision, or the
// coordinator does not know it.
struct RoundLoss {
  static constexpr MessageType kType = MessageType::kRoundLoss;
  std::uint64_t request = 0;
  Version version;
  std::string reason;
};
// No sidecar will ask for this version any more.
struct VersionDropped {
  static constexpr MessageType kType = MessageType::kVersionDropped;
  Version version;
};
// The fleet was told to go back to a version, or a version that its canary served alone is for all
// now.
enum class TargetChange : std::uint8_t { kRolledBack, kPromoted };
struct TargetChanged {
  static constexpr MessageType kType = MessageType::kTargetChanged;
  TargetChange how = TargetChange::kRolledBack;
  Version target;
};

}  // namespace wsync::control
