#include "inference_side/reload/pending_outcome.h"

#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::reload {
namespace {

using control::SwitchOutcome;

constexpr std::array<Transition<DebtState>, 12> kDebtTransitions = {{
    {DebtState::kNone, "a decision asks for an outcome", DebtState::kOwed, "set its deadline"},
    {DebtState::kNone, "the replica catches up", DebtState::kNone, ""},
    {DebtState::kOwed, "a newer decision asks for an outcome", DebtState::kOwed,
     "set its deadline"},
    {DebtState::kOwed, "the switch has ended, or its deadline has passed", DebtState::kNone,
     "Done"},
    {DebtState::kOwed, "the replica catches up with a newer decision", DebtState::kNone, ""},
    {DebtState::kNone, "a decision asks for an outcome in turns", DebtState::kDeferred, ""},
    {DebtState::kOwed, "a newer decision asks for an outcome in turns", DebtState::kDeferred, ""},
    {DebtState::kDeferred, "a newer decision asks for an outcome in turns", DebtState::kDeferred,
     ""},
    {DebtState::kDeferred, "a newer decision asks for an outcome", DebtState::kOwed,
     "set its deadline"},
    {DebtState::kDeferred, "the switch begins", DebtState::kOwed, "set its deadline"},
    {DebtState::kDeferred, "the replica serves the target, or cannot switch now", DebtState::kNone,
     "Done"},
    {DebtState::kDeferred, "the replica catches up with a newer decision", DebtState::kNone, ""},
}};

// Returns 0 if one of the parts did not happen.
std::uint64_t between(std::optional<TimePoint> from, std::optional<TimePoint> to) {
  if (!from || !to || *to < *from) return 0;
  return static_cast<std::uint64_t>((*to - *from).count());
}

}  // namespace

std::string_view debt_state_name(DebtState state) noexcept {
  switch (state) {
    case DebtState::kNone:
      return "none";
    case DebtState::kDeferred:
      return "deferred";
    case DebtState::kOwed:
      return "owed";
  }
  return "unknown";
}

TransitionTable debt_transitions() {
  return describe<DebtState>("PendingOutcome", "The outcome of a decision that one replica owes.",
                             kDebtTransitions, debt_state_name);
}

void PendingOutcome::move(DebtState to) {
  WSYNC_CHECK(allows<DebtState>(kDebtTransitions, state_, to),
              fmt::format("an outcome cannot go from {} to {}", debt_state_name(state_),
                          debt_state_name(to)));
  state_ = to;
}

void PendingOutcome::owe(std::optional<TimePoint> deadline) {
  move(deadline ? DebtState::kOwed : DebtState::kNone);
  deadline_ = deadline;
}

void PendingOutcome::defer() {
  move(DebtState::kDeferred);
  deadline_.reset();
}

void PendingOutcome::begin(TimePoint deadline) {
  if (state_ == DebtState::kDeferred) owe(deadline);
}

std::optional<Done> PendingOutcome::settle(const control::Decision& decision, SwitchOutcome outcome,
                                           std::string reason) {
  if (!owed()) return std::nullopt;
  move(DebtState::kNone);
  deadline_.reset();
  Done done{.decision = decision, .outcome = {}};
  done.outcome.outcome = outcome;
  done.outcome.reason = std::move(reason);
  done.outcome.wait_ns = between(pause_sent_, paused_);
  if (outcome == SwitchOutcome::kCommitted || outcome == SwitchOutcome::kRolledBack)
    last_paused_ns_ = done.outcome.paused_ns = between(paused_, resumed_);
  done.outcome.load_ns = between(load_sent_, loaded_);
  done.outcome.bytes = bytes_;
  return done;
}

void PendingOutcome::pause_sent(TimePoint now) {
  pause_sent_ = now;
  paused_.reset();
  load_sent_.reset();
  loaded_.reset();
  bytes_ = 0;
}

void PendingOutcome::paused(TimePoint now) {
  if (!paused_) paused_ = now;
}

void PendingOutcome::not_paused(TimePoint now) {
  pause_sent_ = paused_ = now;
  load_sent_.reset();
  bytes_ = 0;
}

void PendingOutcome::load_sent(TimePoint now) {
  bytes_ = 0;
  load_sent_ = now;
  loaded_.reset();
}

Result<> PendingOutcome::invariants() const {
  if ((state_ == DebtState::kOwed) != deadline_.has_value())
    return fail(ErrorCode::kInternal,
                "an outcome is owed without a deadline, or has one too early");
  return {};
}

}  // namespace wsync::reload
