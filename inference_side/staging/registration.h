// Registration: whether the coordinator has welcomed this sidecar, and when the next Hello is due.
//
// Thread: one. Pure.
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
  kRegistering,  // a Hello is repeated until a Welcome comes
  kWelcomed,
};

[[nodiscard]] std::string_view registration_state_name(RegistrationState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable registration_transitions();

class Registration {
 public:
  // `retry`: time between two Hellos that nobody answers.
  explicit Registration(std::chrono::milliseconds retry) : retry_(retry) {}

  [[nodiscard]] bool welcomed() const noexcept { return state_ == RegistrationState::kWelcomed; }
  // When the next Hello is due; none while it is welcomed.
  [[nodiscard]] const std::optional<TimePoint>& next_wake() const noexcept { return hello_at_; }

  // The port has connected: the caller sends a Hello now.
  void connect();
  // The port has lost the coordinator.
  void lose(TimePoint now);
  // A Hello is sent under this fence. Returns its request number.
  [[nodiscard]] std::uint64_t send(const control::Fence& fence, TimePoint now);
  // A Welcome has come; `request` is the one that it answers, `fence` the stored one. True: it asks
  // for another Hello.
  [[nodiscard]] bool welcome(std::uint64_t request, const control::Fence& fence);

  // A copy was lost: a Hello has to say so when no outcome is due.
  void request_hello() noexcept { hello_requested_ = true; }
  [[nodiscard]] bool hello_requested() const noexcept { return hello_requested_; }
  // Whether a Hello that nobody has answered is to be repeated now.
  [[nodiscard]] bool is_due(TimePoint now) const;

  // kInternal with the first broken rule: a welcomed sidecar repeats no Hello.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(RegistrationState to);

  std::chrono::milliseconds retry_;
  RegistrationState state_ = RegistrationState::kIdle;
  std::optional<TimePoint> hello_at_;
  bool hello_requested_ = false;
  std::uint64_t request_ = 0;  // of the last Hello
  control::Fence fence_;       // of the last Hello
};

}  // namespace wsync::staging
