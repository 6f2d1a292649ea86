// The events that a coordinator handles, and the commands that it returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/shared_bytes.h"
#include "shared/control/messages.h"
#include "shared/transport/pair_key.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::coordinator {

// ---- events ----

// A message from a peer of the control port. A Hello makes the peer a sidecar.
struct PeerMessage {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
  // With a Hello: the previous process with this name has certainly ended.
  bool predecessor_gone = false;
};
struct PeerLost {
  std::string peer;
  std::string reason;
};
// A rank of the trainer on another host, which serves a part of a version.
struct PartOwner {
  std::string name;  // for sentences: "rank 3 on host7"
  std::vector<control::TransportAddress> transports;
  // What the keys of those who receive from it are made of; std::nullopt: none of its kinds has
  // keys.
  std::optional<transport::PairSecret> secret;
  std::string boot_id;  // of its host
};
// A snapshot under a version from next_version(), to be published to the fleet. After a RoundLost
// it may be requested again under the same version, with the same content, until another snapshot
// has been requested.
struct PublishRequested {
  std::uint64_t request = 0;  // chosen by the caller, returned in RoundDone
  Version version;
  Digest layout_digest;
  Digest content_digest;
  SharedBytes layout;  // encoded Manifest
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t snapshot_ns = 0;
  // false: the snapshot is being taken. SnapshotEnded follows with its digest and time, and the
  // step counts as used from then on.
  bool is_complete = true;
  bool was_streamed = false;  // its round has begun before its snapshot was complete
  // Its snapshot stays if its round loses every sidecar: RoundLost, and no RoundDone.
  bool is_kept = false;
  // When the publish must have ended, whatever it waits for; std::nullopt: only the phases have
  // deadlines.
  std::optional<TimePoint> deadline = {};
  // How its transfer is cut between parts (Announce::parts), and who serves parts 1, 2, ...; empty:
  // it has one part, or its trainer is gone.
  SharedBytes parts = {};
  std::vector<PartOwner> owners = {};
};
// The end of the snapshot of a publish that was requested before it was complete. Does nothing if
// that publish has ended.
struct SnapshotEnded {
  Version version;
  Digest content_digest;
  std::uint64_t snapshot_ns = 0;
  std::string failure;  // not empty: there is no such version, and its publish ends for this reason
  bool cancelled = false;  // with a failure: it was stopped on request
};
struct RollbackRequested {
  std::uint64_t request = 0;
  Version to;  // 0.0 = the previous one
};
// Every replica switches to the version that only the canary serves.
struct PromoteRequested {
  std::uint64_t request = 0;
  bool force = false;  // even if the canary does not serve it
};
// Cancels the running update, or the update of this version, unless it has been decided.
struct CancelRequested {
  std::uint64_t request = 0;
  Version version;  // 0.0 = the running update
  std::string why;  // the reason in the reply to its publish; empty: on request
};
// Forgets a sidecar that is gone (forget_rules.h).
struct ForgetRequested {
  std::uint64_t request = 0;
  std::string sidecar;
  bool force = false;  // also if it may not know of a withdrawn version
};
// Ends a publish that waits for its round, because the snapshot of a newer one needs its memory.
struct WaitingReplaced {
  Version version;
  Version by;
};
// Another process has what only one coordinator can have, such as the control address, so that new
// sidecars connect to it.
struct Replaced {
  std::string by;
  std::string what = "its control address";
};
// A trainer of another process serves versions from now on
// (CoordinatorOptions::publisher_attaches).
struct PublisherAttached {
  std::vector<control::TransportAddress> transports;
  std::optional<transport::PairSecret> secret;
  std::string boot_id;        // of its host
  std::uint64_t process = 0;  // PublisherHello::process
};
// That trainer is gone, for this reason, and so are the bytes that it held. A version goes on if
// every sidecar of its round has staged it.
struct PublisherLost {
  std::string reason;
};
struct CoordinatorTick {};
// The answer to Store.
struct Stored {
  std::uint64_t token = 0;
  // The stored record; a claim may have adopted a newer decision. An error: nothing was stored, and
  // the previous record stays valid. kFenced and kRefused: another coordinator has the store now
  // (check_replaces).
  Result<CoordinatorRecord> record;
};

struct CoordinatorEvent {
  TimePoint now{};
  std::variant<PeerMessage, PeerLost, PublishRequested, RollbackRequested, PromoteRequested,
               CancelRequested, WaitingReplaced, Replaced, CoordinatorTick, Stored, ForgetRequested,
               SnapshotEnded, PublisherAttached, PublisherLost>
      what;
};

// ---- commands ----

struct SendTo {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
};
// Store this record durably (decision_store.h), then answer with Stored.
struct Store {
  std::uint64_t token = 0;
  CoordinatorRecord record;
};
// A message for the operators of this fleet.
struct Incident {
  std::string text;
  bool refusal = false;  // the text says why a sidecar may not join
};
// The fence is claimed, so rounds may begin.
struct Ready {
  control::Fence fence;
  Version target;  // recovered from the sidecars; 0.0 = none
};
struct PhaseEntered {
  std::uint64_t request = 0;
  control::ProgressPhase phase = control::ProgressPhase::kAnnounce;
};
struct RoundDone {
  std::uint64_t request = 0;
  bool superseded = false;
  bool cancelled = false;
  control::PushReply reply;
};
// The round of a publish that is kept has lost every sidecar before its decision, and no newer
// publish waits for its round. Its version was dropped before, so that it may be offered again.
struct RoundLost {
  std::uint64_t request = 0;
  Version version;
  std::string reason;  // names each sidecar, and why it was lost
};
// Follows the RoundDone of the cancelled update.
struct CancelDone {
  std::uint64_t request = 0;
  control::CancelReply reply;
};
struct ForgetDone {
  std::uint64_t request = 0;
  control::ForgetReply reply;
};
// The sidecar is no longer known. It joins as a new one if it returns.
struct Forgotten {
  std::string sidecar;
  std::string reason;
};
// The rollback has been decided; its RollbackDone follows later.
struct RollbackBegan {
  std::uint64_t request = 0;
  Version to;
};
struct RollbackDone {
  std::uint64_t request = 0;
  control::RollbackReply reply;
};
// As for a rollback. Request 0: the time of the canary is over, and nobody has asked for it.
struct PromotionBegan {
  std::uint64_t request = 0;
  Version version;
};
struct PromotionDone {
  std::uint64_t request = 0;
  control::PromoteReply reply;
};
// This version will be sent to no sidecar any more, so its snapshot may be freed.
struct DropVersion {
  Version version;
};
// This coordinator must not act any more: a higher fence was seen, it was replaced, it cannot
// determine its fleet, or its claim could not be stored.
struct Stopped {
  ErrorCode code = ErrorCode::kFenced;
  std::string reason;
};
using CoordinatorCommand =
    std::variant<SendTo, Store, Incident, Ready, PhaseEntered, RoundDone, RollbackBegan,
                 RollbackDone, PromotionBegan, PromotionDone, CancelDone, DropVersion, Stopped,
                 ForgetDone, Forgotten, RoundLost>;

}  // namespace wsync::coordinator
