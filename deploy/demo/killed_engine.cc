#include "deploy/demo/killed_engine.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shared/base/format.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::milliseconds kDeadline{60'000};
constexpr std::uint64_t kTakenMin = 2;  // with two, the first is acknowledged

}  // namespace

KilledEngine::KilledEngine(ChildProcesses& children, Child& child)
    : children_(children), child_(child) {
  child_.on_line = [this](const std::string& line) { handle_line(line); };
}

void KilledEngine::handle_line(const std::string& line) {
  const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
  const std::string name = event.is_object() ? event.value("event", "") : "";
  if (name == "torn") ++torn_;
  if (name != "bucket") return;
  seen_ = {.version = event.value("version", ""),
           .taken = event.value("bucket", std::uint64_t{0}) + 1,
           .buckets = event.value("of", std::uint64_t{0})};
  if (!armed_ || seen_.taken < std::max(kTakenMin, seen_.buckets / 3)) return;
  armed_ = false;
  child_.send(SIGSTOP);
  child_.hold_lines();
}

void KilledEngine::arm() {
  child_.narrow_output();
  armed_ = true;
}

Result<KilledEngineReport> KilledEngine::kill(const std::function<bool()>& too_late) {
  WSYNC_TRY(children_.until("a bucket of " + child_.name(), kDeadline,
                            [&] { return child_.stopped() || too_late(); }));
  if (!child_.stopped())
    return fail(ErrorCode::kInternal,
                fmt::format("the switch ended before {} could be killed in it", child_.name()));
  child_.drain_lines();  // the process is stopped, so these lines are all of its output
  if (seen_.taken < kTakenMin || seen_.taken >= seen_.buckets)
    return fail(ErrorCode::kInternal,
                fmt::format("{} had taken {} of {} buckets when it was stopped, which is not the "
                            "middle; try a larger --size",
                            child_.name(), seen_.taken, seen_.buckets));
  child_.may_end();
  child_.send(SIGKILL);
  WSYNC_TRY(
      children_.until("the end of " + child_.name(), kDeadline, [&] { return !child_.running(); }));
  return seen_;
}

}  // namespace wsync::cli
