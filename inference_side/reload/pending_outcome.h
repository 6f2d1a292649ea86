// PendingOutcome: the outcome that is owed to the coordinator for a decision, its due time, and the
// durations of the parts of the switch.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "inference_side/reload/switch_events.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::reload {

enum class DebtState : std::uint8_t {
  kNone,      // no outcome is owed
  kDeferred,  // it is owed, and its deadline begins with the switch: the replica waits for its turn
  kOwed,      // the coordinator waits for the outcome of the newest decision
};

[[nodiscard]] std::string_view debt_state_name(DebtState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable debt_transitions();

class PendingOutcome {
 public:
  [[nodiscard]] bool owed() const noexcept { return state_ != DebtState::kNone; }
  [[nodiscard]] bool deferred() const noexcept { return state_ == DebtState::kDeferred; }
  // When the outcome is due, regardless of the state of the switch; std::nullopt if none is owed,
  // or if its deadline has not begun.
  [[nodiscard]] const std::optional<TimePoint>& deadline() const noexcept { return deadline_; }
  [[nodiscard]] bool is_due(TimePoint now) const { return deadline_ && now >= *deadline_; }

  // A decision was made. std::nullopt: the replica only catches up and owes no outcome.
  void owe(std::optional<TimePoint> deadline);
  // A decision was made, and the replica owes an outcome, but waits for its turn first.
  void defer();
  // The switch begins. Sets the deadline of a deferred outcome.
  void begin(TimePoint deadline);
  // The outcome is known. Returns the Done of `decision`, with the measured durations; std::nullopt
  // if no outcome is owed.
  [[nodiscard]] std::optional<Done> settle(const control::Decision& decision,
                                           control::SwitchOutcome outcome, std::string reason);

  // The parts of a switch, in order.
  void pause_sent(TimePoint now);
  void paused(TimePoint now);      // only the first call after pause_sent() counts
  void not_paused(TimePoint now);  // the replica had already stopped, and nothing is loaded
  void load_sent(TimePoint now);
  void load_void() { load_sent_.reset(); }  // the load could not begin
  void add_bytes(std::uint64_t bytes) { bytes_ += bytes; }
  void loaded(TimePoint now) { loaded_ = now; }
  void resumed(TimePoint now) { resumed_ = now; }

  // Bytes loaded in this switch.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // Duration from the last pause to the resume, in the last successful switch.
  [[nodiscard]] std::uint64_t last_paused_ns() const noexcept { return last_paused_ns_; }

  // Returns kInternal unless a deadline exists exactly while an outcome is owed and not deferred.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(DebtState to);

  DebtState state_ = DebtState::kNone;
  std::optional<TimePoint> deadline_;
  std::optional<TimePoint> pause_sent_, paused_, load_sent_, loaded_, resumed_;
  std::uint64_t bytes_ = 0;
  std::uint64_t last_paused_ns_ = 0;
};

}  // namespace wsync::reload
