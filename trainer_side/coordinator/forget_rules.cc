#include "trainer_side/coordinator/forget_rules.h"

#include <algorithm>
#include <set>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::coordinator {

bool knows_withdrawn(const CoordinatorRecord& record, const control::Hello& hello) {
  if (record.withdrawn.empty() || hello.withdrawn == record.withdrawn) return true;
  const std::set<Version> known(hello.withdrawn.begin(), hello.withdrawn.end());
  return std::ranges::all_of(record.withdrawn,
                             [&](const Version& version) { return known.contains(version); });
}

bool owes_withdrawal(const CoordinatorRecord& record, const Member& member) {
  return !record.withdrawn.empty() && !member.knows_withdrawn && !planted("owing_forgotten");
}

std::optional<TimePoint> forget_time(const CoordinatorOptions& options,
                                     const CoordinatorRecord& record, const Member& member) {
  if (options.forget_after.count() == 0 || !member.peer.empty() || member.has_left ||
      owes_withdrawal(record, member))
    return std::nullopt;
  return member.lost + options.forget_after;
}

Error withdrawal_owed(const CoordinatorRecord& record, const std::string& sidecar) {
  return Error(
      ErrorCode::kRefused,
      fmt::format("sidecar '{}' has not acknowledged that {} was withdrawn, so its engines "
                  "may still serve that version, and a later rollback would be reported "
                  "as complete without it: start the sidecar again, or stop its engines "
                  "and use --force",
                  sidecar, record.withdrawn.back().to_string()));
}

}  // namespace wsync::coordinator
