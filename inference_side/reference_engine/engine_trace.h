// Records as spans what an engine process does: serving, pauses, loads and the buckets in them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "inference_side/reference_engine/reference_engine.h"
#include "shared/base/error.h"
#include "shared/config/defaults.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::cli {

// Thread: confined to one thread at a time.
class EngineTrace {
 public:
  void heard(const engine::reference::EngineEvent& event, TimePoint at);
  // Writes the latest spans as a Chrome trace of this process. Closes the spans that are still
  // open. Errors as trace::write_chrome_trace().
  [[nodiscard]] Result<> write(const std::string& path, const std::string& name, TimePoint at);
  [[nodiscard]] const trace::Recorder& recorder() const noexcept { return recorder_; }

 private:
  // Records a span from the begin() of the lane until now. Does nothing if the lane was not begun.
  void end(const std::string& lane, trace::Category category, std::string name,
           std::vector<trace::Arg> args, TimePoint at);

  trace::Recorder recorder_{config::kTraceSpansDefault, trace::WhenFull::kDropOldest};
  std::map<std::string, TimePoint> begun_;  // start times by lane
};

}  // namespace wsync::cli
