#include "trainer_side/plugin/awaited_text.h"

#include <algorithm>
#include <vector>

#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::plugin {
namespace {

constexpr std::size_t kNamesShown = 5;

std::string names_text(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesShown);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string_view word_of(control::ReplicaState state) {
  switch (state) {
    case control::ReplicaState::kAbsent:
      return "no engine is attached";
    case control::ReplicaState::kServing:
      return "it serves";
    case control::ReplicaState::kBehind:
      return "it serves an older version";
    case control::ReplicaState::kPaused:
      return "it is paused";
    case control::ReplicaState::kLoading:
      return "it loads";
    case control::ReplicaState::kTainted:
      return "its memory belongs to no version";
  }
  return "unknown";
}

std::string staging_text(const control::StatusReply& fleet, const PublishPlace& place) {
  std::vector<std::string> missing;
  for (const control::SidecarReport& sidecar : fleet.sidecars)
    if (std::ranges::find(sidecar.staged, place.version) == sidecar.staged.end())
      missing.push_back(
          fmt::format("'{}'{}", sidecar.name, sidecar.connected ? "" : " (not connected)"));
  const std::string bytes =
      place.total_bytes == 0
          ? ""
          : fmt::format("; {} of {} have arrived", trace::format_bytes(place.done_bytes),
                        trace::format_bytes(place.total_bytes));
  if (missing.empty()) return "every sidecar has staged it, and its switch is being decided";
  return fmt::format("not staged yet by sidecar {}{}", names_text(missing), bytes);
}

std::string switching_text(const control::StatusReply& fleet, const PublishPlace& place) {
  std::vector<std::string> missing;
  for (const control::SidecarReport& sidecar : fleet.sidecars)
    for (const control::ReplicaReport& replica : sidecar.replicas)
      if (replica.version != place.version)
        missing.push_back(fmt::format(
            "'{}' of sidecar '{}' ({})", replica.replica, sidecar.name,
            replica.reason.empty() ? word_of(replica.state) : std::string_view(replica.reason)));
  if (missing.empty()) return "every replica serves it, and the last answer is awaited";
  return fmt::format("not served yet by replica {}", names_text(missing));
}

}  // namespace

std::string awaited_text(const control::StatusReply& fleet, const PublishPlace& place) {
  // A coordinator of another process may not have answered yet.
  if (place.version.none() || fleet.sidecars.empty()) return {};
  switch (place.phase) {
    case control::ProgressPhase::kSnapshot:
      return "it waits for the round of the version before it";
    case control::ProgressPhase::kAnnounce:
      return fmt::format("it is announced to {}, and not every one has accepted it",
                         counted(fleet.sidecars.size(), "sidecar"));
    case control::ProgressPhase::kStage:
      return staging_text(fleet, place);
    case control::ProgressPhase::kSwitch:
      return switching_text(fleet, place);
  }
  return {};
}

}  // namespace wsync::plugin
