// Messages between the coordinator and its sidecars (messages.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/shared_bytes.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// A kind of transport, and where the sender serves versions by it.
struct TransportAddress {
  std::string kind;     // as in shared/transport/traits.h; a receiver ignores a kind that it lacks
  std::string address;  // empty: the sender fetches by this kind but serves nobody
  friend bool operator==(const TransportAddress&, const TransportAddress&) = default;
};
// Returns null if the list does not have this kind.
[[nodiscard]] inline const TransportAddress* find_transport(
    const std::vector<TransportAddress>& transports, std::string_view kind) {
  const auto found = std::ranges::find(transports, kind, &TransportAddress::kind);
  return found == transports.end() ? nullptr : &*found;
}

// First message of a sidecar on every connection. The sidecar repeats it until a Welcome arrives,
// and sends it again after each Welcome that requests it.
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  std::string name;  // unique in the fleet
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::string
      boot_id;  // kernel boot id; equal ids only mean that a same-host hand-over is worth trying
  // Kinds by which it fetches versions, preferred first, with the addresses of its relays.
  std::vector<TransportAddress> transports;
  Decision decision;  // newest stored decision
  Version target;     // target of that decision
  std::vector<Version> withdrawn;
  std::vector<Version> staged;  // complete and verified copies it holds
  std::vector<ReplicaReport> replicas;
  Digest layout;          // digest of the layout it knows; zero = none
  Digest target_content;  // of the target; bytes of a version never differ
  Decision origin;        // origin of the target (see Decide); none before the first decision
  // Inode of its PID namespace. The reader may look up `pid` only if it is in the same namespace.
  // 0: unknown.
  std::uint64_t pid_namespace = 0;
  // 32 random bytes: what the keys of those who fetch from its relays are made of
  // (shared/transport/pair_key.h). Empty: it has no relay with keys. Never logged.
  Bytes relay_secret;
  Capabilities capabilities = kCapabilities;  // of the sidecar
};

// Its envelope echoes the request of the Hello that it answers. The Welcome requests a new Hello in
// two cases: if the Hello was sent under another fence (the sidecar stores the new fence first), or
// if the Welcome answers no Hello (request 0).
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  std::vector<TransportAddress>
      transports;  // by which the trainer serves versions, preferred first
  Capabilities capabilities = kCapabilities;  // of the coordinator
  // Which process of a trainer serves them: random bits, PublisherHello::process. 0: the process of
  // this coordinator, or none.
  std::uint64_t trainer = 0;
};

// Offers a version. The layout is included if the receiver does not know its digest.
struct Announce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  Version version;
  Digest layout_digest;
  // Encoded Manifest, or empty. Shared by the messages to all sidecars.
  SharedBytes layout;
  Digest content_digest;  // zero: its snapshot is being taken, and a Stage will carry the digest
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  // Encoded Parts (shared/weights/parts.h): the transfer is cut between them. Empty: one part.
  SharedBytes parts;
};
struct Accept {
  static constexpr MessageType kType = MessageType::kAccept;
  Version version;
};
struct Refuse {
  static constexpr MessageType kType = MessageType::kRefuse;
  Version version;
  std::string reason;
  bool layout_unknown = false;  // requests the Announce again, with its layout
  std::vector<Problem> problems;
};

// Where another part of a version than the first is served, for one receiver.
struct PartSource {
  std::string transport;  // kind
  std::string source;     // address
  Bytes key;              // as Stage::key
};

// Names the source of an announced version. Sent again when the source or the content digest has
// changed. The receiver answers with Staged when it has all bytes and the digest, and both agree.
struct Stage {
  static constexpr MessageType kType = MessageType::kStage;
  Version version;
  std::string transport;  // kind
  std::string source;     // address of the trainer or of the predecessor in the chain
  Digest content_digest;  // zero: not known yet; a later one does not take back an earlier one
  // The key of the receiver at this source, under this fence: 32 bytes, or empty for a kind without
  // keys. Never logged.
  Bytes key;
  // The sources of parts 1, 2, ...; `source` has only part 0 then. Empty: it has the whole version.
  std::vector<PartSource> parts;
};
struct Staged {
  static constexpr MessageType kType = MessageType::kStaged;
  Version version;
  Digest content_digest;  // computed by the sidecar over its own bytes
  std::uint64_t bytes = 0;
  std::uint64_t staging_ns = 0;
  std::string failure;  // not empty: staging failed, and the rest is void
  // With a failure: only the source was lost. A new Stage resumes the transfer where it stopped.
  bool source_lost = false;
  // With a failure: an engine refuses the version, so no other source or transport helps.
  bool is_refused = false;
};

