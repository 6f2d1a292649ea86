// Between the coordinator and its sidecars (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/kinds.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// First message of a sidecar on every connection, again after each Welcome that asks for it, and
// until one comes.
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  std::string name;  // of the sidecar, unique in the fleet
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::string boot_id;       // kernel boot id: says only that a same-host hand-over is worth trying
  std::string data_address;  // tcp://host:port of its relay, empty when it has none
  Decision decision;         // newest persisted
  Version target;            // of that decision
  std::vector<Version> withdrawn;
  std::vector<Version> staged;  // complete and verified copies it holds
  std::vector<ReplicaReport> replicas;
  Digest layout;          // of the layout it knows; zero = none
  Digest target_content;  // of the target: a version never names two different byte strings
  Decision origin;        // of the target (see Decide); none before the first decision
  // Inode of its PID namespace, so that `pid` can be looked up where it is the reader's own; 0: not
  // known.
  std::uint64_t pid_namespace = 0;
};

// Its envelope echoes the request of the Hello that it answers. It asks for a Hello when that was
// said under another fence than its own, which the sidecar stores first, and when it answers none
// (request 0).
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  std::string host_socket;   // pathname of the Unix socket that hands over descriptors
  std::string data_address;  // tcp://host:port that serves buckets; empty = none
};

// A version is offered. The layout travels when the receiver does not know its digest.
struct Announce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  Version version;
  Digest layout_digest;
  Bytes layout;  // encoded Manifest, or empty
  Digest content_digest;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
};
struct Accept {
  static constexpr MessageType kType = MessageType::kAccept;
  Version version;
};
struct Refuse {
  static constexpr MessageType kType = MessageType::kRefuse;
  Version version;
  std::string reason;
  bool layout_unknown = false;  // send the Announce again with its layout
  std::vector<Problem> problems;
};

enum class TransportKind : std::uint8_t { kMemfd, kTcp };

struct Stage {
  static constexpr MessageType kType = MessageType::kStage;
  Version version;
  TransportKind transport = TransportKind::kMemfd;
  std::string source;  // memfd: the host socket; tcp: data address of the predecessor in the chain
  std::uint64_t first_bucket = 0;  // tcp: the first one wanted when attached again
};
struct Staged {
  static constexpr MessageType kType = MessageType::kStaged;
  Version version;
  Digest content_digest;  // computed by the sidecar over the bytes it holds
  std::uint64_t bytes = 0;
  std::uint64_t staging_ns = 0;
  std::string failure;  // not empty: staging failed, the rest is void
  // With a failure: only its source went away; a new Stage lets it go on where it stands.
  bool source_lost = false;
};

enum class DecisionKind : std::uint8_t { kSwitch, kRollback };

struct Decide {
  static constexpr MessageType kType = MessageType::kDecide;
  std::uint64_t number = 0;  // under the envelope's fence
  DecisionKind kind = DecisionKind::kSwitch;
  Version target;  // 0.0: none is left; the receiver keeps its own and learns what is withdrawn
  std::vector<Version> withdrawn;  // all known ones
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t pause_deadline_ms = 0;
  std::uint32_t load_deadline_ms = 0;
  Digest content_digest;  // of the target; another one under the same name is refused
  // The decision that first chose this target: a publish that was committed, or a rollback. A
  // coordinator that starts anew repeats the target of an older one under its own fence and number;
  // the origin stays. The fleet belongs on the target with the greatest origin.
  Decision origin;
};
// The decision is on the sidecar's disc.
struct Decided {
  static constexpr MessageType kType = MessageType::kDecided;
  std::uint64_t number = 0;
  bool refused = false;
  std::string reason;
};
// Every replica of the sidecar has finished its switch, well or not.
struct Switched {
  static constexpr MessageType kType = MessageType::kSwitched;
  std::uint64_t number = 0;
  Version target;
  std::vector<ReplicaOutcome> outcomes;
};

struct Abort {
  static constexpr MessageType kType = MessageType::kAbort;
  Version version;
  std::string reason;
};
struct Heartbeat {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  std::uint64_t sequence = 0;
  std::uint64_t staged_bytes = 0;  // sidecar: progress of the version being staged
  Version target;
  std::vector<Version> staged;
  std::vector<ReplicaReport> replicas;  // sidecar: current state; coordinator: empty
};
struct Leave {
  static constexpr MessageType kType = MessageType::kLeave;
  std::string reason;
};
struct ErrorReply {
  static constexpr MessageType kType = MessageType::kError;
  std::uint8_t code = 0;  // ErrorCode
  std::string message;
};

}  // namespace wsync::control
