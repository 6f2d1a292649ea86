#include "inference_side/sidecar/switch_log.h"

#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::agent {

std::string SwitchLog::sent(const std::string& replica, const reload::BeginLoad& /*command*/,
                            TimePoint at) {
  loads_[replica] = {.begin = at};
  return {};
}

std::string SwitchLog::sent(const std::string& replica, const reload::SendCommit& command,
                            TimePoint at) {
  const auto load = loads_.find(replica);
  if (load == loads_.end() || load->second.committing == command.version) return {};
  load->second.committing = command.version;
  return fmt::format("replica {} has loaded {} in {}", replica, command.version.to_string(),
                     trace::format_duration(at - load->second.begin));
}

std::string SwitchLog::sent(const std::string& replica, const reload::SendResume& /*command*/,
                            TimePoint at) {
  const auto load = loads_.extract(replica);
  if (load.empty() || load.mapped().committing.none()) return {};
  return fmt::format("replica {} has committed {}, {} after its load began", replica,
                     load.mapped().committing.to_string(),
                     trace::format_duration(at - load.mapped().begin));
}

}  // namespace wsync::agent
