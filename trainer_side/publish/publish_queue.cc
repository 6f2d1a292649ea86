#include "trainer_side/publish/publish_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/version_names.h"

namespace wsync::publish {
namespace {

// A publish that waits longer than this is reported. Starting a fleet takes less.
constexpr std::chrono::seconds kReportWaitAfter{2};

}  // namespace

// ---- states ----

Result<PublishQueue::Jobs::iterator> PublishQueue::find(std::uint64_t request) {
  const auto job = jobs_.find(request);
  if (job == jobs_.end())
    return fail(ErrorCode::kInternal, fmt::format("publish {} is not running", request));
  return job;
}

PublishQueue::Jobs::iterator PublishQueue::first_queued() {
  return std::ranges::find(jobs_, JobState::kQueued,
                           [](const auto& entry) { return entry.second.state; });
}

Result<> PublishQueue::move(Jobs::iterator job, JobState to) {
  const JobState from = job->second.state;
  if (!is_legal(from, to))
    return fail(ErrorCode::kInternal, fmt::format("publish {} cannot go from {} to {}", job->first,
                                                  job_state_name(from), job_state_name(to)));
  job->second.state = to;
  return {};
}

// Fails a publish that the coordinator has not received.
Result<> PublishQueue::fail_job(Jobs::iterator job, const Error& why, Commands& out) {
  const JobState end =
      why.code() == ErrorCode::kCancelled ? JobState::kCancelled : JobState::kFailed;
  WSYNC_TRY(move(job, end));
  EndPublish ended{.request = job->first, .end = end, .error = why, .reply = {}};
  ended.reply.reason = why.message();
  out.emplace_back(std::move(ended));
  jobs_.erase(job);
  return {};
}

// ---- before the snapshot begins ----

Result<> PublishQueue::publish(std::uint64_t request, std::uint64_t step, TimePoint now,
                               bool is_kept) {
  if (!jobs_.empty() && request <= jobs_.rbegin()->first)
    return fail(ErrorCode::kInternal,
                fmt::format("publish {} comes after publish {}", request, jobs_.rbegin()->first));
  jobs_[request] = {.step = step, .begun = now, .deadline = now + deadline_, .is_kept = is_kept};
  return {};
}

Result<PublishQueue::Commands> PublishQueue::advance(TimePoint now) {
  Commands out;
  WSYNC_TRY(release_held(now, out));
  if (const auto request = snapshotting(); request && !planted("one_stream_only"))
    WSYNC_TRY(begin_stream(jobs_.find(*request), out));
  while (!snapshotting()) {
    const auto job = first_queued();
    if (job == jobs_.end() || !WSYNC_TRY(begin_snapshot(job, now, out))) break;
  }
  return out;
}

Result<bool> PublishQueue::begin_snapshot(Jobs::iterator job, TimePoint now, Commands& out) {
  const auto refuse = [&](const Error& why) -> Result<bool> {
    WSYNC_TRY(fail_job(job, why, out));
    return true;
  };
  if (const auto stopped = facts_.why_stopped()) return refuse(*stopped);
  const auto reason = facts_.why_not_ready();
  if (reason && !job->second.is_kept) return wait_queued(job, *reason, now, out);
  if (now >= job->second.deadline)
    return refuse(
        Error(ErrorCode::kDeadline,
              "its deadline (deadlines.publish) passed while the previous snapshot was taken"));
  // Without a fence the version is named later. With one, a step that cannot be used is refused
  // before anything is copied.
  Version version{.epoch = 0, .step = job->second.step};
  if (!reason) {
    const Result<Version> named = name_version(job->second.step);
    if (!named) return refuse(named.error());
    version = *named;
  }
  WSYNC_TRY(move(job, JobState::kSnapshotting));
  job->second.version = version;
  named_ = std::max(named_, version);
  if (job->second.step == 0 && version.epoch != 0) taken_ = version;
  out.emplace_back(
      BeginSnapshot{.request = job->first, .version = version, .deadline = job->second.deadline});
  return true;
}

Result<bool> PublishQueue::wait_queued(Jobs::iterator job, const std::string& reason, TimePoint now,
                                       Commands& out) {
  const std::int64_t seconds = deadline_.count() / 1000;
  if (now >= job->second.deadline) {
    WSYNC_TRY(fail_job(
        job,
        Error(ErrorCode::kDeadline,
              fmt::format("the publish waited {} s (deadlines.publish): {}", seconds, reason)),
        out));
    return true;
  }
  if (now >= job->second.begun + kReportWaitAfter &&
      !std::exchange(job->second.wait_reported, true))
    out.emplace_back(ReportWait{fmt::format(
        "a publish is waiting, at most {} s (deadlines.publish): {}", seconds, reason)});
  return false;
}

PublishQueue::Jobs::iterator PublishQueue::held() {
  return std::ranges::find(jobs_, JobState::kHeld,
                           [](const auto& entry) { return entry.second.state; });
}

std::optional<std::string> PublishQueue::why_held(const Job& job) const {
  if (!job.is_kept) return std::nullopt;  // its round says what is missing
  auto reason = facts_.why_not_ready();
  return reason ? std::move(reason) : facts_.why_too_few_engines();
}

void PublishQueue::hold(Jobs::iterator job, std::string why, Commands& out) {
  if (job->second.why == why) return;
  job->second.why = why;
  out.emplace_back(HoldSnapshot{.request = job->first, .why = std::move(why)});
}

Result<> PublishQueue::release_held(TimePoint now, Commands& out) {
  const auto job = held();
  if (job == jobs_.end()) return {};
  if (const auto stopped = facts_.why_stopped()) return fail_job(job, *stopped, out);
  const auto reason = why_held(job->second);
  if (!reason) {
    job->second.deadline = now + deadline_;  // its round has all of its time from now on
    return request_round(job, out);
  }
  hold(job, *reason, out);
  if (now >= job->second.begun + kReportWaitAfter &&
      !std::exchange(job->second.wait_reported, true))
    out.emplace_back(ReportWait{
        fmt::format("the newest version is kept until it can be published: {}", *reason)});
  return {};
}

Result<> PublishQueue::request_round(Jobs::iterator job, Commands& out) {
  // It keeps the name that it got when its snapshot began, unless another epoch has been claimed.
  const Result<Version> next = facts_.next_version(0);
  const bool is_current = next && next->epoch == job->second.version.epoch;
  // Processes may still read its snapshot under the old name.
  if (!is_current && job->second.had_round)
    return fail_job(
        job,
        Error(ErrorCode::kPeerLost,
              fmt::format(
                  "the round of {} has lost every sidecar, and another epoch has been claimed "
                  "since: publish again",
                  job->second.version.to_string())),
        out);
  const Result<Version> version =
      is_current ? Result<Version>(job->second.version) : name_version(job->second.step);
  if (!version) return fail_job(job, version.error(), out);
  WSYNC_TRY(move(job, JobState::kWaiting));
  job->second.had_round = true;
  job->second.why.clear();
  job->second.version = *version;
  taken_ = std::max(taken_, *version);
  named_ = std::max(named_, *version);
  // A snapshot that began while this one was held was to get the same name.
  for (auto& [request, other] : jobs_)
    if (is_snapshotting(other.state) && other.version <= *version)
      other.version = {.epoch = 0, .step = other.step};
  out.emplace_back(
      RequestRound{.request = job->first, .version = *version, .deadline = job->second.deadline});
  return {};
}

Result<> PublishQueue::replace_held(std::uint64_t request, Commands& out) {
  const auto job = held();
  if (job == jobs_.end() || job->first >= request) return {};
  WSYNC_TRY(move(job, JobState::kSuperseded));
  EndPublish ended{
      .request = job->first, .end = JobState::kSuperseded, .error = std::nullopt, .reply = {}};
  ended.reply.reason = "a newer publish replaces it before its round";
  out.emplace_back(std::move(ended));
  jobs_.erase(job);
  return {};
}

// While the coordinator stores a decision, it queues a new publish and does not count its step as
// used yet. The next snapshot must not get the same name, because the sources would then serve the
// bytes of one version as the other.
//
// A number that this queue has chosen is not chosen again, even if its snapshot has failed, because
// logs and statuses have named it. A caller that names a step may name it again after a failed
// snapshot: the ranks of a trainer publish a step again when one of them was lost.
Result<Version> PublishQueue::name_version(std::uint64_t step) const {
  const auto version = WSYNC_TRY(facts_.next_version(step));
  const Version& last = step == 0 ? named_ : taken_;
  if (version.epoch != last.epoch || version.step > last.step) return version;
  if (step == 0) return facts_.next_version(last.step + 1);
  return fail(ErrorCode::kInvalidInput, coordinator::used_step_text(step, last));
}

Result<PublishQueue::Commands> PublishQueue::give_up(std::uint64_t step, bool weights_read) {
  Commands out;
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    if (job->second.state != JobState::kQueued || job->second.step != step) continue;
    const auto reason = job->second.is_kept ? std::nullopt : facts_.why_not_ready();
    WSYNC_TRY(fail_job(
        job,
        Error(ErrorCode::kDeadline, reason.value_or("the previous snapshot is still being taken")),
        out));
    return out;
  }
  // It ends with its snapshot, which may already be complete.
  if (const auto request = snapshotting();
      request && jobs_.at(*request).step == step && !weights_read)
    out.emplace_back(StopSnapshot{.request = *request});
  return out;
}

