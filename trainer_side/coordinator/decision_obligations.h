// Mutual obligations of the coordinator and one sidecar for the newest decision. The coordinator
// sends the decision until the sidecar has answered Decided. The sidecar reports the outcomes of
// its replicas. Until then a replica that must not serve its version is not ready.
//
// The state is in Member. `record` is the record in effect (DecisionLog::record). Thread: confined
// to one thread.
#pragma once

#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

// Whether the sidecar has a newer decision than this coordinator. That decision becomes the target
// as soon as no round is running. Until then nothing is sent to the sidecar.
[[nodiscard]] bool knows_newer(const CoordinatorRecord& record, const Member& member);
// The record of the decision that the sidecar follows: the newest one, or the older one whose
// version it finishes (Member::finishes). The functions below use it, except begin_decision and
// judge.
[[nodiscard]] const CoordinatorRecord& followed(const CoordinatorRecord& record,
                                                const Member& member);
// Whether the decision must be sent to the sidecar, for the first time or again: the sidecar
// has not stored it, and no delivery is in progress at whose end it is sent.
[[nodiscard]] bool is_owed(const CoordinatorRecord& record, const Member& member);
// Sends Decide, and schedules the next attempt: after 1 s, then after twice as long each time, up
// to 30 s. Sends nothing to a sidecar for which knows_newer() is true.
void send_decide(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);

// A new decision is in effect: drops the outcomes of the previous one. Only `judge` for a sidecar
// that finishes an older one.
void begin_decision(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);
// The sidecar follows the newest decision from now on. Does nothing if it does already.
void stop_finishing(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);
// Each returns whether the message belongs to the decision. If not, it is counted as
// dropped.
[[nodiscard]] bool handle(CoordinatorContext& context, const CoordinatorRecord& record,
                          Member& member, const control::Decided& decided);
[[nodiscard]] bool handle(CoordinatorContext& context, const CoordinatorRecord& record,
                          Member& member, const control::Switched& switched);
// Records the sidecar's report about itself.
void handle(CoordinatorContext& context, const CoordinatorRecord& record, Member& member,
            const control::Heartbeat& heartbeat);
// A sidecar has returned while its replicas switch. Determines which of their outcomes its last
// process may have lost. `canary`: UpdateRound::canary_of.
void resume_switch(const CoordinatorRecord& record, Member& member, const control::Hello& hello,
                   bool is_new_process, const std::string& canary);
// Counts the outcomes that the last process of the sidecar lost, once all these replicas serve the
// target. Returns true if it did.
[[nodiscard]] bool recover_outcomes(const CoordinatorRecord& record, Member& member);

// Marks replicas to which requests must not be routed as not ready, regardless of their sidecar's
// report.
void judge(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);

}  // namespace wsync::coordinator
