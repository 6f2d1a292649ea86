#include "inference_side/sidecar/pause_pacer.h"

#include <algorithm>
#include <utility>

#include "shared/base/planted.h"

namespace wsync::agent {

PausePacer::PausePacer(const PauseLimits& limits) : limits_(limits) {
  limits_.at_once = std::max<std::size_t>(limits_.at_once, 1);
}

PausePacer::Pauses PausePacer::pause(const std::string& replica, const reload::SendPause& command,
                                     TimePoint at) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.pause.replica == replica; });
  placed_.erase(replica);
  waiting_.push_back({.pause = {.replica = replica, .command = command}, .since = at});
  return tick(at);
}

void PausePacer::paused(const std::string& replica, TimePoint at) {
  if (const auto found = placed_.find(replica); found != placed_.end())
    found->second = at + limits_.max_wait;
}

PausePacer::Pauses PausePacer::leave(const std::string& replica, TimePoint at) {
  placed_.erase(replica);
  return tick(at);
}

PausePacer::Pauses PausePacer::end(const std::string& replica, TimePoint at) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.pause.replica == replica; });
  placed_.erase(replica);
  return tick(at);
}

PausePacer::Pauses PausePacer::tick(TimePoint at) {
  if (!planted("pause_waits_for_silent"))
    std::erase_if(placed_, [&](const auto& one) { return one.second <= at; });
  Pauses pauses;
  while (!waiting_.empty() &&
         (placed_.size() < limits_.at_once || waiting_.front().since + limits_.max_queued <= at)) {
    Pause& next = waiting_.front().pause;
    placed_.insert_or_assign(next.replica, at + limits_.max_wait);
    pauses.push_back(std::move(next));
    waiting_.pop_front();
  }
  return pauses;
}

std::optional<TimePoint> PausePacer::next_wake() const {
  if (waiting_.empty()) return std::nullopt;
  TimePoint soonest = waiting_.front().since + limits_.max_queued;
  for (const auto& [replica, until] : placed_) soonest = std::min(soonest, until);
  return soonest;
}

}  // namespace wsync::agent
