// EngineScrub: a scrub of weights that only the engine can reach (Engine::read_tensor()). The calls
// are made on the thread that serves the link, as every callback, some of them in each poll(). So
// nothing has to be stopped before the weights change: what changes them is done on the same
// thread, between two calls.
//
// What a call takes is taken from whatever that thread does otherwise, in many engines from their
// steps. So the time of the calls is measured, not the processor time, and is at most a share of
// all time. A call that does not return holds the link up, as every callback that does not return.
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/scrub_pass.h"
#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::engine {

class EngineScrub {
 public:
  // The calls of one read() begin within this time. It is short compared with a step of an engine.
  static constexpr std::chrono::milliseconds kBurst{1};

  // `engine` is borrowed and must outlive this object. `clock`: for tests.
  explicit EngineScrub(Engine& engine, std::function<TimePoint()> clock = now)
      : engine_(engine), clock_(std::move(clock)) {}

  // Begins this pass in place of another one. Its tensors have no memory. What an earlier pass has
  // used of the time still counts.
  void begin(ScrubPass pass, std::uint32_t share_ppm);
  // Ends the pass; the report says why. Without a pass it does nothing.
  void end(std::string why);
  // The same without a report.
  void drop();

  // Whether the rank serves. Without it nothing is read or reported, and a pass waits.
  void set_serving(bool serving) { serving_ = serving; }
  // When read() is to be called next; std::nullopt: not before another call of this class.
  [[nodiscard]] std::optional<TimePoint> due() const;
  // Reads some blocks if it is time for them. Begins no further one when `has_event` says that
  // something waits for this thread. An error of the engine ends the pass, and is its report.
  void read(const std::function<bool()>& has_event);
  // The answer for the sidecar, once: the sums if the pass is complete and the rank serves, or why
  // it has ended.
  [[nodiscard]] std::optional<control::Scrubbed> take_report();

 private:
  [[nodiscard]] Result<> read_block();

  Engine& engine_;
  const std::function<TimePoint()> clock_;
  std::optional<ScrubPass> pass_;
  std::optional<control::Scrubbed> failure_;
  bool is_reported_ = false;          // pass_
  std::vector<std::byte> buffer_;     // of one block; none without a pass
  std::chrono::nanoseconds used_{0};  // by pass_
  TimePoint due_{};
  std::uint32_t share_ppm_ = 1;
  bool serving_ = false;
};

}  // namespace wsync::engine