enum class DecisionKind : std::uint8_t {
  kSwitch,
  kRollback,
  // As kSwitch, but a replica that serves pauses only with a turn (Turns). The receiver has none
  // when it stores the decision.
  kSwitchInTurns,
  // As kSwitchInTurns, but only the replicas named Decide::canary owe an outcome. No other replica
  // gets a turn under this decision: they wait for a decision of another kind.
  kSwitchCanary,
};
inline constexpr DecisionKind kLastDecisionKind = DecisionKind::kSwitchCanary;

// Pass on a complete version that the sidecar holds to sidecars that come for it. Answered by
// RelayReady.
struct RelayVersion {
  static constexpr MessageType kType = MessageType::kRelayVersion;
  Version version;
  bool with_layout = false;  // the coordinator does not know the layout
};
// The version may be fetched from the relays of this sidecar now, until it releases its copy. What
// the sidecar says of the version is what an Announce says.
struct RelayReady {
  static constexpr MessageType kType = MessageType::kRelayReady;
  Version version;
  Digest layout_digest;
  SharedBytes layout;  // encoded Manifest, or empty if it was not asked for
  Digest content_digest;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::string failure;  // not empty: it is not passed on, and the rest is void
  SharedBytes parts;    // how the transfer is cut
};
struct Decide {
  static constexpr MessageType kType = MessageType::kDecide;
  std::uint64_t number = 0;  // under the envelope's fence
  DecisionKind kind = DecisionKind::kSwitch;
  Version target;  // 0.0: no target is left; the receiver keeps its own and records the withdrawn
                   // versions
  std::vector<Version> withdrawn;  // all known withdrawn versions
  PauseMode mode = PauseMode::kAbort;
  CachePolicy caches = CachePolicy::kEngine;
  std::uint32_t pause_deadline_ms = 0;
  std::uint32_t load_deadline_ms = 0;
  Digest content_digest;  // of the target; a receiver refuses the same version with another digest
  // The decision that first chose this target: a committed publish or a rollback. A restarted
  // coordinator repeats the target of an older one under its own fence and number; the origin
  // stays. The fleet belongs on the target with the greatest origin.
  Decision origin;
  std::string canary;  // with kSwitchCanary: the name of the replica that switches first
};
// The sidecar has stored the decision on disk.
struct Decided {
  static constexpr MessageType kType = MessageType::kDecided;
  std::uint64_t number = 0;
  bool refused = false;
  std::string reason;
};
// Every replica of the sidecar has finished its switch, successfully or not.
struct Switched {
  static constexpr MessageType kType = MessageType::kSwitched;
  std::uint64_t number = 0;
  Version target;
  std::vector<ReplicaOutcome> outcomes;
};

// How many replicas of the sidecar may hold a turn at once, for the decision of this number. Not
// answered: the heartbeats of the sidecar report the number that it knows, and the coordinator
// sends it again if that is another one. The sidecar has no turns after a new decision, a higher
// fence, a Hello and the loss of its coordinator; a turn that a replica holds then ends as any
// other.
struct Turns {
  static constexpr MessageType kType = MessageType::kTurns;
  std::uint64_t number = 0;
  std::uint32_t turns = 0;
  std::string replica;  // not empty: only replicas of this name get a turn
};

struct Abort {
  static constexpr MessageType kType = MessageType::kAbort;
  Version version;
  std::string reason;
};
struct Heartbeat {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  // Sidecar: counts the heartbeats of its process, from 1. An older one that comes late is ignored.
  std::uint64_t sequence = 0;
  std::uint64_t staged_bytes = 0;  // sidecar: progress of the version that it stages
  Version target;
  std::vector<Version> staged;
  std::vector<ReplicaReport> replicas;  // sidecar: current state; coordinator: empty
  std::uint32_t turns = 0;              // sidecar: as in the last Turns that counts
  CopyReport last_copy;                 // sidecar
  // Sidecar that maps the arenas of its trainer: what a value of a patch costs its ranks
  // (shared/weights/patch/worth.h); 0 if none of them would take one.
  std::uint32_t patch_value_cost = 0;
  // The same: it takes a version as what changes from its target, and lets the trainer write the
  // arena of the target after the decision.
  bool lends_arenas = false;
};
// The sender ends in order. A sidecar answers the Leave of its coordinator with a Heartbeat that
// has the same request, so that the coordinator knows that it was read.
struct Leave {
  static constexpr MessageType kType = MessageType::kLeave;
  std::string reason;
};
struct ErrorReply {
  static constexpr MessageType kType = MessageType::kError;
  ErrorCode code = ErrorCode::kInvalidInput;
  std::string message;
  // Of a Push: no trainer is connected to this coordinator, so who asks may publish to it.
  bool may_publish = false;
};

}  // namespace wsync::control
