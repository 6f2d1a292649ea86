// TrainerAgent: how far its publishes have come, and how one is cancelled.
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/publish/active_publish.h"

namespace wsync::publish {
namespace {

std::string_view end_name(UpdateEnd end) {
  switch (end) {
    case UpdateEnd::kCommitted:
      return "served";
    case UpdateEnd::kFailed:
      return "failed";
    case UpdateEnd::kCancelled:
      return "cancelled";
    case UpdateEnd::kSuperseded:
      return "superseded";
  }
  return "ended";
}

}  // namespace

control::StatusReply TrainerAgent::status() const {
  control::StatusReply reply = coordinator_.status();
  journal_.report(moved_bytes(), now(), reply);
  return reply;
}

metrics::Readiness TrainerAgent::readiness() const {
  return coordinator::fleet_readiness(coordinator_, config_.min_replicas);
}

void TrainerAgent::record_end(std::uint64_t request, UpdateEnd end,
                              const control::PushReply& reply) {
  journal_.ended(request, end, reply, now());
  history_.ended(request, end_name(end), reply.reason, reply.outcomes, now());
}

PhaseBytes TrainerAgent::moved_bytes() const {
  const std::uint64_t shown = journal_.shown();
  if (snapshotting_ && snapshotting_->request == shown)
    return {.done = snapshotting_->snapshot_bytes.load(std::memory_order_relaxed),
            .total = snapshotting_->model_bytes.load(std::memory_order_relaxed)};
  if (coordinator_.has_update({})) {
    const coordinator::Coordinator::Moved moved = coordinator_.moved_bytes();
    return {.done = moved.done, .total = moved.total};
  }
  return {};
}

// What the coordinator has not heard of is stopped here.
control::CancelReply TrainerAgent::cancel(const Version& version) {
  if (const auto stopped = why_stopped()) return {.reason = stopped->message()};
  if (!coordinator_.has_update(version))
    if (control::CancelReply reply = cancel_job(version); reply.ok) return reply;
  cancelled_.reset();
  step(coordinator::CancelRequested{.request = next_request_++, .version = version});
  WSYNC_CHECK(cancelled_.has_value(), "each request to cancel is answered in its step");
  if (cancelled_->ok) log_info("{} was cancelled on request", cancelled_->version.to_string());
  return *std::exchange(cancelled_, std::nullopt);
}

// A snapshot that is taken, or a job that waits for its own.
control::CancelReply TrainerAgent::cancel_job(const Version& version) {
  if (snapshotting_ && (version.none() || snapshotting_->version == version)) {
    snapshotting_->cancelled = true;
    snapshotting_->stop.request_stop();
    log_info("{} was cancelled on request", snapshotting_->version.to_string());
    return {.ok = true, .version = snapshotting_->version};
  }
  if (!version.none() || queued_.empty()) return {};
  const std::shared_ptr<Active> active = queued_.front();
  queued_.erase(queued_.begin());
  fail_job(active, Error(ErrorCode::kCancelled,
                         "the publish was cancelled on request before its snapshot began"));
  return {.ok = true};
}

void TrainerAgent::report_progress() {
  pump_jobs();  // their deadlines
  if (snapshotting_ && snapshotting_->job.on_progress) {
    snapshotting_->progress.done_bytes =
        snapshotting_->snapshot_bytes.load(std::memory_order_relaxed);
    snapshotting_->progress.total_bytes =
        snapshotting_->model_bytes.load(std::memory_order_relaxed);
    snapshotting_->job.on_progress(snapshotting_->progress);
  }
  const coordinator::Coordinator::Moved moved = coordinator_.moved_bytes();
  for (const auto& [request, active] : running_) {
    if (!active->job.on_progress) continue;
    // One that waits for the round before it is still where its snapshot has ended.
    const bool in_round = active->progress.phase != control::ProgressPhase::kSnapshot;
    active->progress.done_bytes = in_round ? moved.done : active->model_bytes.load();
    active->progress.total_bytes = in_round ? moved.total : active->model_bytes.load();
    active->job.on_progress(active->progress);
  }
}

}  // namespace wsync::publish
