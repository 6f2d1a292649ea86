#include "trainer_side/publish/round_trace.h"

#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/trace/chrome_trace.h"

namespace wsync::publish {
namespace {

std::string_view phase_name(control::ProgressPhase phase) {
  switch (phase) {
    case control::ProgressPhase::kSnapshot:
      return "snapshot";
    case control::ProgressPhase::kAnnounce:
      return "announce";
    case control::ProgressPhase::kStage:
      return "stage";
    case control::ProgressPhase::kSwitch:
      return "switch";
  }
  return "phase";
}

}  // namespace

void RoundTrace::snapshot_taken(const Version& version, std::uint64_t bytes, TimePoint begin,
                                TimePoint end) {
  if (path_.empty()) return;
  recorder_.keep_newest(limits::kTraceSpans / 16);
  recorder_.record({.name = "snapshot of " + version.to_string(),
                    .lane = "snapshot",
                    .category = trace::Category::kStage,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = {{.name = "bytes", .value = static_cast<std::int64_t>(bytes)}}});
}

void RoundTrace::entered(std::uint64_t request, const Version& version,
                         control::ProgressPhase phase, TimePoint at) {
  if (path_.empty()) return;
  ended(request, at);
  open_[request] = {.name = fmt::format("{} {}", phase_name(phase), version.to_string()),
                    .begin = at};
}

void RoundTrace::ended(std::uint64_t request, TimePoint at) {
  const auto phase = open_.find(request);
  if (phase == open_.end()) return;
  recorder_.record({.name = std::move(phase->second.name),
                    .lane = "round",
                    .category = trace::Category::kOther,
                    .begin = phase->second.begin,
                    .end = at,
                    .label = {},
                    .args = {}});
  open_.erase(phase);
}

void RoundTrace::write() const {
  if (path_.empty()) return;
  const auto written =
      trace::write_chrome_trace(path_ + ".json", {{.name = "coordinator",
                                                   .pid = static_cast<std::uint32_t>(::getpid()),
                                                   .spans = recorder_.spans()}});
  if (!written) log_warning("trace: {}", written.error().message());
}

}  // namespace wsync::publish