Result<PublishQueue::Cancelled> PublishQueue::cancel(const Version& version) {
  Cancelled cancelled;
  if (const auto stopped = facts_.why_stopped()) {
    cancelled.reply = control::CancelReply{.reason = stopped->message()};
    return cancelled;
  }
  if (facts_.has_update(version)) return cancelled;
  if (const auto request = snapshotting();
      request && (version.none() || jobs_.at(*request).version == version)) {
    const auto job = jobs_.find(*request);
    if (job->second.end) {
      cancelled.reply = control::CancelReply{
          .reason = fmt::format("nothing to cancel: the round of {} has ended, and its snapshot is "
                                "being stopped",
                                job->second.version.to_string())};
      return cancelled;
    }
    WSYNC_TRY(move(job, JobState::kStopping));
    cancelled.commands.emplace_back(StopSnapshot{.request = *request});
    cancelled.reply = control::CancelReply{.ok = true, .version = job->second.version};
    return cancelled;
  }
  if (const auto job = held();
      job != jobs_.end() && (version.none() || job->second.version == version)) {
    WSYNC_TRY(fail_job(
        job,
        Error(ErrorCode::kCancelled, "the publish was cancelled on request before its round began"),
        cancelled.commands));
    cancelled.reply = control::CancelReply{.ok = true, .version = version};
    return cancelled;
  }
  const auto next = first_queued();
  if (!version.none() || next == jobs_.end()) return cancelled;
  WSYNC_TRY(fail_job(next,
                     Error(ErrorCode::kCancelled,
                           "the publish was cancelled on request before its snapshot began"),
                     cancelled.commands));
  cancelled.reply = control::CancelReply{.ok = true};
  return cancelled;
}

