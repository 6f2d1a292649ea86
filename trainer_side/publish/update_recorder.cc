#include "trainer_side/publish/update_recorder.h"

#include <optional>
#include <string_view>

#include "shared/base/log.h"

namespace wsync::publish {
namespace {

// The name on the web page.
std::string_view end_name(UpdateEnd end) {
  switch (end) {
    case UpdateEnd::kCommitted:
      return "served";
    case UpdateEnd::kFailed:
      return "failed";
    case UpdateEnd::kPartial:
      return "partial";
    case UpdateEnd::kCancelled:
      return "cancelled";
    case UpdateEnd::kSuperseded:
      return "superseded";
  }
  return "ended";
}

std::string_view decided_end_name(const auto& reply) {
  if (reply.ok) return "served";
  return reply.partial ? "partial" : "failed";
}

}  // namespace

void UpdateRecorder::snapshot_began(std::uint64_t request, const Version& version, TimePoint at) {
  publishes_[request] = version;
  journal_.began(request, version, at);
  history_.began(request, version, at);
}

void UpdateRecorder::publish_requested(std::uint64_t request, const Version& version,
                                       std::uint64_t bytes, TimePoint at) {
  snapshot_began(request, version, at);
  journal_.snapshot_taken(request, version, bytes);
  history_.snapshot_taken(request, version, at);
}

void UpdateRecorder::snapshot_taken(std::uint64_t request, const Snapshot& snapshot,
                                    TimePoint begin, TimePoint end, TimePoint at) {
  const std::uint64_t bytes = snapshot.plan()->arena_bytes();
  publishes_[request] = snapshot.version();
  metrics_.snapshot_taken(bytes, end - begin);
  trace_.snapshot_taken(snapshot, begin, end);
  journal_.snapshot_taken(request, snapshot.version(), bytes);
  history_.snapshot_taken(request, snapshot.version(), at);
}

void UpdateRecorder::phase_entered(std::uint64_t request, control::ProgressPhase phase,
                                   TimePoint at) {
  const auto publish = publishes_.find(request);
  if (publish == publishes_.end()) return;
  trace_.entered(request, publish->second, phase, at);
  journal_.entered(request, phase, at);
  history_.entered(request, phase, at);
  metrics_.entered(request, phase, at);
}

void UpdateRecorder::end(std::uint64_t request, UpdateEnd end, const control::PushReply& reply,
                         TimePoint at) {
  publishes_.erase(request);
  journal_.ended(request, end, reply, at);
  history_.ended(request, end_name(end), reply.reason, reply.outcomes, at);
}

void UpdateRecorder::round_ended(const coordinator::RoundDone& done, TimePoint at) {
  trace_.ended(done.request, at);
  UpdateEnd how = UpdateEnd::kCommitted;
  if (!done.reply.ok)
    how = control::failure_code(done.reply) == ErrorCode::kPartial ? UpdateEnd::kPartial
                                                                   : UpdateEnd::kFailed;
  if (done.superseded) how = UpdateEnd::kSuperseded;
  if (done.cancelled) how = UpdateEnd::kCancelled;
  end(done.request, how, done.reply, at);
  metrics_.ended(done, at);
}

void UpdateRecorder::round_lost(std::uint64_t request, const std::string& text, TimePoint at) {
  trace_.ended(request, at);
  metrics_.round_lost(request, at);
  journal_.round_lost(request, at);
  history_.round_lost(request, at);
  incident(text, at);
}

void UpdateRecorder::superseded(std::uint64_t request, const control::PushReply& reply,
                                TimePoint at) {
  end(request, UpdateEnd::kSuperseded, reply, at);
  metrics_.ended({.request = request, .superseded = true, .reply = reply}, at);
}

void UpdateRecorder::failed(std::uint64_t request, const Error& why, TimePoint at) {
  metrics_.failed(why.code());
  control::PushReply reply;
  reply.reason = why.message();
  end(request, why.code() == ErrorCode::kCancelled ? UpdateEnd::kCancelled : UpdateEnd::kFailed,
      reply, at);
}

void UpdateRecorder::rollback_began(std::uint64_t request, const Version& to, TimePoint at) {
  journal_.rollback_began(request, to, at);
  history_.rollback_began(request, to, at);
}

void UpdateRecorder::rollback_ended(std::uint64_t request, const control::RollbackReply& reply,
                                    TimePoint at) {
  journal_.rollback_ended(request, reply, at);
  history_.ended(request, decided_end_name(reply), reply.reason, reply.outcomes, at);
  metrics_.rolled_back(reply);
}

void UpdateRecorder::promotion_began(std::uint64_t request, const Version& version, TimePoint at) {
  journal_.promotion_began(request, version, at);
  history_.promotion_began(request, version, at);
}

void UpdateRecorder::promotion_ended(std::uint64_t request, const control::PromoteReply& reply,
                                     TimePoint at) {
  journal_.promotion_ended(request, reply, at);
  history_.ended(request, decided_end_name(reply), reply.reason, reply.outcomes, at);
}

void UpdateRecorder::sent(const std::string& sidecar, const control::Message& message,
                          TimePoint at) {
  trace_.sent(sidecar, message, at);
}

void UpdateRecorder::received(const std::string& sidecar, const control::Message& message,
                              TimePoint at) {
  if (const auto answered = trace_.received(sidecar, message, at))
    history_.answered(sidecar, answered->version, answered->stage, answered->begin, at);
}

void UpdateRecorder::incident(const std::string& text, TimePoint at) {
  log_warning("{}", text);
  journal_.incident(text, at);
}

}  // namespace wsync::publish
