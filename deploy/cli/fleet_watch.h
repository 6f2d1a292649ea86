// FleetWatch: polls the status of a coordinator or a sidecar on one connection and reconnects if it
// breaks.
//
// Thread: the loop's; callbacks run on the loop.
// Outlives: the loop outlives it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"

namespace wsync::cli {

// The known state of a fleet. `trouble`: one sentence about why this state may be outdated; empty
// while requests are answered.
struct FleetView {
  std::string address;
  std::optional<control::StatusReply> status;  // newest; none: no reply yet
  TimePoint answered{};                        // arrival time of `status`
  std::string trouble;
};

class FleetWatch {
 public:
  // Called when the view changes: a reply has arrived, or an expected one is missing.
  using OnChange = std::function<void(const FleetView& view)>;
  // Sends a request when connected and then every `interval`. `on_change` is called for each reply.
  // It is called once when the peer is lost, when nobody listens at the address, or when nothing
  // has replied within the first second. `key`: of this command, if the peer has keys. Errors of
  // connect_zmq().
  [[nodiscard]] static Result<std::unique_ptr<FleetWatch>> create(
      Loop& loop, const std::string& address, const std::optional<control::KeyFile>& key,
      std::chrono::milliseconds interval, OnChange on_change);
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
  std::uint64_t request_ = 0;   // id of the newest request
  std::uint64_t answered_ = 0;  // id of the newest answered request
  bool connected_ = false;
  Timer again_;
  Timer nobody_;
  std::unique_ptr<control::DealerPort> port_;
};

}  // namespace wsync::cli
