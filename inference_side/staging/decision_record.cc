#include "inference_side/staging/decision_record.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/control/withdrawn.h"

namespace wsync::staging {
namespace {

constexpr std::size_t kDeferredCount = 256;  // messages that wait for one write

constexpr std::array<Transition<RecordState>, 3> kRecordTransitions = {{
    {RecordState::kStored, "a message needs another record", RecordState::kWriting,
     "Persist; messages of the coordinator wait"},
    {RecordState::kWriting, "the record is on disc", RecordState::kStored,
     "act on the message, then on those that waited"},
    {RecordState::kWriting, "the record could not be written", RecordState::kStored,
     "refuse the message; the previous record stays in force"},
}};

bool contains(const std::vector<Version>& versions, const Version& version) {
  return std::ranges::find(versions, version) != versions.end();
}

}  // namespace

std::string_view record_state_name(RecordState state) noexcept {
  switch (state) {
    case RecordState::kStored:
      return "stored";
    case RecordState::kWriting:
      return "writing";
  }
  return "unknown";
}

TransitionTable record_transitions() {
  return describe<RecordState>(
      "DecisionRecord",
      "The record of a sidecar: its fence, its decision, and the withdrawn "
      "versions.",
      kRecordTransitions, record_state_name);
}

void DecisionRecord::move(RecordState to) {
  WSYNC_CHECK(allows<RecordState>(kRecordTransitions, state_, to),
              fmt::format("the record cannot go from {} to {}", record_state_name(state_),
                          record_state_name(to)));
  state_ = to;
}

bool DecisionRecord::targets(const Version& version) const {
  return version == stored_.target ||
         (state_ == RecordState::kWriting && version == writing_.target);
}

bool DecisionRecord::is_withdrawn(const Version& version) const {
  return contains(stored_.withdrawn, version);
}

FenceCheck DecisionRecord::check(const control::Fence& fence) const {
  const bool another = fence.fleet != stored_.fence.fleet && !stored_.fence.fleet.none();
  // Fences of two fleets cannot be compared. A sidecar is bound to a fleet's id by the first
  // decision that it stores. Before that it follows any coordinator that welcomes it.
  if (another && !stored_.decision.none() && !planted("fleets_not_compared"))
    return FenceCheck::kOtherFleet;
  if (fence < stored_.fence && !another && !planted("fence_forgotten")) return FenceCheck::kLower;
  return fence > stored_.fence || another ? FenceCheck::kHigher : FenceCheck::kFollowed;
}

Judgement DecisionRecord::judge(const control::Fence& fence, const control::Decide& decide,
                                const TargetFacts& facts) const {
  const control::Decision decision{.fence = fence, .number = decide.number};
  if (decide.number == 0 || decide.origin > decision)
    return {.verdict = DecisionVerdict::kRefused,
            .reason = "the decision has no number, or is older than its origin",
            .next = {}};
  if (decision == stored_.decision)
    return {.verdict = DecisionVerdict::kRepeated, .reason = {}, .next = {}};
  if (decision < stored_.decision)
    return {.verdict = DecisionVerdict::kOutdated, .reason = {}, .next = {}};
  Judgement judgement{.reason = {}, .next = stored_};
  SidecarRecord& next = judgement.next;
  for (const Version& version : decide.withdrawn)
    if (!is_withdrawn(version)) next.withdrawn.push_back(version);
  control::bound_withdrawn(next.withdrawn, facts.in_use);
  // The withdrawn versions count in any case, even if there is no target or the target is refused.
  if (decide.target.none()) {
    next.decision = decision;
    judgement.verdict = DecisionVerdict::kWithdraws;
    return judgement;
  }
  judgement.other_bytes = names_other_bytes(decide, facts);
  if (const auto reason = refusal(decide, facts)) {
    judgement.reason = *reason;
    judgement.verdict = next != stored_ ? DecisionVerdict::kWithdraws : DecisionVerdict::kRefused;
    return judgement;
  }
  next.decision = decision;
  next.origin = decide.origin.none() ? decision : decide.origin;
  next.kind = decide.kind;
  next.target = decide.target;
  next.content = decide.content_digest;
  if (next.content == Digest{} && next.target == stored_.target) next.content = stored_.content;
  if (next.content == Digest{} && facts.held) next.content = *facts.held;
  judgement.verdict = DecisionVerdict::kDecides;
  return judgement;
}

bool DecisionRecord::names_other_bytes(const control::Decide& decide,
                                       const TargetFacts& facts) const {
  const Digest& content = decide.content_digest;
  const bool held = facts.held && *facts.held != content;
  const bool decided =
      decide.target == stored_.target && stored_.content != Digest{} && stored_.content != content;
  return content != Digest{} && (held || decided);
}

std::optional<std::string> DecisionRecord::refusal(const control::Decide& decide,
                                                   const TargetFacts& facts) const {
  const Version& target = decide.target;
  if (contains(decide.withdrawn, target) || (is_withdrawn(target) && !planted("withdrawn_decided")))
    return fmt::format("version {} was withdrawn", target.to_string());
  if (names_other_bytes(decide, facts))
    return fmt::format("version {} names different bytes on this sidecar", target.to_string());
  const Digest& content = decide.content_digest;
  if (content != Digest{} && facts.announced && *facts.announced != content &&
      !planted("decided_bytes_not_compared"))
    return fmt::format(
        "version {} was announced with different bytes: content digest {}, expected {} as decided",
        target.to_string(), facts.announced->to_string(), content.to_string());
  // The stored decision has priority over an older one, unless its target was withdrawn: then the
  // older decision is the newest valid one.
  const bool keeps_own = !stored_.target.none() && !is_withdrawn(stored_.target) &&
                         !contains(decide.withdrawn, stored_.target);
  if (keeps_own && !decide.origin.none() && decide.origin < stored_.origin &&
      !planted("older_origin_obeyed"))
    return fmt::format("this sidecar follows a newer decision than that of {}: {}",
                       target.to_string(), stored_.target.to_string());
  return std::nullopt;
}

Persist DecisionRecord::write(SidecarRecord next, CoordinatorMessage cause) {
  move(RecordState::kWriting);
  writing_ = std::move(next);
  cause_ = std::move(cause);
  return {.token = ++token_, .record = writing_};
}

std::optional<FinishedWrite> DecisionRecord::finish(const Persisted& event) {
  if (state_ != RecordState::kWriting || event.token != token_) return std::nullopt;
  move(RecordState::kStored);
  FinishedWrite finished{.cause = std::move(cause_)};
  const auto* decide = std::get_if<control::Decide>(&finished.cause.message);
  if (!event.failure.empty()) {
    if (decide != nullptr)
      unstored_ = Unstored{.withdrawn = decide->withdrawn, .failure = event.failure};
    return finished;
  }
  const SidecarRecord before = std::exchange(stored_, std::move(writing_));
  if (decide != nullptr && !decide->target.none() && stored_.decision != before.decision) {
    unstored_.reset();
    other_bytes_ = {};
    finished.effect = WriteEffect::kDecided;
  } else {
    finished.effect = stored_.fence == before.fence ? WriteEffect::kWithdrawn : WriteEffect::kFence;
  }
  return finished;
}

bool DecisionRecord::defer(const CoordinatorMessage& message) {
  if (deferred_.size() >= kDeferredCount) return false;
  deferred_.push_back(message);
  return true;
}

std::optional<CoordinatorMessage> DecisionRecord::next_deferred() {
  if (state_ == RecordState::kWriting || deferred_.empty()) return std::nullopt;
  CoordinatorMessage next = std::move(deferred_.front());
  deferred_.pop_front();
  return next;
}

std::optional<std::string> DecisionRecord::unready_reason(const Version& version) const {
  if (!other_bytes_.none() && version == other_bytes_)
    return fmt::format("the fleet has decided different bytes under the name {}",
                       other_bytes_.to_string());
  if (unstored_ && contains(unstored_->withdrawn, version) && !planted("owed_rollback_is_ready"))
    return fmt::format("{} was withdrawn, but this sidecar could not store that decision: {}",
                       version.to_string(), unstored_->failure);
  return std::nullopt;
}

Result<> DecisionRecord::invariants() const {
  const auto broken = [](std::string rule) { return fail(ErrorCode::kInternal, std::move(rule)); };
  const bool writing = state_ == RecordState::kWriting;
  if (stored_.decision.fence > stored_.fence && !planted("fence_forgotten"))
    return broken("a decision above the highest fence seen");
  if (writing && writing_.fence.fleet == stored_.fence.fleet && writing_.fence < stored_.fence &&
      !planted("fence_forgotten"))
    return broken("a record with a lower fence is being written");
  if (!writing && !deferred_.empty())
    return broken("messages wait for a write that is not in progress");
  return {};
}

}  // namespace wsync::staging
