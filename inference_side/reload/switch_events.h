// The events that a ReplicaSwitch handles, the commands that it returns, and its options.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/switch_deadlines.h"
#include "shared/control/messages.h"

namespace wsync::reload {

struct SwitchOptions {
  std::string replica;
  std::uint32_t world_size = 1;
  std::chrono::nanoseconds rank_return = std::chrono::milliseconds(limits::kRankReturnDeadlineMs);
  std::chrono::nanoseconds commit = std::chrono::milliseconds(limits::kCommitDeadlineMs);
  std::chrono::nanoseconds retry = std::chrono::milliseconds(limits::kSwitchRetryMs);
  // A version that this replica could not load is tried again after `retry`. Each failure doubles
  // the wait, up to this maximum.
  std::chrono::nanoseconds retry_max = std::chrono::milliseconds(limits::kSwitchRetryMaxMs);
  // A replica that has been behind the target for longer is not ready. 0: a replica that is behind
  // stays ready.
  std::chrono::nanoseconds max_staleness = std::chrono::milliseconds(limits::kMaxStalenessMs);
  PauseMode fallback_mode = PauseMode::kAbort;  // used after a missed pause deadline
};

// ---- events ----

// A version that a rank cannot take, because its tensors are others.
struct UnfitVersion {
  Version version;
  std::string why;  // the first tensor that differs, and how
};

// The hello of a rank. If the rank was already attached, it counts as lost and attached again.
struct RankAttached {
  std::uint32_t rank = 0;
  bool leader = false;
  control::RankState state = control::RankState::kLoading;
  Version active;
  std::vector<UnfitVersion> unfit = {};  // of the versions that can be loaded now
};
struct RankDetached {
  std::uint32_t rank = 0;
};
struct RankPaused {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;  // 0: not asked; the rank has lost its group
};
struct RankLoaded {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
  std::uint64_t bytes = 0;
  std::string failure;  // if not empty: the bytes of this rank belong to no version
  // The failure is that of all ranks together, and says itself which rank it is.
  bool is_of_replica = false;
  // The rank was given a patch. If it failed, the version is loaded in full, and that counts as the
  // first attempt.
  bool by_patch = false;
  std::uint64_t written_bytes = 0;  // into the memory of this rank
};
// The load of this request could not begin. No rank received the load, and each rank holds the same
// bytes as before.
struct LoadNotBegun {
  std::uint64_t request = 0;
  std::string why;
};
struct RankCommitted {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
  std::string failure;
};
struct RankResumed {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
};
// The engine could not do what this request asked for.
struct RankRefused {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  std::string why;
};
// The rank no longer polls its link: its process is suspended, or hangs. It stays attached, because
// it may continue.
struct RankSilent {
  std::uint32_t rank = 0;
  std::string why;
};
// A rank that was silent has sent a message.
struct RankHeard {
  std::uint32_t rank = 0;
};
// A scrub has found that bytes in the memory of a rank are not those of the version that it serves.
// The replica is not ready until all bytes were loaded.
struct RankDamaged {
  std::uint32_t rank = 0;
  std::string why;  // one sentence, with the rank
  // False: it has been loaded again and again, and differs each time. It is not loaded until there
  // is another target, or until a rank has attached anew.
  bool is_mendable = true;
  // The bytes that are staged here differ as well, so they must be checked before they are loaded.
  bool is_copy_suspect = false;
};
// A version that can be loaded from now on does not fit an attached rank. It is sent before the
// StagedSet that contains the version.
struct RankUnfit {
  std::uint32_t rank = 0;
  UnfitVersion unfit;
};
// A decision that was stored. A newer decision replaces an older one in every phase. The outcome is
// due when the deadlines of pause, load and commit have passed, one after the other. They begin
// with the switch if it waits for a turn.
struct TargetSet {
  control::Decision decision;
  Version target;
  std::vector<Version> withdrawn;
  PauseMode mode = PauseMode::kAbort;
  CachePolicy caches = CachePolicy::kEngine;
  std::chrono::nanoseconds pause_deadline = std::chrono::milliseconds(limits::kPauseDeadlineMs);
  std::chrono::nanoseconds load_deadline = std::chrono::milliseconds(limits::kLoadDeadlineMs);
  bool owed = true;  // false: the replica only catches up, and no Done is due
  // A replica that serves a version which may run pauses only after a TurnGiven.
  bool in_turns = false;
};
// The replica, which waits for a turn, may pause now. The turn ends with the switch, successful or
// not; another attempt needs another turn.
struct TurnGiven {};
// Versions that must not be activated, without a decision for a new target. The target may be one
// of them. Then no version remains to switch to, and a replica that serves the target is not ready.
struct WithdrawnSet {
  std::vector<Version> versions;
};
// The complete and verified versions that can be loaded now.
struct StagedSet {
  std::vector<Version> versions;
  // This one can be loaded in a moment, or it is known soon that it cannot. An outcome that is owed
  // waits for it, and so does a BeginLoad. None = 0.0.
  Version coming = {};
  // Only what changes to these is here. A BeginLoad of one waits until it can be loaded, which
  // needs memory beside that of the others: only for a replica that has nothing else to load.
  std::vector<Version> changes = {};
};
struct Tick {};

struct SwitchEvent {
  TimePoint now{};
  std::variant<RankAttached, RankDetached, RankPaused, RankLoaded, LoadNotBegun, RankCommitted,
               RankResumed, RankRefused, RankSilent, RankHeard, RankDamaged, RankUnfit, TargetSet,
               TurnGiven, WithdrawnSet, StagedSet, Tick>
      what;
};

// ---- commands ----

struct SendPause {
  std::uint32_t rank = 0;  // the leader
  std::uint64_t request = 0;
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t deadline_ms = 0;
  Version version;  // the target
  CachePolicy caches = CachePolicy::kEngine;
  Version base = {};  // as in BeginLoad, of the load that will probably follow
};
// Load `version` into every rank: by a Load to each rank (unified devices), or by the pipeline of
// the device group (separate devices). The answer is a RankLoaded of each rank with this request,
// or one LoadNotBegun for all. An earlier cancelled load is finished first.
struct BeginLoad {
  std::uint64_t request = 0;
  Version version;
  std::uint32_t deadline_ms = 0;
  // What every rank of the replica holds, completely and committed, so that a patch from it may be
  // loaded. 0.0: at least one rank has anything else in its memory.
  Version base = {};
};
// The load of this request is cancelled; answers to it are dropped.
struct CancelLoad {
  std::uint64_t request = 0;
};
struct SendCommit {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
};
struct SendResume {
  std::uint32_t rank = 0;  // the leader
  std::uint64_t request = 0;
};
// The outcome of `decision`, for the coordinator.
struct Done {
  control::Decision decision;
  control::ReplicaOutcome outcome;
};
// Two loads of `version` failed here, for whatever reason, so its copy must be verified again. A
// copy that has changed leaves the staged set; an intact copy needs no answer.
struct CopySuspect {
  Version version;
};
using SwitchCommand =
    std::variant<SendPause, BeginLoad, CancelLoad, SendCommit, SendResume, Done, CopySuspect>;

}  // namespace wsync::reload
