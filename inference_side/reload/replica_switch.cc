#include "inference_side/reload/replica_switch.h"

#include <algorithm>
#include <utility>

#include "inference_side/reload/replica_report.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"

namespace wsync::reload {

using control::RankState;
using control::SwitchOutcome;

namespace {

std::uint32_t as_ms(std::chrono::nanoseconds duration) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

}  // namespace

ReplicaSwitch::ReplicaSwitch(SwitchOptions options)
    : options_(std::move(options)),
      ranks_(options_.world_size),
      candidates_(options_.retry, options_.retry_max) {
  WSYNC_CHECK(options_.world_size >= 1 && options_.world_size <= limits::kReplicaRankCount,
              "a replica has at least one rank and not more than the limit");
}

std::vector<SwitchCommand> ReplicaSwitch::step(const SwitchEvent& event) {
  now_ = event.now;
  out_.clear();
  std::visit([this](const auto& what) { handle(what); }, event.what);
  advance();
  const Result<> holds = invariants();
  WSYNC_CHECK(holds.has_value(), holds.error().message());
  return std::exchange(out_, {});
}

std::optional<TimePoint> ReplicaSwitch::next_wake() const {
  std::optional<TimePoint> wake = deadline_;
  for (const auto& other : {outcome_.deadline(), retry_at_, candidates_.next_wake()})
    if (other && (!wake || *other < *wake)) wake = other;
  return wake;
}

// ---- events ----

void ReplicaSwitch::handle(const RankAttached& event) {
  if (event.rank >= ranks_.size()) {
    ++dropped_;
    return;
  }
  if (ranks_.is_attached(event.rank)) handle(RankDetached{.rank = event.rank});
  ranks_.attach(event);
  // The hello of a leader reports the leader's current state. A retry that waited for the leader's
  // loss is void.
  if (event.leader) confirmed_ = event.state == RankState::kServing;
  candidates_.forget_failures();
  candidates_.set_unfit(event.rank, event.unfit);
  is_given_up_ = false;
  if (phase_ == SwitchPhase::kIdle) retry_at_.reset();
}

void ReplicaSwitch::handle(const RankDetached& event) {
  if (!ranks_.is_attached(event.rank)) {
    ++dropped_;
    return;
  }
  ranks_.detach(event.rank);
  candidates_.forget_rank(event.rank);
  // No engine is left that could be torn or that waits to be resumed. What attaches again is loaded
  // as any engine that starts, and nobody waits for it until a deadline.
  const bool is_gone = ranks_.attached() == 0 && !planted("waits_for_nobody");
  std::string why = fmt::format("rank {} was lost while {}", event.rank, phase_name(phase_));
  if (is_gone && phase_ == SwitchPhase::kGathering)
    why = fmt::format("{}, and then every other one", last_failure_);
  else if (is_gone && ranks_.size() > 1)
    why = fmt::format("every rank was lost while {}", phase_name(phase_));
  switch (phase_) {
    case SwitchPhase::kIdle:
      return;
    case SwitchPhase::kPausing:
    case SwitchPhase::kGathering:
      if (is_gone) give_up(SwitchOutcome::kFailed, why);
      return;
    case SwitchPhase::kLoading:
      out_.push_back(CancelLoad{.request = request_});
      break;
    case SwitchPhase::kCommitting:
    case SwitchPhase::kResuming:
      break;
  }
  if (is_gone)
    give_up(SwitchOutcome::kFailed, why);
  else
    gather(why);
}

void ReplicaSwitch::handle(const RankPaused& event) {
  const bool asked = event.request != 0;
  if (!ranks_.is_attached(event.rank) || (asked && event.request != request_)) {
    ++dropped_;
    return;
  }
  switch (phase_) {
    case SwitchPhase::kPausing:
    case SwitchPhase::kGathering:
      ranks_.set_serving(event.rank, false);
      return;
    case SwitchPhase::kIdle:
      ranks_.set_serving(event.rank, false);
      // The group is broken or is being formed. An immediate RESUME would only be paused again, and
      // the retry would loop.
      if (ranks_.is_leader(event.rank)) confirmed_ = false;
      retry_at_ = now_ + options_.retry;
      return;
    case SwitchPhase::kLoading:
    case SwitchPhase::kCommitting:
    case SwitchPhase::kResuming:
      ++dropped_;
      return;
  }
}

void ReplicaSwitch::handle(const RankLoaded& event) {
  if (!answers(event.rank, event.request, SwitchPhase::kLoading)) return;
  if (!event.failure.empty() || event.version != goal_) {
    const std::string what = event.failure.empty()
                                 ? fmt::format("it loaded version {}", event.version.to_string())
                                 : event.failure;
    const std::string why =
        event.is_of_replica ? what : fmt::format("rank {}: {}", event.rank, what);
    if (event.by_patch)
      patch_failed(why);
    else
      load_failed(why);
    return;
  }
  ranks_.set_answered(event.rank);
  outcome_.add_bytes(event.bytes);
  load_.kind = event.by_patch ? control::LoadKind::kPatch : control::LoadKind::kFull;
  load_.written_bytes += event.written_bytes;
  load_.bytes += event.bytes;
  if (planted("commit_each_when_loaded"))
    out_.push_back(SendCommit{.rank = event.rank, .request = request_, .version = goal_});
}

void ReplicaSwitch::handle(const LoadNotBegun& event) {
  // A lost rank ends the phase. The ranks are therefore the same as at the beginning of the load,
  // and they still hold what they held then.
  if (phase_ != SwitchPhase::kLoading || event.request != request_) {
    ++dropped_;
    return;
  }
  last_failure_ = fmt::format("version {} could not be loaded: {}", goal_.to_string(), event.why);
  ranks_.revert_load();
  candidates_.postpone(goal_, now_);
  rolled_back_ = false;
  outcome_.load_void();
  if (runnable())
    begin_resume();
  else
    give_up(ranks_.any_written() ? SwitchOutcome::kTainted : SwitchOutcome::kFailed, last_failure_);
}

void ReplicaSwitch::handle(const RankCommitted& event) {
  if (!answers(event.rank, event.request, SwitchPhase::kCommitting)) return;
  if (!event.failure.empty() || event.version != goal_) {
    load_failed(
        fmt::format("rank {}: {}", event.rank,
                    event.failure.empty() ? "it committed another version" : event.failure));
    return;
  }
  ranks_.commit(event.rank, goal_);
  if (planted("resume_before_commits"))
    out_.push_back(SendResume{.rank = ranks_.leader(), .request = request_});
}

void ReplicaSwitch::handle(const RankResumed& event) {
  const bool late = phase_ == SwitchPhase::kIdle && !confirmed_;
  if (!ranks_.is_leader(event.rank) || event.request != request_ ||
      (phase_ != SwitchPhase::kResuming && !late)) {
    ++dropped_;
    return;
  }
  ranks_.set_serving(event.rank, true);
  confirmed_ = true;
  if (late) return;
  enter(SwitchPhase::kIdle, std::nullopt);
  if (ranks_.damaged()) return;  // it is loaded again, and then the outcome is known
  if (!needs_load()) {
    last_failure_.clear();
    settle(SwitchOutcome::kCommitted, std::exchange(patch_note_, {}));
  } else if (!outcome_.deferred()) {
    settle(rolled_back_ ? SwitchOutcome::kRolledBack : SwitchOutcome::kBehind,
           candidates_.unfit(target_.target).value_or(last_failure_));
  }
}

// A pause or a resume that the engine has declined is not awaited until its deadline. What follows
// is the same. A failed load or commit has an answer of its own.
void ReplicaSwitch::handle(const RankRefused& event) {
  const bool is_awaited = phase_ == SwitchPhase::kPausing || phase_ == SwitchPhase::kResuming;
  if (!is_awaited || !ranks_.is_leader(event.rank) || event.request != request_) {
    ++dropped_;
    return;
  }
  const std::string why =
      fmt::format("rank {}: {}; it is asked again until it does", event.rank, event.why);
  if (phase_ == SwitchPhase::kPausing)
    pause_failed(why);
  else
    give_up(SwitchOutcome::kFailed, why);
}

// A load, a commit and a resume have deadlines of their own, and a rank may be too busy with them
// to answer. While a rank is lost, its return is awaited in any case.
void ReplicaSwitch::handle(const RankSilent& event) {
  if (!ranks_.is_attached(event.rank)) {
    ++dropped_;
    return;
  }
  ranks_.set_silent(event.rank, event.why);
  if (phase_ == SwitchPhase::kPausing) phase_deadline();
}

void ReplicaSwitch::handle(const RankHeard& event) {
  ranks_.set_heard(event.rank);
  if (phase_ == SwitchPhase::kIdle) retry_at_.reset();
}

// In every phase: a load of all bytes that runs clears it when it commits, and after any other one
// the next load is one of all bytes.
void ReplicaSwitch::handle(const RankDamaged& event) {
  if (!ranks_.is_attached(event.rank)) {
    ++dropped_;
    return;
  }
  ranks_.set_damaged(event.rank, event.why);
  is_given_up_ = !event.is_mendable;
  if (!event.is_copy_suspect || target_.target.none()) return;
  // Until it has been checked, or is another copy.
  if (candidates_.loadable(target_.target)) candidates_.postpone(target_.target, now_);
  out_.push_back(CopySuspect{.version = target_.target});
}

void ReplicaSwitch::handle(const RankUnfit& event) {
  if (!ranks_.is_attached(event.rank)) {
    ++dropped_;
    return;
  }
  candidates_.add_unfit(event.rank, event.unfit);
  if (phase_ == SwitchPhase::kLoading && candidates_.unfit(goal_)) leave_load();
}

void ReplicaSwitch::handle(const TargetSet& event) {
  const bool stale = event.decision <= target_.decision && !target_.target.none();
  if (stale || std::ranges::find(event.withdrawn, event.target) != event.withdrawn.end()) {
    ++dropped_;
    return;
  }
  const Version before = target_.target;
  target_ = event;
  if (before != event.target) is_given_up_ = false;
  retry_at_.reset();
  retried_ = false;
  rolled_back_ = false;
  last_failure_.clear();
  patch_note_.clear();
  candidates_.set_withdrawn(event.withdrawn);
  candidates_.reset(before != event.target);
  const bool stopped = phase_ != SwitchPhase::kIdle && phase_ != SwitchPhase::kResuming;
  has_turn_ = event.in_turns && (has_turn_ || stopped);
  turns_taken_ = 0;
  if (event.owed && event.in_turns && !stopped)
    outcome_.defer();
  else
    outcome_.owe(event.owed ? std::optional(now_ + outcome_time()) : std::nullopt);
  if (!behind_since_ && needs_load() && !event.in_turns) behind_since_ = now_;
  switch (phase_) {
    case SwitchPhase::kIdle:
    case SwitchPhase::kPausing:     // the version to load is chosen when every rank has stopped
    case SwitchPhase::kGathering:   // likewise
    case SwitchPhase::kCommitting:  // all_committed() compares with the new target
      return;
    case SwitchPhase::kResuming:
      if (candidates_.loadable(target_.target) && needs_load() && !event.in_turns) begin_pause();
      return;
    case SwitchPhase::kLoading:
      if (goal_ == target_.target ||
          (!candidates_.loadable(target_.target) && !candidates_.withdrawn(goal_)))
        return;
      leave_load();
      return;
  }
}

void ReplicaSwitch::handle(const TurnGiven& /*event*/) {
  if (turn() != control::ReplicaTurn::kWaiting) {
    ++dropped_;
    return;
  }
  has_turn_ = true;  // advance() begins the pause
  ++turns_taken_;
}

void ReplicaSwitch::handle(const WithdrawnSet& event) {
  candidates_.set_withdrawn(event.versions);
  if (phase_ == SwitchPhase::kLoading && candidates_.withdrawn(goal_)) leave_load();
}

// The version being loaded is no longer wanted.
void ReplicaSwitch::leave_load() {
  out_.push_back(CancelLoad{.request = request_});
  if (candidates_.loadable(target_.target))
    begin_load(target_.target);
  else
    enter(SwitchPhase::kIdle, std::nullopt);
}

void ReplicaSwitch::handle(const StagedSet& event) {
  candidates_.set_staged(event.versions);
  coming_ = event.coming;
  changes_ = event.changes;
}

void ReplicaSwitch::handle(const Tick& /*event*/) {
  if (retry_at_ && now_ >= *retry_at_) retry_at_.reset();
  candidates_.expire(now_);
  if (deadline_ && now_ >= *deadline_) phase_deadline();
  if (outcome_.is_due(now_)) {
    const bool torn = ranks_.complete() && !ranks_.uniform();
    settle(torn ? SwitchOutcome::kTainted : SwitchOutcome::kFailed,
           fmt::format("the switch did not end in time; the replica was {}", phase_name(phase_)));
  }
}

void ReplicaSwitch::phase_deadline() {
  switch (phase_) {
    case SwitchPhase::kIdle:
      deadline_.reset();
      return;
    case SwitchPhase::kPausing:
      pause_failed(ranks_.silent().value_or(
          fmt::format("the replica did not pause within {} ms, and is asked again until it does",
                      as_ms(target_.pause_deadline))));
      return;
    case SwitchPhase::kGathering:
      give_up(ranks_.any_written() ? SwitchOutcome::kTainted : SwitchOutcome::kFailed,
              fmt::format("{}; {}", last_failure_, ranks_.missing()));
      return;
    case SwitchPhase::kLoading:
      if (planted("deadline_resume")) {
        begin_resume();
        return;
      }
      out_.push_back(CancelLoad{.request = request_});
      give_up(SwitchOutcome::kTainted,
              fmt::format("{} did not load within {} ms", ranks_.unanswered(),
                          as_ms(target_.load_deadline)));
      return;
    case SwitchPhase::kCommitting:
      give_up(SwitchOutcome::kTainted, fmt::format("{} did not commit within {} ms",
                                                   ranks_.unanswered(), as_ms(options_.commit)));
      return;
    case SwitchPhase::kResuming:
      give_up(SwitchOutcome::kFailed,
              ranks_.silent().value_or(
                  fmt::format("the leader did not resume within {} ms", as_ms(options_.commit))));
      return;
  }
}

// No byte has changed, so the replica resumes with its version, unless that version must not run
// again.
void ReplicaSwitch::pause_failed(const std::string& why) {
  retried_ = true;
  retry_at_ = now_ + options_.retry;
  last_failure_ = why;
  if (const auto version = ranks_.uniform(); version && !candidates_.withdrawn(*version)) {
    settle(SwitchOutcome::kBehind, last_failure_);
    begin_resume();
  } else {
    give_up(SwitchOutcome::kFailed, ranks_.complete() ? last_failure_ : ranks_.missing());
  }
}

// ---- the steps of a switch ----

void ReplicaSwitch::advance() {
  // Each iteration either changes the phase or ends the loop. The limit is above the number of
  // phases of a switch.
  for (int turn = 0; turn < 8; ++turn) {
    const SwitchPhase before = phase_;
    switch (phase_) {
      case SwitchPhase::kIdle:
        advance_idle();
        break;
      case SwitchPhase::kPausing:
      case SwitchPhase::kGathering:
        if (ranks_.complete() && ranks_.quiesced())
          after_pause();
        else if (ranks_.complete() && phase_ == SwitchPhase::kGathering)
          begin_pause();
        break;
      case SwitchPhase::kLoading:
        if (ranks_.all_answered()) begin_commit();
        break;
      case SwitchPhase::kCommitting:
        if (ranks_.all_answered()) all_committed();
        break;
      case SwitchPhase::kResuming:
        break;
    }
    if (phase_ == before) break;
  }
  if (serving() && !needs_load()) behind_since_.reset();
}

void ReplicaSwitch::advance_idle() {
  // A silent rank would miss every deadline. Nothing is begun that waits for it, and an outcome
  // that is owed does not wait either.
  const std::optional<std::string> silent = ranks_.silent();
  if (silent && needs_load()) last_failure_ = *silent;
  const bool waiting = silent || is_given_up_ || (retry_at_ && now_ < *retry_at_);
  const bool comes = !target_.target.none() && coming_ == target_.target;
  if (ranks_.complete() && !waiting) {
    if (candidates_.loadable(target_.target) && needs_load()) {
      if (!needs_turn()) begin_pause();
      return;
    }
    // The replica is complete, stopped and allowed to run, so it only needs a RESUME.
    if (runnable() && !serving()) {
      outcome_.not_paused(now_);
      begin_resume();
      return;
    }
  }
  if (!owes()) return;
  if (!ranks_.complete()) {
    settle(SwitchOutcome::kFailed, ranks_.missing());
  } else if (!needs_load() && serving()) {
    settle(SwitchOutcome::kCommitted, "");
  } else if (silent || is_given_up_ || (!waiting && !comes)) {
    const auto damaged = ranks_.damaged();
    const auto unfit = candidates_.unfit(target_.target);
    const std::string why =
        damaged ? *damaged
        : unfit ? *unfit
        : last_failure_.empty()
            ? fmt::format("version {} is not staged on this sidecar", target_.target.to_string())
            : last_failure_;
    const bool is_torn = unfit ? ranks_.any_written() : !ranks_.uniform();
    settle(damaged     ? SwitchOutcome::kTainted
           : serving() ? SwitchOutcome::kBehind
           : is_torn   ? SwitchOutcome::kTainted
                       : SwitchOutcome::kFailed,
           why);
  }
}

void ReplicaSwitch::begin_pause() {
  ++request_;
  outcome_.pause_sent(now_);
  if (ranks_.leader_serves()) ranks_.assume_serving();
  enter(SwitchPhase::kPausing, target_.pause_deadline);
  if (!ranks_.quiesced())
    out_.push_back(SendPause{.rank = ranks_.leader(),
                             .request = request_,
                             .mode = retried_ ? options_.fallback_mode : target_.mode,
                             .deadline_ms = as_ms(target_.pause_deadline),
                             .version = target_.target,
                             .caches = target_.caches,
                             .base = held_by_all()});
}

// What every rank holds, completely and committed. 0.0: at least one rank has anything else.
Version ReplicaSwitch::held_by_all() const {
  return ranks_.damaged() ? Version{} : ranks_.uniform().value_or(Version{});
}

void ReplicaSwitch::after_pause() {
  outcome_.paused(now_);
  if (candidates_.loadable(target_.target) && needs_load()) {
    begin_load(target_.target);
  } else if (runnable()) {
    begin_resume();
  } else {
    enter(SwitchPhase::kIdle, std::nullopt);
  }
}

void ReplicaSwitch::begin_load(const Version& version) {
  if (const std::optional<Version> whole = ranks_.uniform()) previous_ = *whole;
  const Version base = held_by_all();
  load_ = {};
  candidates_.begin(version);
  goal_ = version;
  rolled_back_ = version != target_.target;
  outcome_.load_sent(now_);
  ++request_;
  ranks_.begin_load();
  enter(SwitchPhase::kLoading, target_.load_deadline);
  out_.push_back(BeginLoad{.request = request_,
                           .version = goal_,
                           .deadline_ms = as_ms(target_.load_deadline),
                           .base = base});
}

// A patch could not be written, or the ranks do not hold what it leads to. That says nothing of the
// version itself. After it no rank holds a base, so the next load is one of all bytes.
void ReplicaSwitch::patch_failed(const std::string& why) {
  patch_note_ = fmt::format("its patch to {} did not fit, so all bytes were loaded: {}",
                            goal_.to_string(), why);
  out_.push_back(CancelLoad{.request = request_});
  // The copy may have been released meanwhile.
  const Version again = candidates_.loadable(target_.target) ? target_.target : goal_;
  if (candidates_.loadable(again))
    begin_load(again);
  else
    load_failed(why);
}

// A rank could not load or commit. The version is tried a second time. Then the previous version is
// loaded, and this one is tried again later, because a failure does not prove that its copy is bad.
void ReplicaSwitch::load_failed(const std::string& why) {
  last_failure_ =
      fmt::format("version {} could not be loaded and committed: {}", goal_.to_string(), why);
  if (phase_ == SwitchPhase::kLoading) out_.push_back(CancelLoad{.request = request_});
  const Version again = candidates_.loadable(target_.target) ? target_.target : goal_;
  // The copy may have been released meanwhile.
  if (candidates_.count_failure() && candidates_.loadable(again)) {
    begin_load(again);
    return;
  }
  candidates_.postpone(goal_, now_);
  out_.push_back(CopySuspect{.version = goal_});
  const bool comes = coming_ == target_.target && may_come(target_.target);
  if (goal_ != target_.target && (candidates_.loadable(target_.target) || comes)) {
    begin_load(target_.target);
  } else if (candidates_.loadable(previous_) || leads_back(previous_)) {
    begin_load(previous_);
  } else {
    give_up(SwitchOutcome::kTainted, last_failure_);
  }
}

// Whether a version that is not complete is worth waiting for.
bool ReplicaSwitch::may_come(const Version& version) const {
  return !candidates_.withdrawn(version) && !candidates_.unfit(version) &&
         !candidates_.postponed(version);
}

// Whether the version before can be loaded once it is complete again.
bool ReplicaSwitch::leads_back(const Version& version) const {
  return std::ranges::find(changes_, version) != changes_.end() && may_come(version);
}

void ReplicaSwitch::begin_commit() {
  outcome_.loaded(now_);
  ranks_.expect_answers();
  enter(SwitchPhase::kCommitting, options_.commit);
  if (!planted("commit_each_when_loaded")) ++request_;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    out_.push_back(SendCommit{.rank = rank, .request = request_, .version = goal_});
}

void ReplicaSwitch::all_committed() {
  last_load_ = load_;
  if (load_.kind != control::LoadKind::kPatch) ranks_.set_mended();
  candidates_.succeed(goal_ == target_.target);
  if (needs_load() && candidates_.loadable(target_.target)) {
    begin_load(target_.target);
  } else if (candidates_.withdrawn(goal_)) {
    last_failure_ = fmt::format("version {} was withdrawn", goal_.to_string());
    enter(SwitchPhase::kIdle, std::nullopt);
  } else {
    begin_resume();
  }
}

void ReplicaSwitch::begin_resume() {
  ++request_;
  confirmed_ = false;
  const std::uint32_t to = ranks_.leader();
  ranks_.set_serving(to, true);  // it may be inside a step from now on
  enter(SwitchPhase::kResuming, options_.commit);
  outcome_.resumed(now_);  // the reported pause ends here; Done is sent after the leader's answer
  out_.push_back(SendResume{.rank = to, .request = request_});
}

void ReplicaSwitch::gather(const std::string& why) {
  last_failure_ = why;
  enter(SwitchPhase::kGathering, options_.rank_return);
}

void ReplicaSwitch::give_up(SwitchOutcome outcome, const std::string& why) {
  last_failure_ = why;
  enter(SwitchPhase::kIdle, std::nullopt);
  retry_at_ = now_ + options_.retry;
  settle(outcome, why);
}

void ReplicaSwitch::settle(SwitchOutcome outcome, const std::string& reason) {
  auto done = outcome_.settle(target_.decision, outcome, reason);
  if (!done) return;
  if (!behind_since_ && needs_load()) behind_since_ = now_;
  done->outcome.replica = options_.replica;
  done->outcome.version = ranks_.uniform().value_or(Version{});
  out_.emplace_back(std::move(*done));
}

void ReplicaSwitch::enter(SwitchPhase phase, std::optional<std::chrono::nanoseconds> deadline) {
  WSYNC_CHECK(is_legal(phase_, phase),
              fmt::format("replica '{}' cannot go from {} to {}", options_.replica,
                          phase_name(phase_), phase_name(phase)));
  phase_ = phase;
  deadline_.reset();
  if (deadline) deadline_ = now_ + *deadline;
  if (phase == SwitchPhase::kIdle) has_turn_ = false;
  if (phase == SwitchPhase::kPausing || phase == SwitchPhase::kLoading) {
    outcome_.begin(now_ + outcome_time());
    if (!behind_since_ && needs_load()) behind_since_ = now_;
  }
  if (phase != SwitchPhase::kLoading && phase != SwitchPhase::kCommitting) goal_ = {};
}

// ---- state and reports ----

bool ReplicaSwitch::answers(std::uint32_t rank, std::uint64_t request, SwitchPhase phase) {
  const bool expected = ranks_.awaits(rank) && request == request_ && phase_ == phase;
  if (!expected) ++dropped_;
  return expected;
}

bool ReplicaSwitch::serving() const {
  return phase_ == SwitchPhase::kIdle && ranks_.uniform().has_value() && ranks_.leader_serves() &&
         confirmed_;
}

bool ReplicaSwitch::runnable() const {
  const std::optional<Version> version = ranks_.uniform();
  return version && !version->none() && !candidates_.withdrawn(*version) && !ranks_.damaged();
}

// A replica that has stopped, or whose version must not run, loses nothing by its switch.
bool ReplicaSwitch::needs_turn() const {
  return target_.in_turns && !has_turn_ && ranks_.leader_serves() && confirmed_ && runnable();
}

control::ReplicaTurn ReplicaSwitch::turn() const {
  if (has_turn_) return control::ReplicaTurn::kHeld;
  const bool may_begin = phase_ == SwitchPhase::kIdle && ranks_.complete() && !ranks_.silent() &&
                         !(retry_at_ && now_ < *retry_at_) &&
                         candidates_.loadable(target_.target) && needs_load();
  return may_begin && needs_turn() ? control::ReplicaTurn::kWaiting : control::ReplicaTurn::kNone;
}

bool ReplicaSwitch::needs(const Version& version) const {
  if (phase_ == SwitchPhase::kIdle || version.none()) return false;
  return version == goal_ || version == target_.target || version == previous_ ||
         ranks_.uniform() == version;
}

control::ReplicaReport ReplicaSwitch::report(TimePoint now) const {
  // What a damaged rank holds is no version.
  const auto damaged = ranks_.damaged();
  const std::optional<Version> version = damaged ? std::nullopt : ranks_.uniform();
  control::ReplicaReport out;
  out.replica = options_.replica;
  out.world_size = options_.world_size;
  out.ranks_attached = attached();
  out.version = version.value_or(Version{});
  const bool loads = phase_ == SwitchPhase::kLoading || phase_ == SwitchPhase::kCommitting;
  out.loaded_bytes = loads ? outcome_.bytes() : 0;
  out.paused_ns = outcome_.last_paused_ns();
  out.turn = turn();
  out.last_load = last_load_.kind;
  out.last_written_bytes = last_load_.written_bytes;
  out.last_load_bytes = last_load_.bytes;
  ReplicaFacts facts{.phase = phase_,
                     .missing = {},
                     .version = version,
                     .written = ranks_.any_written() || damaged,
                     .quiesced = ranks_.quiesced(),
                     .serving = serving(),
                     .version_withdrawn = version && candidates_.withdrawn(*version),
                     .stale = behind_since_ && options_.max_staleness.count() > 0 &&
                              now - *behind_since_ > options_.max_staleness,
                     .target = target_.target,
                     .last_failure = damaged.value_or(last_failure_)};
  if (!ranks_.complete()) facts.missing = ranks_.missing();
  report_state(facts, out);
  if (out.turn == control::ReplicaTurn::kWaiting)
    out.reason = fmt::format("it serves {} and is waiting for its turn to switch to {}{}",
                             out.version.to_string(), target_.target.to_string(),
                             last_failure_.empty() ? "" : " again: " + last_failure_);
  const bool is_waiting = phase_ == SwitchPhase::kIdle && ranks_.complete() && !damaged;
  if (const auto unfit = candidates_.unfit(target_.target);
      unfit && is_waiting && version != target_.target) {
    out.ready = false;
    out.reason = *unfit;
  }
  if (const auto silent = ranks_.silent(); silent && ranks_.complete()) {
    out.ready = false;
    out.reason = *silent;
  }
  return out;
}

Result<> ReplicaSwitch::invariants() const {
  const auto broken = [](const char* rule) { return fail(ErrorCode::kInternal, rule); };
  const bool writing = phase_ == SwitchPhase::kLoading || phase_ == SwitchPhase::kCommitting;
  if (writing && !ranks_.complete()) return broken("a load continues without one of its ranks");
  if (writing && !ranks_.quiesced())
    return broken("a load continues while a rank may be inside a step");
  if (writing && goal_.none()) return broken("a load continues without a version");
  if (!writing && !goal_.none()) return broken("a version is in flight outside a load");
  if (phase_ == SwitchPhase::kLoading && candidates_.withdrawn(goal_))
    return broken("a withdrawn version is loaded");
  if (phase_ == SwitchPhase::kLoading && candidates_.unfit(goal_))
    return broken("a version is loaded that does not fit a rank");
  if ((phase_ == SwitchPhase::kIdle) == deadline_.has_value())
    return broken("every phase but idle has a deadline, and idle has none");
  if (phase_ == SwitchPhase::kResuming && !ranks_.uniform() && !planted("deadline_resume"))
    return broken("a replica is resumed whose ranks hold different bytes");
  if (phase_ == SwitchPhase::kIdle && has_turn_) return broken("a turn is held without a switch");
  if (ranks_.attached() == 0 && (phase_ != SwitchPhase::kIdle || owes()) &&
      !planted("waits_for_nobody"))
    return broken("a switch continues, or an outcome is owed, without any rank");
  WSYNC_TRY(outcome_.invariants());
  WSYNC_TRY(candidates_.invariants());
  return ranks_.invariants();
}

}  // namespace wsync::reload
