// Registration: whether the coordinator has welcomed this sidecar, and when the next Hello is due.
//
// A Hello or its Welcome may be lost on a connection that stays open. So a Hello is repeated until
// a Welcome answers it, also one that a welcomed sidecar has sent: under a new fence, or because it
// has lost a copy. A refusal does not end that: the name may become free.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/control/envelope.h"

namespace wsync::staging {

enum class RegistrationState : std::uint8_t {
  kIdle,         // the port has not connected yet
  kRegistering,  // no Welcome has arrived since the last loss
  kWelcomed,     // perhaps by an older Welcome: the last Hello may not be answered yet
};

[[nodiscard]] std::string_view registration_state_name(RegistrationState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable registration_transitions();

class Registration {
 public:
  // `retry`: time between two unanswered Hellos.
  explicit Registration(std::chrono::milliseconds retry) : retry_(retry) {}

  [[nodiscard]] bool welcomed() const noexcept { return state_ == RegistrationState::kWelcomed; }
  // Whether a Welcome answers a Hello of this connection. One that was sent on an earlier
  // connection may come late, and from another coordinator.
  [[nodiscard]] bool is_answer(std::uint64_t request) const noexcept {
    return first_ != 0 && request >= first_;
  }
  // When the last Hello is repeated; std::nullopt when it is answered.
  [[nodiscard]] const std::optional<TimePoint>& next_wake() const noexcept { return hello_at_; }

  // The port has connected: the caller sends a Hello now.
  void connect();
  // The port has lost the coordinator.
  void lose(TimePoint now);
  // A Hello is being sent under this fence. Returns its request number.
  [[nodiscard]] std::uint64_t send(const control::Fence& fence, TimePoint now);
  // A Welcome has arrived. `request` is the Hello that it answers, `fence` the stored fence.
  // Returns true if another Hello must be sent.
  [[nodiscard]] bool welcome(std::uint64_t request, const control::Fence& fence);

  // A copy was lost. A Hello must report this when no outcome is due.
  void request_hello() noexcept { hello_requested_ = true; }
  [[nodiscard]] bool hello_requested() const noexcept { return hello_requested_; }
  // Whether an unanswered Hello must be repeated now.
  [[nodiscard]] bool is_due(TimePoint now) const;

  // Returns kInternal with the first broken rule: a sidecar that is not welcomed repeats its Hello.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(RegistrationState to);

  std::chrono::milliseconds retry_;
  RegistrationState state_ = RegistrationState::kIdle;
  std::optional<TimePoint> hello_at_;
  bool hello_requested_ = false;
  std::uint64_t request_ = 0;  // of the last Hello
  std::uint64_t first_ = 0;    // of the first Hello on this connection; 0: it is still to be sent
  std::uint64_t awaited_ = 0;  // of the first Hello whose answer will do; 0: it is still to be sent
  control::Fence fence_;       // of the last Hello
};

}  // namespace wsync::staging
