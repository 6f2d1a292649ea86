#include "trainer_side/coordinator/decision_log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/control/withdrawn.h"

namespace wsync::coordinator {
namespace {

constexpr std::array<Transition<DecisionLogState>, 9> kLogTransitions = {{
    {DecisionLogState::kIdle, "a fence is claimed", DecisionLogState::kStoringClaim,
     "Store the claim"},
    {DecisionLogState::kIdle, "a decision is taken", DecisionLogState::kStoringDecision,
     "Store the decision"},
    {DecisionLogState::kIdle, "the names of the members have changed", DecisionLogState::kIdle,
     "Store them; nothing waits for it"},
    {DecisionLogState::kStoringClaim, "the claim is stored", DecisionLogState::kIdle,
     "Welcome to every sidecar that is known"},
    {DecisionLogState::kStoringClaim, "the claim cannot be stored", DecisionLogState::kIdle,
     "stop"},
    {DecisionLogState::kStoringClaim, "the store does not answer in time", DecisionLogState::kIdle,
     "stop"},
    {DecisionLogState::kStoringDecision, "the decision is stored", DecisionLogState::kIdle,
     "Decide to the sidecars that can follow"},
    {DecisionLogState::kStoringDecision, "the decision cannot be stored", DecisionLogState::kIdle,
     "send nothing; fail its publish or rollback"},
    {DecisionLogState::kStoringDecision, "the store does not answer in time",
     DecisionLogState::kIdle, "stop"},
}};

constexpr std::chrono::seconds kStoreRetry{1};
// Sidecars hold only a few versions, and the newest ones.
constexpr std::size_t kVersionsKnown = 256;

// The codes of check_replaces().
bool is_fenced(const Error& error) {
  return error.code() == ErrorCode::kFenced || error.code() == ErrorCode::kRefused;
}

}  // namespace

std::string_view decision_log_state_name(DecisionLogState state) noexcept {
  switch (state) {
    case DecisionLogState::kIdle:
      return "idle";
    case DecisionLogState::kStoringClaim:
      return "storing_claim";
    case DecisionLogState::kStoringDecision:
      return "storing_decision";
  }
  return "unknown";
}

TransitionTable decision_log_transitions() {
  return describe<DecisionLogState>("DecisionLog",
                                    "What the coordinator has decided, and what of it is stored.",
                                    kLogTransitions, decision_log_state_name);
}

DecisionLog::DecisionLog(const std::optional<CoordinatorRecord>& stored) {
  if (!stored) return;
  record_ = *stored;
  note_decided(record_.target);
  record_.fence = {};  // claimed by the previous coordinator
  record_.number = 0;
}

void DecisionLog::move(DecisionLogState to) {
  WSYNC_CHECK(allows<DecisionLogState>(kLogTransitions, state_, to),
              fmt::format("DecisionLog cannot go from {} to {}", decision_log_state_name(state_),
                          decision_log_state_name(to)));
  state_ = to;
}

// ---- what is stored ----

void DecisionLog::store(CoordinatorContext& context, DecisionLogState what, CoordinatorRecord next,
                        std::optional<RollbackRequested> rollback) {
  move(what);
  members_changed_ = false;  // this write also stores them
  std::optional<TimePoint> deadline;
  if (context.options.store) deadline = context.now + *context.options.store;
  pending_ = Pending{.token = ++token_,
                     .begun = context.now,
                     .deadline = deadline,
                     .rollback = std::move(rollback),
                     .next = std::move(next)};
  context.emit(Store{.token = pending_->token, .record = pending_->next});
}

void DecisionLog::store_claim(CoordinatorContext& context, const control::Fence& fence) {
  CoordinatorRecord next = record_;
  next.fence = fence;
  next.number = 0;
  store(context, DecisionLogState::kStoringClaim, std::move(next), std::nullopt);
}

Version DecisionLog::same_as() const noexcept {
  const bool is_same = record_.content != Digest{} && record_.content == previous_content_;
  return is_same ? previous_target_ : Version{};
}

void DecisionLog::decide(CoordinatorContext& context, const DecisionChoice& choice,
                         const PublishRequested* snapshot,
                         std::optional<RollbackRequested> rollback) {
  CoordinatorRecord next = record_;
  ++next.number;
  next.kind = choice.kind;
  next.origin = choice.origin.none() ? control::Decision{.fence = next.fence, .number = next.number}
                                     : choice.origin;
  next.content = choice.content;
  if (next.content == Digest{} && choice.target == record_.target) next.content = record_.content;
  if (next.content == Digest{} && choice.target == previous_target_)
    next.content = previous_content_;
  if (snapshot != nullptr) next.content = snapshot->content_digest;
  if (rollback && choice.target != record_.target && !planted("rollback_forgets_withdrawn"))
    withdraw(context.roster, next.withdrawn, {record_.target});
  next.target = choice.target;
  store(context, DecisionLogState::kStoringDecision, std::move(next), std::move(rollback));
  pending_->withdrawn_changed = std::exchange(withdrawn_changed_, false);
}

void DecisionLog::store_members(CoordinatorContext& context) {
  if (!members_changed_ || pending_ || members_token_ != 0 ||
      (members_again_ && context.now < *members_again_))
    return;
  members_changed_ = false;
  members_again_.reset();
  members_token_ = ++token_;
  context.emit(Store{.token = members_token_, .record = record_});
}

StoreOutcome DecisionLog::members_stored(const CoordinatorContext& context, const Stored& event) {
  members_token_ = 0;
  if (event.record) return {};
  const Error& error = event.record.error();
  if (is_fenced(error)) return {.failure = Error(ErrorCode::kFenced, error.message())};
  members_changed_ = true;
  members_again_ = context.now + kStoreRetry;
  return {};
}

StoreOutcome DecisionLog::handle(CoordinatorContext& context, const Stored& event) {
  if (event.token == members_token_ && members_token_ != 0) return members_stored(context, event);
  if (!pending_ || event.token != pending_->token) {
    ++context.dropped;
    return {};
  }
  const Pending done = *std::exchange(pending_, std::nullopt);
  const bool claims = state_ == DecisionLogState::kStoringClaim;
  move(DecisionLogState::kIdle);
  StoreOutcome outcome{
      .ended = claims ? StoreOutcome::Ended::kClaim : StoreOutcome::Ended::kDecision,
      .rollback = done.rollback};
  if (event.record) {
    const CoordinatorRecord before = std::exchange(record_, *event.record);
    context.fence = record_.fence;
    note_decided(record_.target);
    if (before.target == record_.target) return outcome;
    previous_target_ = before.target;
    previous_content_ = before.content;
    if (done.rollback) rollback_from_ = before.target;
    return outcome;
  }
  members_changed_ = true;
  withdrawn_changed_ = done.withdrawn_changed;
  const std::string& why = event.record.error().message();
  if (is_fenced(event.record.error()))
    outcome.failure =
        Error(ErrorCode::kFenced, why + "; start with --take-over to claim the fleet");
  else if (claims)
    outcome.failure = Error(
        ErrorCode::kIo, fmt::format("cannot store fence epoch {}: {}", done.next.fence.epoch, why));
  else
    outcome.failure = Error(
        ErrorCode::kIo,
        fmt::format(
            "the decision could not be stored, so it was not sent and the fleet is unchanged: {}",
            why));
  return outcome;
}

Result<> DecisionLog::check_deadline(TimePoint now) const {
  if (!pending_ || !pending_->deadline || now < *pending_->deadline) return {};
  return fail(
      ErrorCode::kIo,
      fmt::format(
          "the record of this coordinator could not be written within {} s, so it is unknown which "
          "decision is in force; check the disk of its state_dir, then restart the coordinator",
          std::chrono::duration_cast<std::chrono::seconds>(now - pending_->begun).count()));
}

void DecisionLog::abandon() {
  if (!pending_) return;
  pending_.reset();
  move(DecisionLogState::kIdle);
}

// ---- which decision applies ----

// Each decision has an origin: the publish or rollback that first chose its target. A coordinator
// repeats the newest decision under its own fence, so decision numbers do not show whose target is
// newer, but origins do. A sidecar with a greater origin raises the target to its own, even if it
// arrives late. If a target turns out to be withdrawn, the newest of the others is repeated under
// its own origin: a new origin would override the decision of a sidecar that has not arrived yet.
std::optional<DecisionChoice> DecisionLog::newest(CoordinatorContext& context) {
  DecisionChoice newest;
  const auto consider = [&](const control::Decision& origin, const Version& version,
                            const Digest& content) {
    if (version.none() || contains(record_.withdrawn, version)) return;
    if (!newest.target.none() && origin <= newest.origin) return;
    newest.origin = origin;
    newest.target = version;
    newest.content = content;
  };
  consider(record_.origin, record_.target, record_.content);
  for (const auto& [name, member] : context.roster.members())
    if (member.joined && !planted("newest_not_followed"))
      consider(member.origin, member.report.target, member.target_content);
  if (newest.target.none()) {
    if (record_.target.none() && !withdrawn_changed_) return std::nullopt;
    // No version is left that may be served. A decision without a target notifies all sidecars. The
    // next publish replaces it.
    if (!record_.target.none())
      context.emit(Incident{
          .text = fmt::format("{} was withdrawn by a decision that this coordinator had not "
                              "received, and no sidecar reports another version: publish one",
                              record_.target.to_string())});
    return DecisionChoice{.kind = control::DecisionKind::kRollback, .origin = record_.origin};
  }
  const bool same = newest.target == record_.target && newest.origin == record_.origin;
  if (same && record_.number > 0 && !withdrawn_changed_) return std::nullopt;
  follow_again_.reset();
  const bool back = contains(record_.withdrawn, record_.target);
  newest.kind = back ? control::DecisionKind::kRollback : control::DecisionKind::kSwitch;
  if (newest.target == record_.target) newest.kind = record_.kind;
  return newest;
}

void DecisionLog::follow_later(TimePoint now) { follow_again_ = now + kStoreRetry; }

bool DecisionLog::take_follow_due(TimePoint now) {
  if (!follow_again_ || now < *follow_again_) return false;
  follow_again_.reset();
  return true;
}

void DecisionLog::note_offered(const Version& version) {
  offered_.insert(version);
  if (offered_.size() > kVersionsKnown) offered_.erase(offered_.begin());
}

void DecisionLog::note_decided(const Version& version) {
  if (version.none()) return;
  offered_.erase(version);
  decided_.insert(version);
  if (decided_.size() > kVersionsKnown) decided_.erase(decided_.begin());
}

// A sidecar that stores a decision releases the copies that were never decided. So a copy that is
// older than its target was decided, and so was everything that it holds after its first decision
// under this fence, unless this process has offered it since.
bool DecisionLog::was_decided(const Roster& roster, const Version& version) const {
  if (decided_.contains(version)) return true;
  if (offered_.contains(version)) return false;
  return std::ranges::any_of(roster.members(), [&](const auto& entry) {
    const Member& member = entry.second;
    return member.joined && member.holds(version) &&
           (member.released_undecided || version < member.target_at_hello);
  });
}

std::optional<Version> DecisionLog::rollback_target(const Roster& roster) const {
  return roster.rollback_target(record_.target, [&](const Version& version) {
    return !contains(record_.withdrawn, version) && was_decided(roster, version);
  });
}

Result<Version> DecisionLog::choose_rollback(const Roster& roster, const Version& to) const {
  const auto refuse = [](std::string why) { return fail(ErrorCode::kRefused, std::move(why)); };
  if (record_.target.none()) return refuse("no version has been decided yet");
  if (roster.joined_count() == 0) return refuse("no sidecar is connected to this coordinator");
  const Version version = to.none() ? rollback_target(roster).value_or(Version{}) : to;
  if (version.none())
    return refuse(fmt::format("no version before {} is still held by every live sidecar",
                              record_.target.to_string()));
  // A rollback to the version of the last rollback is sent to all sidecars again, because some may
  // not have executed it.
  const bool goes_back =
      record_.kind == control::DecisionKind::kRollback ||
      std::ranges::any_of(record_.withdrawn, [&](const Version& other) { return version < other; });
  if (version == record_.target && !goes_back)
    return refuse(fmt::format("{} is the target already", version.to_string()));
  if (contains(record_.withdrawn, version))
    return refuse(
        fmt::format("{} was withdrawn by an earlier rollback; push its directory again, "
                    "under a new number",
                    version.to_string()));
  if (record_.target < version)
    return refuse(
        fmt::format("{} is newer than the target {}: it was never decided; push it to "
                    "have it served",
                    version.to_string(), record_.target.to_string()));
  std::string lacking;
  for (const auto& [name, member] : roster.members())
    if (member.joined && !member.holds(version))
      lacking += (lacking.empty() ? "'" : ", '") + name + "'";
  if (!lacking.empty())
    return refuse(fmt::format("{} is no longer held by sidecar {}", version.to_string(), lacking));
  if (version != record_.target && !was_decided(roster, version))
    return refuse(
        fmt::format("{} was offered, but this coordinator does not know that it was ever decided: "
                    "push it to have "
                    "it served",
                    version.to_string()));
  return version;
}

// ---- members and withdrawn versions ----

void DecisionLog::add_member(const Roster& roster, const std::string& name) {
  if (std::ranges::find(record_.members, name) != record_.members.end()) return;
  // If the list is full, remove names whose sidecars have not connected to this process.
  if (record_.members.size() >= limits::kSidecarCount)
    std::erase_if(record_.members,
                  [&](const std::string& old) { return roster.find(old) == nullptr; });
  record_.members.push_back(name);
  members_changed_ = true;
}

void DecisionLog::remove_member(const std::string& name) {
  members_changed_ |= std::erase(record_.members, name) > 0;
}

std::vector<std::string> DecisionLog::remove_absent(const Roster& roster) {
  std::vector<std::string> absent;
  if (!record_.withdrawn.empty()) return absent;
  std::erase_if(record_.members, [&](const std::string& name) {
    const bool is_absent = roster.find(name) == nullptr;
    if (is_absent) absent.push_back(name);
    return is_absent;
  });
  members_changed_ |= !absent.empty();
  return absent;
}

void DecisionLog::learn_withdrawn(const Roster& roster, const std::vector<Version>& versions) {
  const std::size_t before = record_.withdrawn.size();
  withdraw(roster, record_.withdrawn, versions);
  withdrawn_changed_ |= before != record_.withdrawn.size();
}

void DecisionLog::withdraw(const Roster& roster, std::vector<Version>& withdrawn,
                           const std::vector<Version>& versions) const {
  for (const Version& version : versions)
    if (!contains(withdrawn, version)) withdrawn.push_back(version);
  if (withdrawn.size() <= limits::kWithdrawnCount) return;
  std::vector<Version> in_use{record_.target, previous_target_};
  for (const auto& [name, member] : roster.members()) {
    in_use.push_back(member.report.target);
    in_use.insert(in_use.end(), member.report.staged.begin(), member.report.staged.end());
    for (const control::ReplicaReport& replica : member.report.replicas)
      in_use.push_back(replica.version);
  }
  control::bound_withdrawn(withdrawn, in_use);
}

// ---- deadlines and rules ----

std::optional<TimePoint> DecisionLog::next_wake() const {
  if (pending_) return pending_->deadline;
  std::optional<TimePoint> wake = follow_again_;
  if (members_changed_ && members_token_ == 0 && members_again_ &&
      (!wake || *members_again_ < *wake))
    wake = members_again_;
  return wake;
}

Result<> DecisionLog::invariants() const {
  if (pending_.has_value() != is_storing())
    return fail(ErrorCode::kInternal,
                fmt::format("the log is {} with{} a record that is being stored",
                            decision_log_state_name(state_), pending_ ? "" : "out"));
  if (!pending_ && record_.number > 0 &&
      record_.origin > control::Decision{record_.fence, record_.number})
    return fail(ErrorCode::kInternal, "a decision that is older than its origin");
  return {};
}

}  // namespace wsync::coordinator
