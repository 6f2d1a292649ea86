// The events that a Sidecar handles, the commands that it returns, and its options.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "inference_side/staging/sidecar_record.h"
#include "shared/base/clock.h"
#include "shared/base/liveness.h"
#include "shared/base/switch_deadlines.h"
#include "shared/config/limits.h"
#include "shared/control/messages.h"

namespace wsync::staging {

struct SidecarOptions {
  std::string name;
  std::string host;
  std::uint32_t pid = 0;
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  std::vector<control::TransportAddress> transports;       // sent in Hello
  Bytes relay_secret;                                      // the same
  std::uint64_t versions_held = config::kVersionsHeldMin;  // at least 2
  // Deadlines of a switch without deadlines from the coordinator, and of catching up after a
  // restart.
  std::chrono::milliseconds pause{limits::kPauseDeadlineMs};
  std::chrono::milliseconds load{limits::kLoadDeadlineMs};
  reload::SwitchOptions replica;  // of every replica; name and world size come from its ranks
  // How long a replica without an attached rank is remembered; 0: for ever.
  std::chrono::milliseconds forget_after{0};
  // Time between two Hellos while no coordinator welcomes this sidecar. It also limits how long a
  // restarted sidecar waits for its name after the end of the previous process is known.
  std::chrono::milliseconds hello_retry{limits::kHelloRetryMs};
};

// ---- events ----

// The port has connected or reconnected, so a Hello is due.
struct LinkUp {};
// The port has lost the coordinator.
struct CoordinatorLost {};
struct CoordinatorMessage {
  control::Envelope envelope;
  control::Message message;
};
// The answer to Persist.
struct Persisted {
  std::uint64_t token = 0;
  std::string failure;  // if not empty: the record on disk is still the old one
};
// The answer to CheckLayout. The layout is accepted if there is no problem and no reason.
struct LayoutChecked {
  std::uint64_t round = 0;
  bool layout_unknown = false;
  // It fits in memory beside all held versions, so none of them must be released before it is
  // decided.
  bool fits_beside = false;
  std::string reason;
  std::vector<control::Problem> problems;
};
// The answers to StartStaging. An answer to an attempt that was cancelled is dropped.
struct StagingDone {
  std::uint64_t attempt = 0;
  Digest content_digest;  // computed over the held bytes
  std::uint64_t bytes = 0;
  std::uint64_t staging_ns = 0;
  Version base = {};  // only what changes from it is here: that of StartStaging, or none
};
struct StagingFailed {
  std::uint64_t attempt = 0;
  std::string reason;
  bool source_lost = false;  // the received buckets are kept; a new source sends the rest
  bool is_refused = false;   // an engine refuses the version
};
// The answer to CheckCopy. An answer about a copy that was released is dropped.
struct CopyChecked {
  std::uint64_t check = 0;
  bool intact = false;  // the bytes still have their content digest
};
// The answer to CompleteVersion.
struct VersionCompleted {
  Version version;
  std::string failure = {};   // if not empty: it could not be made complete
  bool in_place = false;      // its bytes are where those of its base were
  bool base_lost = false;     // it failed when the memory of its base had been changed already
  bool base_suspect = false;  // it failed because bytes of its base are others: they are checked
  bool no_memory = false;     // it failed for want of memory, and what changes is intact
};
using RankEvent = std::variant<reload::RankAttached, reload::RankDetached, reload::RankPaused,
                               reload::RankLoaded, reload::LoadNotBegun, reload::RankCommitted,
                               reload::RankResumed, reload::RankRefused, reload::RankSilent,
                               reload::RankHeard, reload::RankDamaged, reload::RankUnfit>;
// An event of one rank. RankAttached adds its replica; world_size is read only from that event.
struct ReplicaEvent {
  std::string replica;
  std::uint32_t world_size = 1;
  RankEvent what;
};

// Forgets a replica for which ReplicaSet::check_forget() permits it.
struct ForgetReplica {
  std::string replica;
};

struct SidecarEvent {
  TimePoint now{};
  std::variant<LinkUp, CoordinatorLost, CoordinatorMessage, Persisted, LayoutChecked, StagingDone,
               StagingFailed, CopyChecked, VersionCompleted, ReplicaEvent, reload::Tick,
               ForgetReplica>
      what;
};

// ---- commands ----

// A message to the coordinator.
struct Reply {
  control::Envelope envelope;
  control::Message message;
};
// Write the record durably, then answer with Persisted. Until then no message of the coordinator is
// handled.
struct Persist {
  std::uint64_t token = 0;
  SidecarRecord record;
};
// The transports by which the trainer serves versions are known.
struct Welcomed {
  control::Welcome welcome;
};
// Compare the offered layout with the layouts of the engines, and its memory need with the memory.
struct CheckLayout {
  std::uint64_t round = 0;
  control::Announce announce;
};
struct StartStaging {
  std::uint64_t attempt = 0;
  // An empty layout means the layout that is already known. A zero content digest means that
  // ExpectContent, or a later attempt, will bring it.
  control::Announce announce;
  control::Stage stage;
  bool resume = false;  // buckets of an earlier attempt are here: fetch the missing ones
  // A complete copy that is kept while this one is staged, so that it may be held as what changes
  // from it; none = 0.0.
  Version base = {};
};
// The content digest of the version that is being staged is known now. StagingDone follows when its
// bytes are here and have this digest.
struct ExpectContent {
  Version version;
  Digest content_digest;
};
// Offer a complete version to other sidecars, and answer the coordinator's RelayVersion of this
// request with RelayReady.
struct RelayHeld {
  std::uint64_t request = 0;
  Version version;
  bool with_layout = false;
};
// Cancel the staging of the version. None of its bytes are kept.
struct CancelStaging {
  Version version;
};
// The store releases this version.
struct ReleaseVersion {
  Version version;
};
// A version was released, or a rank has attached or detached. Send heartbeat() now, so that the
// coordinator neither chooses a copy that no longer exists nor waits for an engine that is here.
struct BeatNow {};
// Of this version only what changes from `base` is here, and it has become the target: make it
// complete. Answered by VersionCompleted. Until then neither of them is released.
struct CompleteVersion {
  Version version;
  Version base;
  // In the memory of the base, which nothing loads any more, if nobody else reads it. False: in
  // memory of its own.
  bool in_place = false;
};
// A replica could not load this version: compute the content digest of the copy again.
struct CheckCopy {
  std::uint64_t check = 0;
  Version version;
};
// A command of a replica's switch. Done and CopySuspect never reach the caller, because the sidecar
// handles them.
struct ForReplica {
  std::string replica;
  reload::SwitchCommand command;
};
// The replica is no longer known. It attaches as a new one if its engines return.
struct ReplicaForgotten {
  std::string replica;
};
using SidecarCommand = std::variant<Reply, Persist, Welcomed, CheckLayout, StartStaging,
                                    ExpectContent, CancelStaging, ReleaseVersion, CompleteVersion,
                                    BeatNow, CheckCopy, ForReplica, ReplicaForgotten, RelayHeld>;

}  // namespace wsync::staging
