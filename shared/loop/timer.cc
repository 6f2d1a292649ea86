#include "shared/loop/timer.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/loop/loop_state.h"

namespace wsync {

struct Timer::State {
  Loop& loop;
  std::function<void()> on_fire;
  std::source_location made;
  uv_timer_t handle{};

  static void fire(uv_timer_t* handle) {
    auto& state = *static_cast<State*>(handle->data);
    const CallbackTime time(state.loop, {.kind = "timer", .made = state.made});
    state.on_fire();
  }
  void start(std::uint64_t delay_ms, std::uint64_t repeat_ms) {
    WSYNC_CHECK(loop.in_loop(), "timers belong to the loop's thread");
    uv_update_time(&loop.state().loop);  // the loop's clock is old after a long callback
    uv_timer_start(&handle, fire, delay_ms, repeat_ms);
  }
};

Timer::Timer(Loop& loop, std::function<void()> on_fire, std::source_location made)
    : state_(new State{.loop = loop, .on_fire = std::move(on_fire), .made = made}) {
  WSYNC_CHECK(loop.in_loop(), "timers belong to the loop's thread");
  uv_timer_init(&loop.state().loop, &state_->handle);
  state_->handle.data = state_;
}

Timer::~Timer() {
  WSYNC_CHECK(state_->loop.in_loop(), "timers belong to the loop's thread");
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->handle),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

void Timer::start(std::chrono::nanoseconds delay) {
  if (delay <= std::chrono::nanoseconds(0)) return state_->start(0, 0);
  // libuv's clock is truncated to whole milliseconds. One more than the ceiling is never early.
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(delay).count() + 1;
  state_->start(static_cast<std::uint64_t>(ms), 0);
}

void Timer::start_repeating(std::chrono::milliseconds interval) {
  const auto ms = static_cast<std::uint64_t>(std::max<std::int64_t>(interval.count(), 1));
  state_->start(ms, ms);
}

void Timer::stop() {
  WSYNC_CHECK(state_->loop.in_loop(), "timers belong to the loop's thread");
  uv_timer_stop(&state_->handle);
}

bool Timer::active() const noexcept {
  return uv_is_active(reinterpret_cast<const uv_handle_t*>(&state_->handle)) != 0;
}

}  // namespace wsync
