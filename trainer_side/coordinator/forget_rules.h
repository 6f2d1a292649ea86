// When a coordinator forgets a sidecar that is gone: it is no longer in the roster, in the stored
// record, in status and in the answers to rollbacks. Pure functions.
//
// A sidecar that is gone may have engines that still serve what it gave them. If a version was
// withdrawn that it may not know of, it is the only trace of engines that may serve that version,
// so it is not forgotten by itself. A switch that it has missed is no reason to keep it: if it
// returns, it is a new sidecar that catches up, and its Hello raises the target if its decision is
// newer.
#pragma once

#include <optional>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/coordinator_record.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

// Whether the sidecar has stored every version that the record names as withdrawn, as its Hello
// reports.
[[nodiscard]] bool knows_withdrawn(const CoordinatorRecord& record, const control::Hello& hello);
// Whether it may not know of a withdrawn version.
[[nodiscard]] bool owes_withdrawal(const CoordinatorRecord& record, const Member& member);
// When it is forgotten, unless it returns or its round still runs then; std::nullopt while it is
// connected, while it owes a withdrawal, and if `forget_after` is 0.
[[nodiscard]] std::optional<TimePoint> forget_time(const CoordinatorOptions& options,
                                                   const CoordinatorRecord& record,
                                                   const Member& member);
// The refusal of a request to forget a sidecar that may not know of a withdrawn version.
[[nodiscard]] Error withdrawal_owed(const CoordinatorRecord& record, const std::string& sidecar);

}  // namespace wsync::coordinator