// ---- after the snapshot has begun ----

Result<PublishQueue::Commands> PublishQueue::memory_awaited(std::uint64_t request) {
  const auto job = WSYNC_TRY(find(request));
  Commands out;
  if (job->second.state != JobState::kSnapshotting) return out;
  WSYNC_TRY(replace_held(request, out));
  for (const auto& [older, waiting] : jobs_)
    if (older < request && waiting.state == JobState::kWaiting)
      out.emplace_back(
          ReplaceWaiting{.request = older, .version = waiting.version, .by = job->second.version});
  return out;
}

Result<PublishQueue::Commands> PublishQueue::draft_awaits_memory(std::uint64_t step) {
  Commands out;
  WSYNC_TRY(replace_held(std::numeric_limits<std::uint64_t>::max(), out));
  const Result<Version> by = name_version(step);
  for (const auto& [older, waiting] : jobs_)
    if (waiting.state == JobState::kWaiting)
      out.emplace_back(ReplaceWaiting{.request = older,
                                      .version = waiting.version,
                                      .by = by.value_or(Version{.epoch = 0, .step = step})});
  return out;
}

bool PublishQueue::may_stream(Jobs::const_iterator job) const {
  if (facts_.why_stopped() || facts_.why_not_ready() || why_held(job->second)) return false;
  const bool is_alone = std::ranges::none_of(jobs_, [](const auto& entry) {
    const JobState state = entry.second.state;
    return state == JobState::kHeld || state == JobState::kWaiting || is_in_round(state);
  });
  return is_alone && facts_.may_stream();
}

Result<> PublishQueue::begin_stream(Jobs::iterator job, Commands& out) {
  if (job->second.state != JobState::kSnapshotting || !job->second.is_copied || !may_stream(job))
    return {};
  // It has no name yet if nothing was claimed when its snapshot began, or one of another epoch.
  const Result<Version> next = facts_.next_version(0);
  const bool is_named = next && next->epoch == job->second.version.epoch;
  const Result<Version> version =
      is_named ? Result<Version>(job->second.version) : name_version(job->second.step);
  if (!version) return {};  // the end of the snapshot tells why
  WSYNC_TRY(move(job, JobState::kStreaming));
  job->second.version = *version;
  named_ = std::max(named_, *version);
  if (job->second.step == 0) taken_ = std::max(taken_, *version);
  out.emplace_back(RequestRound{.request = job->first,
                                .version = *version,
                                .deadline = job->second.deadline,
                                .streams = true});
  return {};
}

