#include "inference_side/reload/replica_switch.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"

namespace wsync::reload {

using control::Decision;
using control::RankState;
using control::SwitchOutcome;

namespace {

std::uint32_t as_ms(std::chrono::nanoseconds duration) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

std::uint64_t between(std::optional<TimePoint> from, std::optional<TimePoint> to) {
  if (!from || !to || *to < *from) return 0;
  return static_cast<std::uint64_t>((*to - *from).count());
}

}  // namespace

ReplicaSwitch::ReplicaSwitch(SwitchOptions options)
    : options_(std::move(options)), ranks_(options_.world_size), load_retry_(options_.retry) {
  WSYNC_CHECK(options_.world_size >= 1 && options_.world_size <= limits::kReplicaRankCount,
              "a replica has at least one rank and not more than the limit");
}

std::vector<SwitchCommand> ReplicaSwitch::step(const SwitchEvent& event) {
  now_ = event.now;
  out_.clear();
  std::visit([this](const auto& what) { on(what); }, event.what);
  advance();
  const std::string broken = invariants();
  WSYNC_CHECK(broken.empty(), broken);
  return std::exchange(out_, {});
}

std::optional<TimePoint> ReplicaSwitch::next_wake() const {
  std::optional<TimePoint> wake = deadline_;
  for (const auto& other : {owed_deadline_, retry_at_})
    if (other && (!wake || *other < *wake)) wake = other;
  for (const Failed& failed : failed_)
    if (!wake || failed.until < *wake) wake = failed.until;
  return wake;
}

// ---- events ----

void ReplicaSwitch::on(const RankAttached& event) {
  if (event.rank >= ranks_.size()) {
    ++dropped_;
    return;
  }
  if (ranks_[event.rank].attached) on(RankDetached{.rank = event.rank});
  Rank& rank = ranks_[event.rank];
  rank = Rank{.attached = true, .leader = event.leader, .version = event.active};
  rank.serving = event.state == RankState::kServing;
  rank.whole = rank.serving || (event.state == RankState::kPaused && !event.active.none());
  rank.written = event.state == RankState::kTainted || event.state == RankState::kLoaded;
  if (!rank.whole) rank.version = {};
  // What a leader says of itself is a confirmation; a retry that waited for its loss is void.
  if (rank.leader) confirmed_ = rank.serving;
  failed_.clear();  // another process may be able to load it
  if (phase_ == SwitchPhase::kIdle) retry_at_.reset();
}

void ReplicaSwitch::on(const RankDetached& event) {
  if (event.rank >= ranks_.size() || !ranks_[event.rank].attached) {
    ++dropped_;
    return;
  }
  ranks_[event.rank] = Rank{};
  const std::string why = fmt::format("rank {} was lost while {}", event.rank, phase_name(phase_));
  switch (phase_) {
    case SwitchPhase::kIdle:
    case SwitchPhase::kPausing:
    case SwitchPhase::kGathering:
      return;
    case SwitchPhase::kLoading:
      out_.push_back(CancelLoad{.request = request_});
      gather(why);
      return;
    case SwitchPhase::kCommitting:
    case SwitchPhase::kResuming:
      gather(why);
      return;
  }
}

void ReplicaSwitch::on(const RankPaused& event) {
  const bool asked = event.request != 0;
  if (event.rank >= ranks_.size() || !ranks_[event.rank].attached ||
      (asked && event.request != request_)) {
    ++dropped_;
    return;
  }
  Rank& rank = ranks_[event.rank];
  switch (phase_) {
    case SwitchPhase::kPausing:
    case SwitchPhase::kGathering:
      rank.serving = false;
      return;
    case SwitchPhase::kIdle:
      rank.serving = false;
      // Its group is broken or is being formed: asking it to go on at once would turn in a circle.
      if (rank.leader) confirmed_ = false;
      retry_at_ = now_ + options_.retry;
      return;
    case SwitchPhase::kLoading:
    case SwitchPhase::kCommitting:
    case SwitchPhase::kResuming:
      ++dropped_;
      return;
  }
}

void ReplicaSwitch::on(const RankLoaded& event) {
  if (!answers(event.rank, event.request, SwitchPhase::kLoading)) return;
  if (!event.failure.empty() || event.version != goal_) {
    const std::string why = event.failure.empty()
                                ? fmt::format("it loaded version {}", event.version.to_string())
                                : event.failure;
    load_failed(event.rank, why);
    return;
  }
  ranks_[event.rank].answered = true;
  bytes_ += event.bytes;
  if (planted("commit_each_when_loaded"))
    out_.push_back(SendCommit{.rank = event.rank, .request = request_, .version = goal_});
}

void ReplicaSwitch::on(const LoadNotBegun& event) {
  // A rank that is lost ends the phase, so the ranks are the ones that they were when it began.
  if (phase_ != SwitchPhase::kLoading || event.request != request_) {
    ++dropped_;
    return;
  }
  last_failure_ = fmt::format("version {} could not be loaded: {}", goal_.to_string(), event.why);
  ranks_ = before_load_;
  failures_ = 0;
  failed_.push_back({.version = goal_, .until = now_ + load_retry_});
  load_retry_ = std::min(2 * load_retry_, options_.retry_max);
  rolled_back_ = false;
  load_sent_.reset();
  const std::optional<Version> version = uniform();
  if (version && !version->none() && !withdrawn(*version))
    begin_resume();
  else
    give_up(std::ranges::any_of(ranks_, &Rank::written) ? SwitchOutcome::kTainted
                                                        : SwitchOutcome::kFailed,
            last_failure_);
}

void ReplicaSwitch::on(const RankCommitted& event) {
  if (!answers(event.rank, event.request, SwitchPhase::kCommitting)) return;
  if (!event.failure.empty() || event.version != goal_) {
    load_failed(event.rank, event.failure.empty() ? "it committed another version" : event.failure);
    return;
  }
  Rank& rank = ranks_[event.rank];
  rank.answered = true;
  rank.whole = true;
  rank.written = false;
  rank.version = goal_;
  if (planted("resume_before_commits"))
    out_.push_back(SendResume{.rank = leader(), .request = request_});
}

void ReplicaSwitch::on(const RankResumed& event) {
  const bool late = phase_ == SwitchPhase::kIdle && !confirmed_;
  if (event.rank >= ranks_.size() || !ranks_[event.rank].leader || event.request != request_ ||
      (phase_ != SwitchPhase::kResuming && !late)) {
    ++dropped_;
    return;
  }
  ranks_[event.rank].serving = true;
  confirmed_ = true;
  if (late) return;
  enter(SwitchPhase::kIdle, std::nullopt);
  const std::optional<Version> version = uniform();
  if (version == target_.target)
    settle(SwitchOutcome::kCommitted, "");
  else
    settle(rolled_back_ ? SwitchOutcome::kRolledBack : SwitchOutcome::kBehind, last_failure_);
}

void ReplicaSwitch::on(const TargetSet& event) {
  const bool stale = event.decision <= target_.decision && !target_.target.none();
  if (stale || std::ranges::find(event.withdrawn, event.target) != event.withdrawn.end()) {
    ++dropped_;
    return;
  }
  const Version before = target_.target;
  target_ = event;
  retry_at_.reset();
  retried_ = false;
  rolled_back_ = false;
  failed_.clear();
  last_failure_.clear();
  if (before != event.target) {
    failures_ = 0;
    load_retry_ = options_.retry;
  }
  owed_ = event.owed;
  owed_deadline_.reset();
  if (owed_) owed_deadline_ = now_ + event.pause_deadline + event.load_deadline + options_.commit;
  if (!behind_since_ && uniform() != target_.target) behind_since_ = now_;
  switch (phase_) {
    case SwitchPhase::kIdle:
    case SwitchPhase::kPausing:     // what is loaded is chosen when every rank has stopped
    case SwitchPhase::kGathering:   // the same
    case SwitchPhase::kCommitting:  // looked at again when every rank has answered
      return;
    case SwitchPhase::kResuming:
      if (loadable(target_.target) && needs_load()) begin_pause();
      return;
    case SwitchPhase::kLoading:
      if (goal_ == target_.target || (!loadable(target_.target) && !withdrawn(goal_))) return;
      leave_load();
      return;
  }
}

void ReplicaSwitch::on(const WithdrawnSet& event) {
  target_.withdrawn = event.versions;
  if (phase_ == SwitchPhase::kLoading && withdrawn(goal_)) leave_load();
}

// What is being loaded is not wanted any more.
void ReplicaSwitch::leave_load() {
  out_.push_back(CancelLoad{.request = request_});
  if (loadable(target_.target))
    begin_load(target_.target);
  else
    enter(SwitchPhase::kIdle, std::nullopt);
}

void ReplicaSwitch::on(const StagedSet& event) {
  // A copy that leaves the set, or was not in it when it failed, is another one when it is there
  // again.
  const auto in = [](const std::vector<Version>& set, const Version& version) {
    return std::ranges::find(set, version) != set.end();
  };
  std::erase_if(failed_, [&](const Failed& failed) {
    return !in(event.versions, failed.version) || !in(staged_, failed.version);
  });
  staged_ = event.versions;
}

void ReplicaSwitch::on(const Tick& /*event*/) {
  if (retry_at_ && now_ >= *retry_at_) retry_at_.reset();
  std::erase_if(failed_, [this](const Failed& failed) { return now_ >= failed.until; });
  if (deadline_ && now_ >= *deadline_) phase_deadline();
  if (owed_ && owed_deadline_ && now_ >= *owed_deadline_) {
    const bool torn = complete() && !uniform();
    settle(torn ? SwitchOutcome::kTainted : SwitchOutcome::kFailed,
           fmt::format("the switch did not end in time; it was {}", phase_name(phase_)));
  }
}

void ReplicaSwitch::phase_deadline() {
  const std::optional<Version> version = uniform();
  switch (phase_) {
    case SwitchPhase::kIdle:
      deadline_.reset();
      return;
    case SwitchPhase::kPausing:
      retried_ = true;
      retry_at_ = now_ + options_.retry;
      last_failure_ = fmt::format("it did not pause within {} ms", as_ms(target_.pause_deadline));
      // Untouched: it goes on with what it has, unless that must not run again.
      if (version && !withdrawn(*version)) {
        settle(SwitchOutcome::kBehind, last_failure_);
        begin_resume();
      } else {
        give_up(SwitchOutcome::kFailed, complete() ? last_failure_ : missing());
      }
      return;
    case SwitchPhase::kGathering:
      give_up(std::ranges::any_of(ranks_, &Rank::written) ? SwitchOutcome::kTainted
                                                          : SwitchOutcome::kFailed,
              fmt::format("{}; {}", last_failure_, missing()));
      return;
    case SwitchPhase::kLoading:
      if (planted("deadline_resume")) {
        begin_resume();
        return;
      }
      out_.push_back(CancelLoad{.request = request_});
      give_up(SwitchOutcome::kTainted,
              fmt::format("a rank did not load within {} ms", as_ms(target_.load_deadline)));
      return;
    case SwitchPhase::kCommitting:
      give_up(SwitchOutcome::kTainted,
              fmt::format("a rank did not commit within {} ms", as_ms(options_.commit)));
      return;
    case SwitchPhase::kResuming:
      give_up(SwitchOutcome::kFailed,
              fmt::format("the leader did not resume within {} ms", as_ms(options_.commit)));
      return;
  }
}

// ---- the way through a switch ----

void ReplicaSwitch::advance() {
  // Each turn either changes the phase or ends; a switch has few phases.
  for (int turn = 0; turn < 8; ++turn) {
    const SwitchPhase before = phase_;
    switch (phase_) {
      case SwitchPhase::kIdle:
        advance_idle();
        break;
      case SwitchPhase::kPausing:
      case SwitchPhase::kGathering:
        if (complete() && quiesced())
          after_pause();
        else if (complete() && phase_ == SwitchPhase::kGathering)
          begin_pause();
        break;
      case SwitchPhase::kLoading:
        if (all_answered()) begin_commit();
        break;
      case SwitchPhase::kCommitting:
        if (all_answered()) all_committed();
        break;
      case SwitchPhase::kResuming:
        break;
    }
    if (phase_ == before) break;
  }
  if (serving() && uniform() == target_.target) behind_since_.reset();
}

void ReplicaSwitch::advance_idle() {
  const std::optional<Version> version = uniform();
  const bool waiting = retry_at_ && now_ < *retry_at_;
  if (complete() && !waiting) {
    if (loadable(target_.target) && needs_load()) {
      begin_pause();
      return;
    }
    // Whole, stopped, and allowed to run: nothing but a RESUME is missing.
    if (version && !version->none() && !withdrawn(*version) && !serving()) {
      pause_sent_ = paused_ = now_;
      load_sent_.reset();
      bytes_ = 0;
      begin_resume();
      return;
    }
  }
  if (!owed_) return;
  if (!complete()) {
    settle(SwitchOutcome::kFailed, missing());
  } else if (version == target_.target && serving()) {
    settle(SwitchOutcome::kCommitted, "");
  } else if (!waiting) {
    const std::string why = last_failure_.empty() ? fmt::format("version {} is not staged here",
                                                                target_.target.to_string())
                                                  : last_failure_;
    settle(serving()  ? SwitchOutcome::kBehind
           : !version ? SwitchOutcome::kTainted
                      : SwitchOutcome::kFailed,
           why);
  }
}

void ReplicaSwitch::begin_pause() {
  ++request_;
  pause_sent_ = now_;
  paused_.reset();
  load_sent_.reset();
  loaded_.reset();
  bytes_ = 0;
  // While the leader serves, a follower may be inside a step whatever it said last.
  if (ranks_[leader()].serving)
    for (Rank& rank : ranks_) rank.serving = rank.attached && rank.whole;
  enter(SwitchPhase::kPausing, target_.pause_deadline);
  if (!quiesced())
    out_.push_back(SendPause{.rank = leader(),
                             .request = request_,
                             .mode = retried_ ? options_.fallback_mode : target_.mode,
                             .deadline_ms = as_ms(target_.pause_deadline)});
}

void ReplicaSwitch::after_pause() {
  if (!paused_) paused_ = now_;
  const std::optional<Version> version = uniform();
  if (loadable(target_.target) && needs_load()) {
    begin_load(target_.target);
  } else if (version && !version->none() && !withdrawn(*version)) {
    begin_resume();
  } else {
    enter(SwitchPhase::kIdle, std::nullopt);
  }
}

void ReplicaSwitch::begin_load(const Version& version) {
  if (const std::optional<Version> whole = uniform()) previous_ = *whole;
  if (version != attempted_) failures_ = 0;
  attempted_ = version;
  goal_ = version;
  rolled_back_ = version != target_.target;
  bytes_ = 0;
  load_sent_ = now_;
  loaded_.reset();
  ++request_;
  before_load_ = ranks_;
  for (Rank& rank : ranks_) {
    rank.answered = false;
    rank.whole = false;  // tainted before the first byte changes
    rank.written = true;
    rank.version = {};
  }
  enter(SwitchPhase::kLoading, target_.load_deadline);
  out_.push_back(BeginLoad{
      .request = request_, .version = goal_, .deadline_ms = as_ms(target_.load_deadline)});
}

// A rank that could not load or commit. The version gets a second chance, then the previous one is
// loaded, and this one again later: nothing says that it is the copy's fault.
void ReplicaSwitch::load_failed(std::uint32_t rank, const std::string& why) {
  last_failure_ =
      fmt::format("rank {} could not take version {}: {}", rank, goal_.to_string(), why);
  if (phase_ == SwitchPhase::kLoading) out_.push_back(CancelLoad{.request = request_});
  ++failures_;
  const Version again = loadable(target_.target) ? target_.target : goal_;
  if (failures_ < 2 && loadable(again)) {  // it may have been let go in the meantime
    begin_load(again);
    return;
  }
  failures_ = 0;
  failed_.push_back({.version = goal_, .until = now_ + load_retry_});
  load_retry_ = std::min(2 * load_retry_, options_.retry_max);
  out_.push_back(CopySuspect{.version = goal_});
  if (goal_ != target_.target && loadable(target_.target)) {
    begin_load(target_.target);
  } else if (loadable(previous_)) {
    begin_load(previous_);
  } else {
    give_up(SwitchOutcome::kTainted, last_failure_);
  }
}

void ReplicaSwitch::begin_commit() {
  loaded_ = now_;
  for (Rank& rank : ranks_) rank.answered = false;
  enter(SwitchPhase::kCommitting, options_.commit);
  if (!planted("commit_each_when_loaded")) ++request_;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    out_.push_back(SendCommit{.rank = rank, .request = request_, .version = goal_});
}

void ReplicaSwitch::all_committed() {
  failures_ = 0;
  if (goal_ == target_.target) load_retry_ = options_.retry;
  if (goal_ != target_.target && loadable(target_.target)) {
    begin_load(target_.target);
  } else if (withdrawn(goal_)) {
    last_failure_ = fmt::format("version {} was withdrawn", goal_.to_string());
    enter(SwitchPhase::kIdle, std::nullopt);
  } else {
    begin_resume();
  }
}

void ReplicaSwitch::begin_resume() {
  ++request_;
  confirmed_ = false;
  const std::uint32_t to = leader();
  ranks_[to].serving = true;  // from now on it may be
  enter(SwitchPhase::kResuming, options_.commit);
  resumed_ = now_;  // the pause ends here for what is reported; Done follows the leader's answer
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
  if (!owed_) return;
  owed_ = false;
  owed_deadline_.reset();
  const bool committed = outcome == SwitchOutcome::kCommitted;
  Done done{.decision = target_.decision};
  done.outcome.replica = options_.replica;
  done.outcome.outcome = outcome;
  done.outcome.version = uniform().value_or(Version{});
  done.outcome.reason = reason;
  done.outcome.wait_ns = between(pause_sent_, paused_);
  if (committed || outcome == SwitchOutcome::kRolledBack)
    last_paused_ns_ = done.outcome.paused_ns = between(paused_, resumed_);
  done.outcome.load_ns = between(load_sent_, loaded_);
  done.outcome.bytes = bytes_;
  out_.push_back(std::move(done));
}

void ReplicaSwitch::enter(SwitchPhase phase, std::optional<std::chrono::nanoseconds> deadline) {
  phase_ = phase;
  deadline_.reset();
  if (deadline) deadline_ = now_ + *deadline;
  if (phase != SwitchPhase::kLoading && phase != SwitchPhase::kCommitting) goal_ = {};
}

}  // namespace wsync::reload
