// What the coordinator and one sidecar owe each other for the newest decision: the coordinator
// sends it until the sidecar has said Decided, the sidecar reports the outcomes of its replicas,
// and a replica that must not serve what it serves is not ready meanwhile.
//
// The state is in Member; `record` is what is in force (DecisionLog::record). Thread: one.
#pragma once

#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::publish {

// Whether the sidecar has a newer decision than this coordinator. That becomes the target as soon
// as no round runs. Until then the sidecar is told nothing.
[[nodiscard]] bool knows_newer(const CoordinatorRecord& record, const Member& member);
// Whether the newest decision has to be sent to it, for the first time or again: it has not stored
// it, and no delivery is under way whose end sends it.
[[nodiscard]] bool is_owed(const CoordinatorRecord& record, const Member& member);
// Sends Decide, and notes when it is sent again: after 1 s, then after twice as long each time, at
// most 30 s. Sends nothing to a sidecar that knows_newer().
void send_decide(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);

// A new decision is in force: forgets the outcomes of the one before.
void begin_decision(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);
// Each answers whether the message is about the newest decision; if not, it is counted as dropped.
[[nodiscard]] bool handle(CoordinatorContext& context, const CoordinatorRecord& record,
                          Member& member, const control::Decided& decided);
[[nodiscard]] bool handle(CoordinatorContext& context, const CoordinatorRecord& record,
                          Member& member, const control::Switched& switched);
// Takes over what the sidecar reports of itself.
void handle(CoordinatorContext& context, const CoordinatorRecord& record, Member& member,
            const control::Heartbeat& heartbeat);
// A sidecar has come back while its replicas switch: which of their outcomes its last process may
// have taken with it.
void resume_switch(const CoordinatorRecord& record, Member& member, const control::Hello& hello,
                   bool is_new_process);
// Counts the outcomes that were lost with the last process of the sidecar, when all these replicas
// serve the target by now. True when it did.
[[nodiscard]] bool recover_outcomes(const CoordinatorRecord& record, Member& member);

// Marks replicas that must not be routed to as not ready, whatever their sidecar says of them.
void judge(CoordinatorContext& context, const CoordinatorRecord& record, Member& member);

}  // namespace wsync::publish
