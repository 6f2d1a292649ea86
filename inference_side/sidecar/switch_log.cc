#include "inference_side/sidecar/switch_log.h"

#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::agent {

std::string SwitchLog::sent(const std::string& replica, const reload::BeginLoad& /*command*/,
                            TimePoint at) {
  loads_[replica] = {.begin = at};
  return {};
}

void SwitchLog::loaded(const std::string& replica, const reload::RankLoaded& event) {
  const auto found = loads_.find(replica);
  if (found == loads_.end() || !event.failure.empty()) return;
  found->second.by_patch = event.by_patch;
  found->second.written_bytes += event.written_bytes;
  found->second.bytes += event.bytes;
}

std::string SwitchLog::sent(const std::string& replica, const reload::SendCommit& command,
                            TimePoint at) {
  const auto load = loads_.find(replica);
  if (load == loads_.end() || load->second.committing == command.version) return {};
  load->second.committing = command.version;
  const std::string how =
      load->second.by_patch
          ? fmt::format(" by a patch, {} of {},", trace::format_bytes(load->second.written_bytes),
                        trace::format_bytes(load->second.bytes))
          : std::string();
  return fmt::format("replica {} has loaded {}{} in {}", replica, command.version.to_string(), how,
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
