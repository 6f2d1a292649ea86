#include "inference_side/sidecar/pause_pacer.h"

#include <algorithm>
#include <utility>

#include "shared/base/planted.h"

namespace wsync::agent {

PausePacer::PausePacer(std::size_t limit) : limit_(std::max<std::size_t>(limit, 1)) {}

PausePacer::Pauses PausePacer::pause(const std::string& replica, const reload::SendPause& command,
                                     TimePoint at) {
  std::erase_if(waiting_, [&](const Pause& one) { return one.replica == replica; });
  placed_.erase(replica);
  waiting_.push_back({.replica = replica, .command = command});
  return tick(at);
}

void PausePacer::paused(const std::string& replica, TimePoint at) {
  if (const auto found = placed_.find(replica); found != placed_.end())
    found->second = at + kMaxWait;
}

PausePacer::Pauses PausePacer::end(const std::string& replica, TimePoint at) {
  std::erase_if(waiting_, [&](const Pause& one) { return one.replica == replica; });
  placed_.erase(replica);
  return tick(at);
}

PausePacer::Pauses PausePacer::tick(TimePoint at) {
  if (!planted("pause_waits_for_silent"))
    std::erase_if(placed_, [&](const auto& one) { return one.second <= at; });
  Pauses pauses;
  while (!waiting_.empty() && placed_.size() < limit_) {
    placed_.insert_or_assign(waiting_.front().replica, at + kMaxWait);
    pauses.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return pauses;
}

std::optional<TimePoint> PausePacer::next_wake() const {
  if (waiting_.empty()) return std::nullopt;
  std::optional<TimePoint> soonest;
  for (const auto& [replica, until] : placed_)
    if (!soonest || until < *soonest) soonest = until;
  return soonest;
}

}  // namespace wsync::agent
