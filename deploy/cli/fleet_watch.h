// FleetWatch: asks a coordinator (or a sidecar) for its status again and again, on one connection
// that is made anew when it breaks.
//
// Thread: the loop's; callbacks come on the loop.
// Outlives: the loop outlives it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"

namespace wsync::cli {

// What is known of a fleet. `trouble`: why it may not be so any more, one sentence; empty while the
// newest question has been answered.
struct FleetView {
  std::string address;
  std::optional<control::StatusReply> status;  // the newest; none = nobody has answered yet
  TimePoint answered{};                        // when it came
  std::string trouble;
};

class FleetWatch {
 public:
  // A change of the view: an answer has come, or none has.
  using OnChange = std::function<void(const FleetView& view)>;
  // Asks at once and then every `interval`. `on_change` is called for each answer, and once when
  // somebody who has answered, or was to answer for a second, does not. Errors of connect_zmq().
  [[nodiscard]] static Result<std::unique_ptr<FleetWatch>> create(
      Loop& loop, const std::string& address, std::chrono::milliseconds interval,
      OnChange on_change);
  FleetWatch(const FleetWatch&) = delete;
  FleetWatch& operator=(const FleetWatch&) = delete;

  [[nodiscard]] const FleetView& view() const noexcept { return view_; }

 private:
  FleetWatch(Loop& loop, const std::string& address, OnChange on_change);
  void ask();
  void on_message(const control::Envelope& envelope, control::Message message);
  void trouble(const std::string& why);

  FleetView view_;
  OnChange on_change_;
  std::uint64_t request_ = 0;   // the newest
  std::uint64_t answered_ = 0;  // the newest that was answered
  bool connected_ = false;
  Timer again_;
  Timer nobody_;
  std::unique_ptr<control::DealerPort> port_;
};

}  // namespace wsync::cli
