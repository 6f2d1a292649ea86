// DecisionRecord: what a sidecar has stored on disc, and what it must store before it acts.
//
// It holds the fence that the sidecar follows, the newest decision, and the withdrawn versions. One
// record is written at a time; messages of the coordinator wait behind the write, because a message
// that is handled before the write ends could be answered under a record that a crash would lose.
//
// Thread: one. Pure: the caller writes the bytes.
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
  kStored,   // the record in memory is the one on disc
  kWriting,  // a newer record is being written
};

[[nodiscard]] std::string_view record_state_name(RecordState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable record_transitions();

// What a sender's fence means to this sidecar.
enum class FenceCheck : std::uint8_t {
  kFollowed,    // the fence of the record
  kHigher,      // to be stored before the message is handled
  kLower,       // of a coordinator that was replaced
  kOtherFleet,  // of a fleet that this sidecar does not belong to
};

// What this sidecar knows of a decision's target, beside the record.
struct TargetFacts {
  std::optional<Digest> held;       // content digest of the verified copy
  std::optional<Digest> announced;  // content digest announced for the version on its way in
  // Versions that could be activated here without a new offer. When the list of withdrawn versions
  // is shortened, these stay in it.
  std::vector<Version> in_use;
};

enum class DecisionVerdict : std::uint8_t {
  kRefused,    // reply `reason`
  kRepeated,   // the decision of the record: reply again
  kOutdated,   // older than the decision of the record
  kWithdraws,  // store `next`, then judge the decision again
  kDecides,    // store `next`, then act on the decision
};

struct Judgement {
  DecisionVerdict verdict = DecisionVerdict::kRefused;
  std::string reason;
  SidecarRecord next;        // kWithdraws, kDecides
  bool other_bytes = false;  // the decision names other bytes than are held or stored here
};

enum class WriteEffect : std::uint8_t {
  kFailed,     // the record is the one before
  kDecided,    // a decision with a target is stored
  kWithdrawn,  // only withdrawn versions, or a decision without a target, are stored
  kFence,      // a higher fence is stored
};

struct FinishedWrite {
  WriteEffect effect = WriteEffect::kFailed;
  CoordinatorMessage cause;  // the message that the write was for
};

class DecisionRecord {
 public:
  // `stored`: what was on disc, or a default record.
  explicit DecisionRecord(SidecarRecord stored) : stored_(std::move(stored)) {}

  [[nodiscard]] const SidecarRecord& stored() const noexcept { return stored_; }
  [[nodiscard]] RecordState state() const noexcept { return state_; }
  // Whether the version is the target of the stored record or of the one that is being written.
  [[nodiscard]] bool targets(const Version& version) const;
  [[nodiscard]] bool is_withdrawn(const Version& version) const;

  [[nodiscard]] FenceCheck check(const control::Fence& fence) const;
  // What to do with a decision that was sent under `fence`. Changes nothing.
  [[nodiscard]] Judgement judge(const control::Fence& fence, const control::Decide& decide,
                                const TargetFacts& facts) const;

  // Begins a write; only in kStored. `cause` is the message that asks for it.
  [[nodiscard]] Persist write(SidecarRecord next, CoordinatorMessage cause);
  // Ends the write. No value: the event answers no write that is in progress.
  [[nodiscard]] std::optional<FinishedWrite> finish(const Persisted& event);
  // Queues a message behind the write. False when the queue is full: the message is dropped.
  [[nodiscard]] bool defer(const CoordinatorMessage& message);
  // The next queued message; none while a write is in progress.
  [[nodiscard]] std::optional<CoordinatorMessage> next_deferred();

  // The fleet has decided other bytes under this version's name than are here. Until the next
  // decision is stored, a replica that serves it is not ready.
  void set_other_bytes(const Version& version) noexcept { other_bytes_ = version; }
  // Why a replica that serves `version` must not be routed to; none: nothing here speaks against
  // it. The withdrawn versions of the stored record are the replica's own matter.
  [[nodiscard]] std::optional<std::string> unready_reason(const Version& version) const;

  // kInternal with the first broken rule: no decision is above the fence; the record that is being
  // written never lowers the fence of the fleet; messages wait only while a write is in progress.
  [[nodiscard]] Result<> invariants() const;

 private:
  // A decision that could not be stored. It is not acted on, but the versions that it withdraws are
  // known to be unwanted, so replicas that serve them are not ready until a decision is stored.
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
