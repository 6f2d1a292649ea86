// DecisionRecord: what a sidecar has stored on disk, and what it must store before it acts.
//
// It holds the fence that the sidecar follows, the newest decision, and the withdrawn versions. One
// record is written at a time. Messages of the coordinator wait until the write ends, because a
// message that is handled earlier could be answered under a record that a crash would lose.
//
// Thread: confined to one thread. Pure: the caller writes the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/staging/sidecar_events.h"
#include "inference_side/staging/sidecar_record.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::staging {

enum class RecordState : std::uint8_t {
  kStored,   // the record in memory is on disk
  kWriting,  // a newer record is being written
};

[[nodiscard]] std::string_view record_state_name(RecordState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable record_transitions();

// What a sender's fence means to this sidecar.
enum class FenceCheck : std::uint8_t {
  kFollowed,    // the fence of the record
  kHigher,      // must be stored before the message is handled
  kLower,       // from a coordinator that was replaced
  kOtherFleet,  // from a fleet to which this sidecar does not belong
};

// What this sidecar knows about a decision's target, in addition to the record.
struct TargetFacts {
  std::optional<Digest> held;       // content digest of the verified copy
  std::optional<Digest> announced;  // content digest announced for the incoming version
  // Versions that could be activated here without a new offer. They are kept in the list of
  // withdrawn versions when that list is shortened.
  std::vector<Version> in_use;
};

enum class DecisionVerdict : std::uint8_t {
  kRefused,    // reply `reason`
  kRepeated,   // equals the stored decision: reply again
  kOutdated,   // older than the decision of the record
  kWithdraws,  // store `next`, then call judge() again
  kDecides,    // store `next`, then apply the decision
};

struct Judgement {
  DecisionVerdict verdict = DecisionVerdict::kRefused;
  std::string reason;
  SidecarRecord next;        // kWithdraws, kDecides
  bool other_bytes = false;  // the decision names other content than is held or stored here
};

enum class WriteEffect : std::uint8_t {
  kFailed,     // the previous record stays valid
  kDecided,    // a decision with a target is stored
  kWithdrawn,  // only withdrawn versions, or a decision without a target, are stored
  kFence,      // a higher fence is stored
};

struct FinishedWrite {
  WriteEffect effect = WriteEffect::kFailed;
  CoordinatorMessage cause;  // the message that caused the write
};

class DecisionRecord {
 public:
  // `stored`: the record on disk, or a default record.
  explicit DecisionRecord(SidecarRecord stored) : stored_(std::move(stored)) {}

  [[nodiscard]] const SidecarRecord& stored() const noexcept { return stored_; }
  [[nodiscard]] RecordState state() const noexcept { return state_; }
  // Whether the version is the target of the stored record or of the one that is being written.
  [[nodiscard]] bool targets(const Version& version) const;
  [[nodiscard]] bool is_withdrawn(const Version& version) const;

  [[nodiscard]] FenceCheck check(const control::Fence& fence) const;
  // Returns what to do with a decision that was sent under `fence`. Changes nothing.
  [[nodiscard]] Judgement judge(const control::Fence& fence, const control::Decide& decide,
                                const TargetFacts& facts) const;

  // Begins a write; only in kStored. `cause` is the message that requires it.
  [[nodiscard]] Persist write(SidecarRecord next, CoordinatorMessage cause);
  // Ends the write. Returns std::nullopt if the event belongs to no write in progress.
  [[nodiscard]] std::optional<FinishedWrite> finish(const Persisted& event);
  // Queues a message until the write ends. Returns false if the queue is full; the message is then
  // dropped.
  [[nodiscard]] bool defer(const CoordinatorMessage& message);
  // The next queued message; std::nullopt while a write is in progress.
  [[nodiscard]] std::optional<CoordinatorMessage> next_deferred();

  // The fleet's decision names other content for this version than is held here. Until the next
  // decision is stored, a replica that serves the version is not ready.
  void set_other_bytes(const Version& version) noexcept { other_bytes_ = version; }
  // Why requests must not be routed to a replica that serves `version`; std::nullopt if there is no
  // reason here. The replica itself checks the withdrawn versions of the stored record.
  [[nodiscard]] std::optional<std::string> unready_reason(const Version& version) const;

  // Returns kInternal with the first broken rule: no decision is above the fence; the record being
  // written never lowers the fence of the fleet; messages wait only while a write is in progress.
  [[nodiscard]] Result<> invariants() const;

 private:
  // A decision that could not be stored. It is not applied, but replicas that serve a version that
  // it withdraws are not ready until a decision is stored.
  struct Unstored {
    std::vector<Version> withdrawn;
    std::string failure;
  };

  void move(RecordState to);
  [[nodiscard]] bool names_other_bytes(const control::Decide& decide,
                                       const TargetFacts& facts) const;
  [[nodiscard]] std::optional<std::string> refusal(const control::Decide& decide,
                                                   const TargetFacts& facts) const;

  SidecarRecord stored_;
  RecordState state_ = RecordState::kStored;
  std::uint64_t token_ = 0;  // of the last write
  SidecarRecord writing_;    // kWriting only
  CoordinatorMessage cause_;
  std::deque<CoordinatorMessage> deferred_;
  std::optional<Unstored> unstored_;
  Version other_bytes_;  // none = 0.0
};

}  // namespace wsync::staging
