#include "shared/base/fail_point.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "shared/base/format.h"

namespace wsync {
namespace {

struct ArmedPoint {
  std::string name;
  std::atomic<std::uint64_t> left = 0;
  int signal = SIGKILL;
};
// Never freed: a thread may read it while the process ends.
std::atomic<ArmedPoint*> armed_point = nullptr;

}  // namespace

void arm_fail_point(std::string name, std::uint64_t hits, int signal) {
  auto* point = new ArmedPoint{.name = std::move(name)};
  point->left = hits;
  point->signal = signal;
  armed_point.store(point, std::memory_order_release);
}

Result<> arm_fail_point_of_environment() {
  const char* variable = std::getenv("WSYNC_FAIL_POINT");
  if (variable == nullptr) return {};
  constexpr std::string_view kStop = ":stop";
  std::string_view text = variable;
  const bool stops = text.ends_with(kStop);
  if (stops) text.remove_suffix(kStop.size());
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::uint64_t hits = 0;
  const char* end = text.data() + text.size();
  const bool is_number =
      colon != text.npos && std::from_chars(text.data() + colon + 1, end, hits).ptr == end;
  if (!is_number || hits == 0 ||
      std::ranges::find(kPatchFailPoints, name) == kPatchFailPoints.end())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("WSYNC_FAIL_POINT: expected POINT:HITS or POINT:HITS:stop with a point of "
                    "{}, and hits from 1; found '{}'",
                    fmt::join(kPatchFailPoints, ", "), variable));
  arm_fail_point(std::string(name), hits, stops ? SIGSTOP : SIGKILL);
  return {};
}

bool fail_point_is_next(std::string_view name) noexcept {
  const ArmedPoint* point = armed_point.load(std::memory_order_acquire);
  return point != nullptr && point->name == name && point->left == 1;
}

void fail_point(std::string_view name) noexcept {
  ArmedPoint* point = armed_point.load(std::memory_order_acquire);
  if (point == nullptr || point->name != name) return;
  if (point->left-- == 1) ::raise(point->signal);
}

}  // namespace wsync