Result<PublishQueue::Commands> PublishQueue::copy_began(std::uint64_t request) {
  const auto job = WSYNC_TRY(find(request));
  Commands out;
  job->second.is_copied = true;
  WSYNC_TRY(begin_stream(job, out));
  return out;
}

Result<> PublishQueue::end_streaming(Jobs::iterator job, const std::optional<Error>& failure,
                                     Commands& out) {
  const Version version = job->second.version;
  WSYNC_TRY(move(job, job->second.round));
  if (!failure) {
    job->second.had_round = true;
    taken_ = std::max(taken_, version);
    out.emplace_back(CompleteRound{.request = job->first, .version = version});
    return {};
  }
  job->second.failure = failure;
  out.emplace_back(AbandonRound{.request = job->first, .version = version, .why = *failure});
  return {};
}

Result<PublishQueue::Commands> PublishQueue::snapshot_ended(std::uint64_t request,
                                                            const std::optional<Error>& failure) {
  const auto job = WSYNC_TRY(find(request));
  if (!is_snapshotting(job->second.state))
    return fail(ErrorCode::kInternal, fmt::format("the snapshot of publish {} ends while it is {}",
                                                  request, job_state_name(job->second.state)));
  Commands out;
  if (job->second.end) {
    // Its round has often ended because the snapshot was late. That it was stopped then says
    // nothing.
    const RoundEnd& end = *job->second.end;
    if (failure && failure->code() != ErrorCode::kCancelled && !end.cancelled && !end.superseded)
      job->second.failure = failure;
    WSYNC_TRY(end_round(job, std::move(*job->second.end), out));
    return out;
  }
  if (job->second.state == JobState::kStreaming) {
    WSYNC_TRY(end_streaming(job, failure, out));
    return out;
  }
  std::optional<Error> why = failure;
  if (job->second.state == JobState::kStopping)
    why = Error(ErrorCode::kCancelled,
                fmt::format("{} was cancelled on request while its snapshot was taken",
                            job->second.version.to_string()));
  if (const auto stopped = facts_.why_stopped()) why = *stopped;
  if (why) {
    WSYNC_TRY(fail_job(job, *why, out));
    return out;
  }
  WSYNC_TRY(replace_held(request, out));
  if (auto reason = why_held(job->second)) {
    WSYNC_TRY(move(job, JobState::kHeld));
    // A step that a caller has named may be given to a publish after it.
    if (job->second.step != 0) job->second.version = {.epoch = 0, .step = job->second.step};
    hold(job, std::move(*reason), out);
    return out;
  }
  WSYNC_TRY(request_round(job, out));
  return out;
}

Result<> PublishQueue::phase_entered(std::uint64_t request, control::ProgressPhase phase) {
  const auto job = WSYNC_TRY(find(request));
  if (phase == control::ProgressPhase::kSnapshot)
    return fail(ErrorCode::kInternal,
                fmt::format("publish {} enters a round by its snapshot", request));
  if (job->second.state != JobState::kStreaming) return move(job, state_of(phase));
  // Nothing is decided before its content digest is known.
  const JobState to = state_of(phase);
  if (!is_legal(job->second.round, to) || to == JobState::kSwitching)
    return fail(ErrorCode::kInternal,
                fmt::format("publish {} streams, and its round cannot go from {} to {}", request,
                            job_state_name(job->second.round), job_state_name(to)));
  job->second.round = to;
  return {};
}

Result<PublishQueue::Commands> PublishQueue::round_ended(std::uint64_t request, RoundEnd end) {
  const auto job = WSYNC_TRY(find(request));
  const JobState from = job->second.state;
  Commands out;
  if (from == JobState::kStreaming && !end.reply.ok) {
    // The answer follows when nothing reads the weights any more.
    WSYNC_TRY(move(job, JobState::kStopping));
    job->second.end = std::move(end);
    out.emplace_back(StopSnapshot{.request = request});
    return out;
  }
  // The coordinator has not received it before its snapshot is complete.
  if (from < JobState::kWaiting)
    return fail(ErrorCode::kInternal, fmt::format("the round of publish {} ends while it is {}",
                                                  request, job_state_name(from)));
  WSYNC_TRY(end_round(job, std::move(end), out));
  return out;
}

