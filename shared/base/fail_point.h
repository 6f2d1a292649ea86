// Fail points: named places where tests can kill or suspend the process. In contrast to a planted
// fault (planted.h), the product itself does nothing wrong: a process can be lost anywhere, and a
// fail point only selects the place. Fail points are always compiled in and cost one load if none
// is armed.
#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync {

// Arms the fail point `name`: this process kills itself (SIGKILL) when it reaches it for the
// `hits`-th time from now, counted from 1, or sends itself another signal. Only one fail point is
// armed at a time. Call this before other threads reach fail points.
void arm_fail_point(std::string name, std::uint64_t hits, int signal = SIGKILL);
// Those of a trainer (compared, made), a sidecar (received, read, summed) and an engine (opened,
// run, written) on the way of a patch. "run" is reached after each few blocks that are written.
// copy_changed: of a sidecar or a trainer that changes its copy in place, after each bucket.
// arena_lent: of a sidecar whose trainer may change its arena from now on. versions_exchanged: of a
// trainer that has changed its arena, and has told nobody.
inline constexpr std::array<std::string_view, 11> kPatchFailPoints{
    "patch_compared", "patch_made",   "patch_received",    "patch_read",
    "patch_summed",   "patch_opened", "patch_run",         "patch_written",
    "copy_changed",   "arena_lent",   "versions_exchanged"};
// Arms the point that WSYNC_FAIL_POINT=POINT:HITS names, one of kPatchFailPoints, if it is set.
// With POINT:HITS:stop this process suspends itself there (SIGSTOP) in place of killing itself.
// kInvalidInput if it says anything else. Call it before other threads reach fail points.
[[nodiscard]] Result<> arm_fail_point_of_environment();
// Returns whether the next thread that reaches this fail point is killed.
[[nodiscard]] bool fail_point_is_next(std::string_view name) noexcept;
// Marks a fail point. Thread: any.
void fail_point(std::string_view name) noexcept;

}  // namespace wsync
