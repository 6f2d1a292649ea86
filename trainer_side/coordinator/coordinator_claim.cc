// Coordinator: which fleet this is, how its fence is claimed, what is stored before anything is
// told, and which decision it goes on from.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::publish {
// A sidecar that has taken no decision may follow this coordinator into its fleet.
void Coordinator::foreign_hello(const PeerMessage& event, const control::Hello& hello) {
  if (hello.decision.none()) {
    PeerMessage unbound = event;
    unbound.envelope.fence = {};
    on_hello(unbound, hello);
    return;
  }
  const control::Fence& fence = event.envelope.fence;
  if (!claim_.may_change_fleet(log_)) {
    claim_.refuse(
        context_, event.peer,
        fmt::format(
            "sidecar '{}' cannot join: it belongs to fleet {}, this coordinator leads fleet "
            "{}; point it at its own coordinator, or, to move it here for good, stop it and "
            "remove its record from its state_dir",
            hello.name, fence.fleet.to_string(), claim_.fleet().to_string()));
    return;
  }
  const std::string why =
      fmt::format("sidecar '{}' has named the fleet that this coordinator leads: {}", hello.name,
                  fence.fleet.to_string());
  context_.emit(Incident{.text = why});
  claim_.change_fleet(record().fence, fence);
  if (claim_.state() != FenceClaimState::kGathering) {
    end_rounds(why);
    claim();
  }
  on_hello(event, hello);
}

void Coordinator::gather_more() {
  if (claim_.gather(context_)) claim();
}

void Coordinator::claim() {
  if (const Result<> begun = claim_.begin(context_, log_); !begun) stop(begun.error());
}

void Coordinator::claim_deadline() {
  if (claim_.state() == FenceClaimState::kGathering)
    gather_more();
  else
    finish_claim();
}

void Coordinator::finish_claim() {
  if (!claim_.finish(context_)) return;
  if (!follow_newest()) {
    context_.emit(Ready{.fence = record().fence, .target = record().target});
    for (auto& [name, member] : context_.roster.members()) catch_up(member);
    return;
  }
  context_.emit(Ready{.fence = record().fence, .target = log_.pending()->target});
}

// ---- what is stored ----

bool Coordinator::waits_for_store(const CoordinatorEvent& event) const {
  if (!log_.is_storing()) return false;
  // A request to cancel is answered at once: what is being stored cannot be stopped any more.
  return !std::holds_alternative<Stored>(event.what) &&
         !std::holds_alternative<CoordinatorTick>(event.what) &&
         !std::holds_alternative<CancelRequested>(event.what);
}

void Coordinator::on(const Stored& event) {
  const StoreOutcome outcome = log_.handle(context_, event);
  if (outcome.failure) return not_stored(outcome);
  if (outcome.ended == StoreOutcome::Ended::kClaim) {
    names_.note_seen(record().target);
    claim_.handle_stored(context_, record());
  }
  if (outcome.ended == StoreOutcome::Ended::kDecision) decision_stored(outcome.rollback);
}

void Coordinator::not_stored(const StoreOutcome& outcome) {
  const std::string& why = outcome.failure->message();
  if (outcome.rollback) refuse_rollback(*outcome.rollback, why);
  if (outcome.failure->code() == ErrorCode::kFenced || outcome.ended == StoreOutcome::Ended::kClaim)
    return stop(*outcome.failure);
  if (outcome.rollback) return;
  if (round_) return abort_round(why);
  context_.emit(Incident{.text = why});
  log_.follow_later(context_.now);
  drop_unneeded();
  start_waiting();
}

}  // namespace wsync::publish
