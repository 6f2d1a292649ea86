#include "trainer_side/coordinator/update_round.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/coordinator/missing_replicas.h"
#include "trainer_side/coordinator/slow_members.h"
#include "trainer_side/coordinator/snapshot_stream.h"
#include "trainer_side/coordinator/transport_choice.h"

namespace wsync::coordinator {
namespace {

constexpr std::array<Transition<RoundState>, 14> kRoundTransitions = {{
    {RoundState::kAnnouncing, "every member has accepted", RoundState::kStaging, "Stage"},
    {RoundState::kStaging, "all have staged, but replicas are missing", RoundState::kStaging,
     "wait for heartbeats of more replicas"},
    {RoundState::kStaging, "the snapshot is complete", RoundState::kStaging,
     "Stage with the content digest, or to those that map the source"},
    {RoundState::kStaging, "enough have staged (`commit`)", RoundState::kDeciding, "Store"},
    {RoundState::kDeciding, "the decision is stored", RoundState::kSwitching,
     "Decide to the members that have staged"},
    {RoundState::kAnnouncing, "a cancel, a failure (`commit`, the snapshot) or a deadline",
     RoundState::kFinished, "Abort"},
    {RoundState::kStaging, "a cancel, a failure (`commit`, the snapshot) or a deadline",
     RoundState::kFinished, "Abort"},
    {RoundState::kAnnouncing, "every member was lost", RoundState::kFinished,
     "report it; a publish that is kept waits for sidecars"},
    {RoundState::kStaging, "every member was lost", RoundState::kFinished,
     "report it; a publish that is kept waits for sidecars"},
    {RoundState::kDeciding, "the decision cannot be stored", RoundState::kFinished, "Abort"},
    {RoundState::kDeciding, "the publish's deadline passes before the store has answered",
     RoundState::kFinished, "report that; the decision is sent if it is stored"},
    {RoundState::kSwitching, "a replica begins to switch in its turn", RoundState::kSwitching,
     "the deadline begins again"},
    {RoundState::kSwitching, "a rollback takes back a switch in turns", RoundState::kFinished,
     "report that; decide the rollback"},
    {RoundState::kSwitching, "every member has reported, refused or failed, or the deadline passes",
     RoundState::kFinished, "report the outcomes"},
}};

const std::chrono::milliseconds kReportMargin{limits::kReportMarginMs};
// A sentence names at most so many replicas or sidecars.
constexpr std::size_t kNamed = 8;

std::uint64_t nanoseconds(std::chrono::nanoseconds d) {
  return d.count() < 0 ? 0 : static_cast<std::uint64_t>(d.count());
}

const Member& member_of(const CoordinatorContext& context, const std::string& name) {
  const Member* member = context.roster.find(name);
  WSYNC_CHECK(member != nullptr, "the members of a round stay in the roster");
  return *member;
}

// Why a member has not reported the outcomes of a decision.
std::string why_unreported(const Member& member) {
  if (!member.joined) return "it was lost during the switch";
  if (!member.delivery.failure().empty()) return member.delivery.failure();
  if (!member.refused.empty()) return "it refused the decision: " + member.refused;
  if (member.delivery.state() == DeliveryState::kStaging)
    return fmt::format("it is still staging {}, and continues",
                       member.delivery.version().to_string());
  return "it did not report before the deadline";
}

control::PushReply reply_of(const PublishRequested& publish) {
  control::PushReply reply;
  reply.version = publish.version;
  reply.content_digest = publish.content_digest;
  reply.bytes = publish.arena_bytes;
  reply.snapshot_ns = publish.snapshot_ns;
  return reply;
}

// What a replica that has not switched serves, after the reason.
std::string still_served_text(const control::ReplicaOutcome& outcome) {
  const bool serves = outcome.outcome == control::SwitchOutcome::kBehind ||
                      outcome.outcome == control::SwitchOutcome::kRolledBack;
  return !serves || outcome.version.none()
             ? ""
             : fmt::format("; it still serves {}", outcome.version.to_string());
}

// A reply names at most limits::kReplicaCount replicas. Those that have not switched come first
// then. Appends to `reason` how many are left out.
void bound_outcomes(std::vector<control::ReplicaOutcome>& all, std::string& reason) {
  if (all.size() <= limits::kReplicaCount) return;
  std::vector<control::ReplicaOutcome> kept;
  std::size_t switched_left_out = 0;
  for (const bool committed : {false, true})
    for (const control::ReplicaOutcome& outcome : all) {
      if ((outcome.outcome == control::SwitchOutcome::kCommitted) != committed) continue;
      if (kept.size() < limits::kReplicaCount)
        kept.push_back(outcome);
      else if (committed)
        ++switched_left_out;
    }
  reason += fmt::format("{}the list of replicas leaves out {} of {}, of which {} have switched",
                        reason.empty() ? "" : "; ", all.size() - kept.size(), all.size(),
                        switched_left_out);
  all = std::move(kept);
}

}  // namespace

std::string_view round_state_name(RoundState state) noexcept {
  switch (state) {
    case RoundState::kAnnouncing:
      return "announcing";
    case RoundState::kStaging:
      return "staging";
    case RoundState::kDeciding:
      return "deciding";
    case RoundState::kSwitching:
      return "switching";
    case RoundState::kFinished:
      return "finished";
  }
  return "unknown";
}

TransitionTable round_transitions() {
  return describe<RoundState>("UpdateRound",
                              "One attempt to bring the fleet to a version. A publish begins as "
                              "announcing, a rollback or a promotion as switching.",
                              kRoundTransitions, round_state_name);
}

UpdateRound::UpdateRound(const CoordinatorContext& context, RoundState state, RoundKind kind,
                         const std::set<std::string>& left_out)
    : state_(state),
      kind_(kind),
      canary_(context.options.canary),
      left_out_(left_out),
      started_(context.now),
      decided_(context.now) {
  for (const auto& [name, member] : context.roster.members())
    if (member.joined && !left_out.contains(name)) {
      members_.push_back(name);
      standings_.emplace(name, Standing{});
    }
}

UpdateRound UpdateRound::begin_publish(CoordinatorContext& context, const PublishRequested& publish,
                                       const std::set<std::string>& left_out) {
  UpdateRound round(context, RoundState::kAnnouncing, RoundKind::kPublish, left_out);
  round.publish_ = publish;
  round.deadline_ = round.in_time(context, context.options.announce);
  context.emit(
      PhaseEntered{.request = publish.request, .phase = control::ProgressPhase::kAnnounce});
  return round;
}

UpdateRound UpdateRound::begin_rollback(CoordinatorContext& context, std::uint64_t request,
                                        const Version& from, const Version& to) {
  UpdateRound round(context, RoundState::kSwitching, RoundKind::kRollback);
  round.publish_ = {.request = request, .version = to};
  round.from_ = from;
  round.deadline_ = round.in_time(context, context.options.whole_switch + kReportMargin);
  context.emit(RollbackBegan{.request = request, .to = to});
  return round;
}

UpdateRound UpdateRound::begin_promotion(CoordinatorContext& context, std::uint64_t request,
                                         const Version& version) {
  UpdateRound round(context, RoundState::kSwitching, RoundKind::kPromotion);
  round.publish_ = {.request = request, .version = version};
  round.deadline_ = round.in_time(context, context.options.whole_switch + kReportMargin);
  context.emit(PromotionBegan{.request = request, .version = version});
  return round;
}

void UpdateRound::move(RoundState to) {
  WSYNC_CHECK(allows<RoundState>(kRoundTransitions, state_, to),
              fmt::format("the round of {} cannot go from {} to {}", publish_.version.to_string(),
                          round_state_name(state_), round_state_name(to)));
  state_ = to;
}

bool UpdateRound::has(const Member& member) const { return standings_.contains(member.name); }

std::string_view UpdateRound::activity() const noexcept {
  return round_state_name(state_ == RoundState::kDeciding ? RoundState::kStaging : state_);
}

// Limits a deadline to that of the publish.
TimePoint UpdateRound::in_time(const CoordinatorContext& context,
                               std::chrono::milliseconds phase) const {
  const TimePoint end = context.now + phase;
  return publish_.deadline ? std::min(end, *publish_.deadline) : end;
}

// ---- progress ----

void UpdateRound::leave(const Member& member, std::string why, bool is_lost) {
  const auto standing = standings_.find(member.name);
  if (standing == standings_.end()) return;
  left_[member.name] = std::move(why);
  has_failed_ |= !is_lost;
  add(standing->second, false);
  standings_.erase(standing);
  std::erase(members_, member.name);
}

void UpdateRound::add_problems(const std::vector<control::Problem>& problems) {
  // Every sidecar may have the same ones, and a reply has a limited number.
  const std::size_t room = limits::kProblemCount - problems_.size();
  const std::size_t taken = std::min(room, problems.size());
  problems_.insert(problems_.end(), problems.begin(),
                   problems.begin() + static_cast<std::ptrdiff_t>(taken));
  problems_left_out_ += problems.size() - taken;
}

UpdateRound::Standing UpdateRound::standing_of(const Member& member) const {
  const DeliveryState state = member.delivery.state();
  const bool staged = state == DeliveryState::kStaged;
  const bool over = member.peer.empty() || member.switched == counted_for_ ||
                    (counted_for_ && owes_nothing(member, *counted_for_)) ||
                    !member.refused.empty() || state == DeliveryState::kFailed;
  return {.accepted = state == DeliveryState::kAccepted ? 1U : 0U,
          .staged = staged ? 1U : 0U,
          .replicas = staged ? whole_replicas(member) : 0U,
          .canaries = staged && !canary_.empty() ? whole_replicas(member, canary_) : 0U,
          .over = over ? 1U : 0U,
          .slow = !over && state == DeliveryState::kStaging ? 1U : 0U};
}

void UpdateRound::add(const Standing& standing, bool once_more) {
  const auto change = [once_more](std::uint32_t& sum, std::uint32_t part) {
    sum = once_more ? sum + part : sum - part;
  };
  change(total_.accepted, standing.accepted);
  change(total_.staged, standing.staged);
  change(total_.replicas, standing.replicas);
  change(total_.canaries, standing.canaries);
  change(total_.over, standing.over);
  change(total_.slow, standing.slow);
}

void UpdateRound::count_one(const Member& member) {
  const auto standing = standings_.find(member.name);
  if (standing == standings_.end()) return;
  add(standing->second, false);
  standing->second = standing_of(member);
  add(standing->second, true);
}

void UpdateRound::count(const CoordinatorContext& context, std::uint64_t number) {
  const bool all = context.roster.all_changed() || counted_for_ != number;
  counted_for_ = number;
  if (!all) {
    for (const Member* member : context.roster.changed()) count_one(*member);
    return;
  }
  for (const std::string& name : members_) count_one(member_of(context, name));
}

bool UpdateRound::enough_staged(const CoordinatorContext& context) const {
  if (planted("decide_before_all_staged") && !members_.empty()) return true;
  const bool enough = context.options.commit.rule == CommitRule::kAll
                          ? total_.staged == members_.size()
                          : total_.staged > 0;
  return enough && total_.replicas >= needed_replicas(context.options) &&
         (canary_.empty() || total_.canaries > 0);
}

RoundStep UpdateRound::advance(const CoordinatorContext& context, std::uint64_t number) {
  count(context, number);
  if (state_ == RoundState::kDeciding || state_ == RoundState::kFinished) return RoundStep::kWait;
  if (state_ == RoundState::kSwitching)
    return total_.over == members_.size() ? RoundStep::kFinish : RoundStep::kWait;
  if (members_.empty()) return RoundStep::kAbort;
  if (state_ == RoundState::kStaging && !is_complete() && !planted("decided_without_content"))
    return RoundStep::kWait;
  if (state_ == RoundState::kAnnouncing)
    return total_.accepted == members_.size() ? RoundStep::kStage : RoundStep::kWait;
  if (enough_staged(context)) return RoundStep::kDecide;
  // Wait for the next heartbeats, because they report engines that have just attached.
  if (total_.staged == members_.size() && !std::exchange(lacks_replicas_, true))
    deadline_ = in_time(context, context.options.attach);
  return RoundStep::kWait;
}

void UpdateRound::begin_staging(CoordinatorContext& context) {
  move(RoundState::kStaging);
  // The snapshot has the time of the whole publish, and staging cannot end before it.
  deadline_ = is_complete() || !publish_.deadline ? in_time(context, context.options.stage)
                                                  : *publish_.deadline;
  context.emit(PhaseEntered{.request = publish_.request, .phase = control::ProgressPhase::kStage});
}

void UpdateRound::complete_snapshot(const CoordinatorContext& context,
                                    const SnapshotEnded& snapshot) {
  complete(publish_, snapshot);
  started_ = context.now;
  if (state_ == RoundState::kStaging) deadline_ = in_time(context, context.options.stage);
}

void UpdateRound::begin_deciding() { move(RoundState::kDeciding); }

void UpdateRound::begin_switching(CoordinatorContext& context) {
  move(RoundState::kSwitching);
  decided_ = context.now;
  deadline_ = in_time(context, context.options.whole_switch + kReportMargin);
  for (const std::string& name : members_)
    if (!canary_.empty() && whole_replicas(member_of(context, name), canary_) > 0)
      canary_members_.insert(name);
  context.emit(PhaseEntered{.request = publish_.request, .phase = control::ProgressPhase::kSwitch});
}

void UpdateRound::extend_switch(const CoordinatorContext& context) {
  if (state_ == RoundState::kSwitching)
    deadline_ = in_time(context, context.options.whole_switch + kReportMargin);
}

void UpdateRound::hurry(const CoordinatorContext& context, bool publish_waits) {
  const bool only_slow = kind_ == RoundKind::kPublish && state_ == RoundState::kSwitching &&
                         context.options.commit.rule != CommitRule::kAll && total_.slow > 0 &&
                         total_.over + total_.slow == members_.size();
  if (!only_slow) only_slow_since_.reset();
  if (only_slow && !only_slow_since_) only_slow_since_ = context.now;
  hurried_.reset();
  if (publish_waits && only_slow_since_)
    hurried_ = *only_slow_since_ + (*only_slow_since_ - started_);
}

bool UpdateRound::owes_nothing(const Member& member, std::uint64_t number) const {
  return !canary_members_.empty() && member.decided == number &&
         !canary_members_.contains(member.name);
}

std::string UpdateRound::canary_of(const Member& member) const {
  return canary_members_.contains(member.name) ? canary_ : std::string();
}

// ---- end of the round ----

std::optional<std::string> UpdateRound::why_over(const CoordinatorContext& context) const {
  const std::string version = publish_.version.to_string();
  if (state_ == RoundState::kSwitching) return std::nullopt;
  if (publish_.deadline && context.now >= *publish_.deadline)
    return fmt::format("the deadline of the whole publish (deadlines.publish) passed while {} {}",
                       activity(), version);
  if (!lacks_replicas_) return std::nullopt;
  std::uint32_t staged = 0;
  for (const std::string& name : members_) staged += standing_of(member_of(context, name)).replicas;
  const std::string missing = missing_in_round(context);
  const std::uint32_t needed = needed_replicas(context.options);
  if (staged >= std::max(1U, needed)) return missing_canary(context);
  if (staged == 0)
    return fmt::format("{} is staged, and no replica can load it: {}; publish again when one can",
                       version, missing);
  return fmt::format(
      "{} whole replicas have staged {}; the round needs {}: attach more ranks, or lower {}{}",
      staged, version, needed,
      needed > context.options.min_replicas ? "the quorum of `commit`" : "`min_replicas`",
      missing.empty() ? "" : " (" + missing + ")");
}

std::string UpdateRound::missing_in_round(const CoordinatorContext& context) const {
  std::vector<const Member*> members;
  for (const std::string& name : members_) members.push_back(&member_of(context, name));
  return missing_replicas(members);
}

// Their engines have gone after their sidecar has reported them, and before the decision came.
std::string UpdateRound::why_none_switched(const CoordinatorContext& context) const {
  const std::string missing = missing_in_round(context);
  return missing.empty() ? "no replica has switched" : "no replica has switched: " + missing;
}

std::string UpdateRound::missing_canary(const CoordinatorContext& context) const {
  std::vector<std::string> others;
  for (const std::string& name : members_)
    for (const control::ReplicaReport& replica : member_of(context, name).report.replicas) {
      if (replica.replica == canary_)
        return fmt::format("the canary '{}' has {} of {} ranks ({}); publish again when it has all",
                           canary_, replica.ranks_attached, replica.world_size, replica.reason);
      others.push_back(replica.replica);
    }
  const std::size_t more = others.size() - std::min(others.size(), kNamed);
  others.resize(others.size() - more);
  return fmt::format(
      "the canary '{}' is not attached to a sidecar of this round: start its engine, or set "
      "`canary` to another replica (attached: {}{})",
      canary_, others.empty() ? "none" : fmt::format("{}", fmt::join(others, ", ")),
      more > 0 ? fmt::format(", and {} more", more) : "");
}

std::optional<TimePoint> UpdateRound::store_deadline() const {
  return state_ == RoundState::kDeciding ? publish_.deadline : std::nullopt;
}

bool UpdateRound::is_late(const Member& member) const {
  if (!has(member)) return false;
  return state_ == RoundState::kAnnouncing ? member.delivery.state() == DeliveryState::kAnnounced
                                           : member.delivery.state() != DeliveryState::kStaged;
}

Result<> UpdateRound::check_cancel(const Version* waiting) const {
  if (kind_ == RoundKind::kRollback)
    return fail(ErrorCode::kRefused,
                fmt::format("the rollback to {} has been decided and continues: replicas may "
                            "already have switched back",
                            publish_.version.to_string()));
  const bool decided = state_ == RoundState::kDeciding || state_ == RoundState::kSwitching;
  if (!decided || planted("cancel_after_the_decision")) return {};
  return fail(
      ErrorCode::kRefused,
      fmt::format(
          "{} has been decided and its switch continues: replicas may already serve it; `wsync "
          "rollback` returns to the previous version{}",
          publish_.version.to_string(),
          waiting != nullptr
              ? fmt::format(
                    "; to cancel {}, which is queued after it, name that version with --version",
                    waiting->to_string())
              : ""));
}

// The reply to a publish whose version has been decided.
control::PushReply UpdateRound::decided_reply(TimePoint now) const {
  control::PushReply reply = reply_of(publish_);
  reply.staged_ns = nanoseconds(decided_ - started_);
  reply.switch_ns = std::max<std::uint64_t>(1, nanoseconds(now - decided_));
  return reply;
}

std::string UpdateRound::why_empty() const {
  std::vector<std::string> causes;
  for (const auto& [name, why] : left_)
    if (causes.size() < kNamed) causes.push_back(fmt::format("sidecar '{}' {}", name, why));
  const std::size_t more = left_.size() - causes.size();
  return fmt::format("no sidecar is left in the round of {}: {}{}", publish_.version.to_string(),
                     fmt::join(causes, "; "), more > 0 ? fmt::format("; and {} more", more) : "");
}

void UpdateRound::end_lost() { move(RoundState::kFinished); }

RoundDone UpdateRound::abort(TimePoint now, const std::string& why, bool cancelled) {
  control::PushReply reply =
      state_ == RoundState::kSwitching ? decided_reply(now) : reply_of(publish_);
  move(RoundState::kFinished);
  reply.reason = why;
  if (problems_left_out_ > 0)
    reply.reason += fmt::format("; the list of problems leaves out {}", problems_left_out_);
  reply.problems = problems_;
  return {.request = publish_.request, .cancelled = cancelled, .reply = std::move(reply)};
}

RoundDone UpdateRound::finish_publish(const CoordinatorContext& context, std::uint64_t number,
                                      const Version& same_as) {
  move(RoundState::kFinished);
  control::PushReply reply = decided_reply(context.now);
  std::size_t committed = 0;
  for (const std::string& name : members_) {
    const Member& member = member_of(context, name);
    if (member.switched != number) {
      if (owes_nothing(member, number)) continue;
      if (reply.reason.empty())
        reply.reason = fmt::format("sidecar '{}': {}", name, why_unreported(member));
      continue;
    }
    for (const control::ReplicaOutcome& outcome : member.outcomes) {
      if (outcome.outcome == control::SwitchOutcome::kCommitted)
        ++committed;
      else if (reply.reason.empty())
        reply.reason = fmt::format("replica '{}': {}{}", outcome.replica, outcome.reason,
                                   still_served_text(outcome));
      reply.outcomes.push_back(outcome);
    }
  }
  // A fleet may be told that it needs none: its versions are only read.
  if (committed == 0 && reply.reason.empty() && needed_replicas(context.options) > 0)
    reply.reason = why_none_switched(context);
  if (!left_out_.empty() && reply.reason.empty())
    reply.reason =
        fmt::format("the round went on without {}, which {} the version before this one",
                    left_out_.size() == 1 ? fmt::format("sidecar '{}'", *left_out_.begin())
                                          : fmt::format("{} sidecars", left_out_.size()),
                    left_out_.size() == 1 ? "is still staging" : "are still staging");
  reply.ok = reply.reason.empty();
  // The decision stays in force after this answer.
  if (!reply.ok)
    reply.reason += fmt::format(
        "; {} stays the target, and the sidecars go on trying: `wsync status` shows when every "
        "replica serves it{}, `wsync rollback` takes it back",
        publish_.version.to_string(),
        reply.outcomes.empty()
            ? ""
            : fmt::format(" (now {} of {} replicas)", committed, reply.outcomes.size()));
  if (reply.ok && !same_as.none())
    reply.reason = fmt::format("it has the content of {}, so engines that held that loaded nothing",
                               same_as.to_string());
  bound_outcomes(reply.outcomes, reply.reason);
  reply.canary = canary_;
  return {.request = publish_.request, .reply = std::move(reply)};
}

PromotionDone UpdateRound::finish_promotion(const CoordinatorContext& context, std::uint64_t number,
                                            const std::string& why) {
  move(RoundState::kFinished);
  control::PromoteReply reply;
  reply.version = publish_.version;
  std::string missing = why;
  const auto lacks = [&missing](const std::string& who) {
    missing += (missing.empty() ? "" : ", ") + who;
  };
  for (const std::string& name : members_) {
    const Member& member = member_of(context, name);
    if (member.switched != number) {
      if (why.empty()) lacks(fmt::format("sidecar '{}' ({})", name, why_unreported(member)));
      continue;
    }
    for (const control::ReplicaOutcome& outcome : member.outcomes) {
      reply.outcomes.push_back(outcome);
      if (outcome.outcome != control::SwitchOutcome::kCommitted && !outcome.is_suspended &&
          why.empty())
        lacks(fmt::format("replica '{}' ({})", outcome.replica, outcome.reason));
    }
  }
  reply.ok = missing.empty();
  reply.partial = !reply.ok;
  if (!why.empty())
    reply.reason = why;
  else if (!reply.ok)
    reply.reason = fmt::format(
        "{} is the target of every replica, but these have not switched to it yet: {}; `wsync "
        "status` shows when they have",
        reply.version.to_string(), missing);
  bound_outcomes(reply.outcomes, reply.reason);
  return {.request = publish_.request, .reply = std::move(reply)};
}

RollbackDone UpdateRound::finish_rollback(const CoordinatorContext& context,
                                          const CoordinatorRecord& record) {
  move(RoundState::kFinished);
  control::RollbackReply reply;
  reply.from = from_;
  reply.to = record.target;
  std::string missing;
  const auto lacks = [&missing](const std::string& who) {
    missing += (missing.empty() ? "" : ", ") + who;
  };
  for (const auto& [name, member] : context.roster.members()) {
    if (member.switched != record.number) {
      lacks(fmt::format("sidecar '{}'{}", name,
                        member.refused.empty() ? "" : " (" + member.refused + ")"));
      continue;
    }
    for (const control::ReplicaOutcome& outcome : member.outcomes) {
      reply.outcomes.push_back(outcome);
      // One that is suspended serves nothing, and loads the target when it resumes.
      if (outcome.version != record.target && !outcome.is_suspended)
        lacks(fmt::format("replica '{}' ({})", outcome.replica, outcome.reason));
    }
  }
  for (const std::string& name : record.members)
    if (context.roster.find(name) == nullptr)
      lacks(fmt::format("sidecar '{}' (it has not connected to this coordinator)", name));
  reply.partial = !missing.empty();
  reply.ok = missing.empty();
  if (reply.partial)
    reply.reason = from_.none()
                       ? fmt::format("these have not switched back to {} yet: {}",
                                     reply.to.to_string(), missing)
                       : fmt::format("{} is withdrawn, but these have not switched back yet: {}",
                                     from_.to_string(), missing);
  bound_outcomes(reply.outcomes, reply.reason);
  return {.request = publish_.request, .reply = std::move(reply)};
}

// ---- views ----

control::TransportAddress UpdateRound::chain_source(const CoordinatorContext& context,
                                                    const Member& member,
                                                    control::TransportAddress served) const {
  if (maps_source(served)) return served;
  // From the member backwards: in a chain the nearest one before it is the answer almost always.
  // (The chain is in the order of the names.)
  auto before = std::make_reverse_iterator(standings_.lower_bound(member.name));
  for (; before != standings_.rend(); ++before) {
    const Member& candidate = member_of(context, before->first);
    if (!candidate.joined || !candidate.delivery.relays()) continue;
    const auto* relay = control::find_transport(candidate.transports, served.kind);
    if (relay != nullptr && !relay->address.empty() && !member.delivery.has_lost(*relay) &&
        may_fetch(context.options, member, candidate.boot_id, *relay))
      return *relay;
  }
  return served;
}

MovedBytes UpdateRound::moved(const CoordinatorContext& context) const {
  MovedBytes moved;
  if (kind_ != RoundKind::kPublish || state_ == RoundState::kAnnouncing) return moved;
  const std::uint64_t model = publish_.arena_bytes;
  for (const auto& [name, member] : context.roster.members()) {
    if (!has(member)) continue;
    if (state_ != RoundState::kSwitching) {
      moved.total += model;
      moved.done += member.delivery.state() == DeliveryState::kStaged
                        ? model
                        : std::min(member.staged_bytes, model);
      continue;
    }
    for (const control::ReplicaReport& replica : member.report.replicas) {
      if (replica.state == control::ReplicaState::kAbsent) continue;
      moved.total += model;
      moved.done +=
          replica.version == publish_.version ? model : std::min(replica.loaded_bytes, model);
    }
  }
  return moved;
}

Result<> UpdateRound::invariants() const {
  const auto broken = [this](std::string_view rule) {
    return fail(ErrorCode::kInternal,
                fmt::format("the round of {} is {} {}", publish_.version.to_string(),
                            round_state_name(state_), rule));
  };
  if (kind_ != RoundKind::kPublish && state_ != RoundState::kSwitching &&
      state_ != RoundState::kFinished)
    return broken("and was decided before it began");
  if (lacks_replicas_ && state_ == RoundState::kAnnouncing) return broken("and waits for replicas");
  if (publish_.deadline && deadline_ > *publish_.deadline)
    return broken("and its deadline is later than that of its publish");
  return {};
}

Result<> UpdateRound::count_invariants(const CoordinatorContext& context) const {
  Standing total;
  for (const std::string& name : members_) {
    const auto standing = standings_.find(name);
    if (standing == standings_.end() ||
        (counted_for_ && standing->second != standing_of(member_of(context, name))))
      return fail(ErrorCode::kInternal,
                  fmt::format("the round of {} has counted sidecar '{}' wrongly",
                              publish_.version.to_string(), name));
    total.accepted += standing->second.accepted;
    total.staged += standing->second.staged;
    total.replicas += standing->second.replicas;
    total.canaries += standing->second.canaries;
    total.over += standing->second.over;
    total.slow += standing->second.slow;
  }
  if (total != total_ || standings_.size() != members_.size())
    return fail(ErrorCode::kInternal, fmt::format("the round of {} has counted {} staged members, "
                                                  "but {} of {} have staged",
                                                  publish_.version.to_string(), total_.staged,
                                                  total.staged, members_.size()));
  return {};
}

}  // namespace wsync::coordinator
