#include "tests/soak/kill_log.h"

#include <variant>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::soak {
namespace {

constexpr std::size_t kLineShown = 200;

}  // namespace

Result<> KillLog::take(std::string_view line, TimePoint at) {
  ++lines_;
  const auto failed = [&](const Error& error) {
    return fail(error.with_context(fmt::format("line {} of the trainer's events, '{}{}'", lines_,
                                               line.substr(0, kLineShown),
                                               line.size() > kLineShown ? "..." : "")));
  };
  const auto event = parse_trainer_event(line, ranks_);
  if (!event) return failed(event.error());
  if (const auto* said = std::get_if<FailedEvent>(&*event))
    return fail(ErrorCode::kRefused, "the trainer failed: " + said->message);
  const Result<> taken = std::visit([&](const auto& one) { return take_event(one, at); }, *event);
  if (!taken) return failed(taken.error());
  return {};
}

void KillLog::killed(std::uint32_t rank, TimePoint at) {
  WSYNC_CHECK(is_ready() && rank < ranks_, "only a known rank of a run that goes on is killed");
  pending_ = Pending{.sent = at, .kill = {.rank = rank}};
  stepped_at_.reset();
}

Result<> KillLog::take_event(const StepEvent& event, TimePoint at) {
  steps_.push_back(event);
  if (++times_told_[event.step] == 2) ++told_again_;
  last_step_ = event.step;
  has_stepped_ = true;
  if (!pending_) {
    if (stepped_at_) step_seconds_.push_back(seconds(at - *stepped_at_));
    stepped_at_ = at;
  } else if (pending_->is_recovered && event.step >= pending_->kill.resumed_step) {
    pending_->kill.resumed_seconds = seconds(at - pending_->sent);
    kills_.push_back(std::move(pending_->kill));
    pending_.reset();
    stepped_at_ = at;
  }
  return {};
}

Result<> KillLog::take_event(const RanksEvent& event, TimePoint) {
  pids_ = event.pids;
  return {};
}

Result<> KillLog::take_event(const LostEvent& event, TimePoint at) {
  if (!pending_ || pending_->is_lost || pending_->kill.rank != event.rank)
    return fail(ErrorCode::kPeerLost,
                fmt::format("rank {} {}, and nobody had killed it", event.rank, event.why));
  pids_.clear();
  pending_->is_lost = true;
  pending_->kill.lost_seconds = seconds(at - pending_->sent);
  pending_->kill.step = event.step;
  pending_->kill.phase = event.phase;
  return {};
}

Result<> KillLog::take_event(const RecoveredEvent& event, TimePoint at) {
  if (!pending_ || !pending_->is_lost || pending_->is_recovered)
    return fail(ErrorCode::kInvalidInput, "no rank was lost that has not been replaced yet");
  Kill& kill = pending_->kill;
  if (event.replaced != std::vector{kill.rank})
    return fail(ErrorCode::kInvalidInput,
                fmt::format("it has replaced ranks [{}], expected {}, which was lost",
                            fmt::join(event.replaced, ", "), kill.rank));
  pending_->is_recovered = true;
  kill.recovered_seconds = seconds(at - pending_->sent);
  kill.recovery_seconds = event.seconds;
  kill.resumed_step = event.step;
  kill.from = event.from;
  kill.bytes = event.bytes;
  return {};
}

Result<> KillLog::take_event(const SavedEvent& event, TimePoint) {
  saved_ = event;
  return {};
}

Result<> KillLog::take_event(const FailedEvent&, TimePoint) { return {}; }

Result<> KillLog::take_event(const OtherEvent&, TimePoint) { return {}; }

std::string KillLog::state() const {
  std::string text =
      fmt::format("{}, the last step told is {}", counted(kills_.size(), "recovery"), last_step_);
  if (!pending_) {
    text += pids_.empty() ? "; no process of a rank has been told" : "";
  } else {
    text += fmt::format("; rank {} was killed and {}", pending_->kill.rank,
                        !pending_->is_lost        ? "nothing tells of its loss"
                        : !pending_->is_recovered ? "has not been replaced"
                                                  : "has been replaced, but no step ended since");
  }
  return text;
}

}  // namespace wsync::soak
