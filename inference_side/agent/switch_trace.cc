#include "inference_side/agent/switch_trace.h"

namespace wsync::agent {

void SwitchTrace::sent(const std::string& replica, const reload::BeginLoad& command, TimePoint at) {
  if (recorder_ == nullptr) return;
  // A second try inside one switch goes on with the pause of the first.
  const auto [pause, is_new] = open_.try_emplace(replica, Pause{.begin = at});
  pause->second.version = command.version;
}

void SwitchTrace::sent(const std::string& replica, const reload::SendResume& /*command*/,
                       TimePoint at) {
  const auto pause = open_.find(replica);
  if (pause == open_.end()) return;
  recorder_->record({.name = "paused for " + pause->second.version.to_string(),
                     .lane = "replica " + replica,
                     .category = trace::Category::kPause,
                     .begin = pause->second.begin,
                     .end = at,
                     .label = {},
                     .args = {}});
  open_.erase(pause);
}

void SwitchTrace::staged(const Version& version, std::uint64_t bytes, TimePoint begin,
                         TimePoint end) {
  if (recorder_ == nullptr) return;
  recorder_->record({.name = "staging of " + version.to_string(),
                     .lane = "staging",
                     .category = trace::Category::kStage,
                     .begin = begin,
                     .end = end,
                     .label = {},
                     .args = {{.name = "bytes", .value = static_cast<std::int64_t>(bytes)}}});
}

}  // namespace wsync::agent