Result<PublishQueue::Commands> PublishQueue::round_lost(std::uint64_t request,
                                                        const std::string& why) {
  const auto job = WSYNC_TRY(find(request));
  Commands out;
  const JobState from = job->second.state;
  if (!job->second.is_kept || (from != JobState::kWaiting && !is_in_round(from)))
    return fail(ErrorCode::kInternal,
                fmt::format("publish {} loses its round while it is {}{}", request,
                            job_state_name(from), job->second.is_kept ? "" : " and not kept"));
  if (from == JobState::kStreaming) {
    WSYNC_TRY(move(job, JobState::kSnapshotting));
    job->second.is_copied = false;  // its next round begins with the complete snapshot
    return out;
  }
  // Only the newest one is kept.
  const bool is_newest = std::ranges::none_of(jobs_, [&](const auto& entry) {
    return entry.first > request &&
           (entry.second.state == JobState::kHeld || entry.second.state == JobState::kWaiting);
  });
  if (is_newest) {
    WSYNC_TRY(move(job, JobState::kHeld));
    job->second.wait_reported = false;
    auto reason = why_held(job->second);
    hold(job, reason ? fmt::format("{}; {}", *reason, why) : why, out);
    return out;
  }
  WSYNC_TRY(fail_job(job, Error(ErrorCode::kPeerLost, why + "; a newer publish follows"), out));
  return out;
}

Result<> PublishQueue::end_round(Jobs::iterator job, RoundEnd end, Commands& out) {
  JobState to = end.reply.ok ? JobState::kServed : JobState::kFailed;
  if (end.superseded) to = JobState::kSuperseded;
  if (end.cancelled) to = JobState::kCancelled;
  WSYNC_TRY(move(job, to));
  EndPublish ended{.request = job->first,
                   .end = to,
                   .error = std::move(job->second.failure),
                   .reply = {},
                   .had_round = true};
  if (end.cancelled && !ended.error)
    ended.error = Error(ErrorCode::kCancelled,
                        fmt::format("{} was {}", end.reply.version.to_string(), end.reply.reason));
  ended.reply = std::move(end.reply);
  jobs_.erase(job);
  out.emplace_back(std::move(ended));
  return {};
}

// ---- views ----

std::optional<JobState> PublishQueue::state(std::uint64_t request) const {
  const auto job = jobs_.find(request);
  if (job == jobs_.end()) return std::nullopt;
  return job->second.state;
}

std::optional<std::string> PublishQueue::waits_for(std::uint64_t request) const {
  const auto job = jobs_.find(request);
  if (job == jobs_.end() || job->second.state != JobState::kHeld) return std::nullopt;
  return job->second.why;
}

std::optional<std::uint64_t> PublishQueue::snapshotting() const {
  for (const auto& [request, job] : jobs_)
    if (is_snapshotting(job.state)) return request;
  return std::nullopt;
}

std::size_t PublishQueue::queued() const noexcept {
  return static_cast<std::size_t>(std::ranges::count(
      jobs_, JobState::kQueued, [](const auto& entry) { return entry.second.state; }));
}

Result<> PublishQueue::invariants() const {
  const auto broken = [](std::uint64_t request, std::string_view what) {
    return fail(ErrorCode::kInternal, fmt::format("publish {} {}", request, what));
  };
  std::optional<std::uint64_t> snapshot;
  std::optional<std::uint64_t> round;
  std::optional<std::uint64_t> held;
  bool is_any_waiting = false;
  Version newest;
  for (const auto& [request, job] : jobs_) {
    if (has_ended(job.state)) return broken(request, "has ended and is kept");
    const bool is_named = job.version.epoch != 0;
    if (!is_named && job.state >= JobState::kWaiting)
      return broken(request, fmt::format("is {} without a version", job_state_name(job.state)));
    if (is_named && job.version <= newest)
      return broken(request, fmt::format("is {}, an older one is {}", job.version.to_string(),
                                         newest.to_string()));
    if (is_named) newest = job.version;
    if (job.state == JobState::kHeld && std::exchange(held, request))
      return broken(request, "holds a snapshot while another one does");
    if (is_snapshotting(job.state) && std::exchange(snapshot, request))
      return broken(request, "takes a snapshot while another one does");
    if (is_in_round(job.state)) {
      if (std::exchange(round, request)) return broken(request, "has a round beside another one");
      if (is_any_waiting) return broken(request, "has a round while an older one waits");
    }
    is_any_waiting = is_any_waiting || job.state == JobState::kWaiting;
  }
  return {};
}

}  // namespace wsync::publish
