// What a coordinator is told (events), and what it answers with (commands).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::publish {

// ---- events ----

// A message from a peer of the control port. A Hello makes it a sidecar.
struct PeerMessage {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
  // Of a Hello: the process that was known by this name is known to have ended.
  bool predecessor_gone = false;
};
struct PeerLost {
  std::string peer;
  std::string reason;
};
// A complete snapshot under a version from next_version(), to be brought to the fleet.
struct PublishRequested {
  std::uint64_t request = 0;  // chosen by the caller, comes back in RoundDone
  Version version;
  Digest layout_digest;
  Digest content_digest;
  Bytes layout;  // encoded Manifest
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t snapshot_ns = 0;
  // When it has ended, well or not, whatever it waits for; none = its phases' deadlines alone.
  std::optional<TimePoint> deadline = {};
};
struct RollbackRequested {
  std::uint64_t request = 0;
  Version to;  // 0.0 = the previous one
};
// Ends the update that runs, or the one of this version, if it has not been decided.
struct CancelRequested {
  std::uint64_t request = 0;
  Version version;  // 0.0 = the one that runs
};
// Another process has taken the control address over: sidecars that come will come to it.
struct Replaced {
  std::string by;
};
struct CoordinatorTick {};
// The answer to Store.
struct Stored {
  std::uint64_t token = 0;
  // What is stored now; a claim may have taken over a newer decision. An error: it was not stored,
  // and the record before it stands; kFenced and kRefused: because another coordinator has the
  // store now (check_replaces).
  Result<CoordinatorRecord> record;
};

struct CoordinatorEvent {
  TimePoint now{};
  std::variant<PeerMessage, PeerLost, PublishRequested, RollbackRequested, CancelRequested,
               Replaced, CoordinatorTick, Stored>
      what;
};

// ---- commands ----

struct SendTo {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
};
// Store this record durably (decision_store.h), then give Stored.
struct Store {
  std::uint64_t token = 0;
  CoordinatorRecord record;
};
// Something that the people who run this fleet should know.
struct Incident {
  std::string text;
  bool refusal = false;  // of a sidecar: why it does not join
};
// The claim is over: rounds may begin.
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
// Comes after the RoundDone of what was cancelled.
struct CancelDone {
  std::uint64_t request = 0;
  control::CancelReply reply;
};
// The rollback has been decided; its RollbackDone follows.
struct RollbackBegan {
  std::uint64_t request = 0;
  Version to;
};
struct RollbackDone {
  std::uint64_t request = 0;
  control::RollbackReply reply;
};
// No sidecar will be sent this version any more: its snapshot may go.
struct DropVersion {
  Version version;
};
// This coordinator must not act any more: a higher fence has been seen, it was replaced, it cannot
// know its fleet, or its claim could not be stored.
struct Stopped {
  ErrorCode code = ErrorCode::kFenced;
  std::string reason;
};
using CoordinatorCommand =
    std::variant<SendTo, Store, Incident, Ready, PhaseEntered, RoundDone, RollbackBegan,
                 RollbackDone, CancelDone, DropVersion, Stopped>;

}  // namespace wsync::publish
