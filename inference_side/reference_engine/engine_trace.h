// What an engine process does, as spans: serving, pauses, loads and the buckets in them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "inference_side/reference_engine/reference_engine.h"
#include "shared/base/error.h"
#include "shared/config/defaults.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::cli {

// Thread: one at a time.
class EngineTrace {
 public:
  void heard(const engine::reference::EngineEvent& event, TimePoint at);
  // The latest spans, as a Chrome trace of this process; what it does now ends. Errors as
  // trace::write_chrome_trace().
  [[nodiscard]] Result<> write(const std::string& path, const std::string& name, TimePoint at);
  [[nodiscard]] const trace::Recorder& recorder() const noexcept { return recorder_; }

 private:
  // From where the lane was begun until now; nothing when it was not.
  void end(const std::string& lane, trace::Category category, std::string name,
           std::vector<trace::Arg> args, TimePoint at);

  trace::Recorder recorder_{config::kTraceSpansDefault, trace::WhenFull::kDropOldest};
  std::map<std::string, TimePoint> begun_;  // by lane
};

}  // namespace wsync::cli
