#include "shared/loop/loop.h"

#include <cerrno>
#include <utility>

#include "shared/base/check.h"
#include "shared/loop/loop_state.h"

namespace wsync {
namespace {

void run_posted(uv_async_t* wake) {
  Loop& loop = *static_cast<Loop*>(wake->data);
  Loop::State& state = loop.state();
  std::vector<Loop::State::Posted> tasks;
  {
    const std::lock_guard lock(state.mutex);
    tasks.swap(state.posted);
  }
  for (auto& [task, made] : tasks) {
    const CallbackTime time(loop, {.kind = "posted task", .made = made});
    task();
    task = {};  // releases what it owns now, not after the following tasks
  }
}

}  // namespace

Result<std::unique_ptr<Loop>> Loop::create() {
  auto state = std::make_unique<State>();
  state->owner = std::this_thread::get_id();
  if (const int error = uv_loop_init(&state->loop); error != 0)
    return fail_errno("create an event loop", -error);
  if (const int error = uv_async_init(&state->loop, &state->wake, run_posted); error != 0) {
    uv_loop_close(&state->loop);
    return fail_errno("create an event loop", -error);
  }
  auto loop = std::unique_ptr<Loop>(new Loop(std::move(state)));
  loop->state().wake.data = loop.get();
  return loop;
}

Loop::Loop(std::unique_ptr<State> state) : state_(std::move(state)) {}

Loop::~Loop() {
  // Destroying a task may destroy objects of the loop, or post new tasks. Repeat until none is
  // left.
  for (bool more = true; more;) {
    std::vector<State::Posted> dropped;
    {
      const std::lock_guard lock(state_->mutex);
      dropped.swap(state_->posted);
    }
    more = !dropped.empty();
  }
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->wake), nullptr);
  // Two iterations run every close callback. They must not wait: a handle that is still open would
  // keep a waiting iteration from returning.
  for (int turn = 0; turn < 2; ++turn) uv_run(&state_->loop, UV_RUN_NOWAIT);
  WSYNC_CHECK(uv_loop_close(&state_->loop) == 0,
              "a timer, watcher, signal handler or connection outlived its loop");
}

void Loop::run() {
  state_->owner = std::this_thread::get_id();
  state_->run_queue.open();
  uv_run(&state_->loop, UV_RUN_DEFAULT);
  state_->run_queue.close();
}

void Loop::stop() {
  // Posted, because libuv allows only uv_async_send() from other threads.
  post([this] { uv_stop(&state_->loop); });
}

void Loop::post(Task task, std::source_location made) {
  const std::lock_guard lock(state_->mutex);
  state_->posted.push_back({.task = std::move(task), .made = made});
  uv_async_send(&state_->wake);
}

LoopLag Loop::lag() const noexcept {
  return {.longest = std::chrono::nanoseconds(state_->longest_ns.load(std::memory_order_relaxed)),
          .slow_callbacks = state_->slow_callbacks.load(std::memory_order_relaxed)};
}

bool Loop::in_loop() const noexcept { return state_->owner.load() == std::this_thread::get_id(); }

}  // namespace wsync
