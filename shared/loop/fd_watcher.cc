#include "shared/loop/fd_watcher.h"

#include <utility>

#include "shared/base/check.h"
#include "shared/loop/loop_state.h"

namespace wsync {

struct FdWatcher::State {
  Loop& loop;
  std::function<void(FdEvents)> on_event;
  std::source_location made;
  FdEvents wanted;
  uv_poll_t handle{};

  static void event(uv_poll_t* handle, int status, int events) {
    auto& state = *static_cast<State*>(handle->data);
    // An error is reported as the awaited events. The following read or write returns the error
    // itself.
    const FdEvents found{
        .readable = status != 0 ? state.wanted.readable : (events & UV_READABLE) != 0,
        .writable = status != 0 ? state.wanted.writable : (events & UV_WRITABLE) != 0};
    const CallbackTime time(state.loop, {.kind = "descriptor watcher", .made = state.made});
    state.on_event(found);
  }
};

Result<std::unique_ptr<FdWatcher>> FdWatcher::create(Loop& loop, int fd,
                                                     std::function<void(FdEvents)> on_event,
                                                     std::source_location made) {
  WSYNC_CHECK(loop.in_loop(), "watchers belong to the loop's thread");
  auto state = std::unique_ptr<State>(
      new State{.loop = loop, .on_event = std::move(on_event), .made = made, .wanted = {}});
  if (const int error = uv_poll_init(&loop.state().loop, &state->handle, fd); error != 0)
    return fail_errno("watch a descriptor", -error);
  state->handle.data = state.get();
  return std::unique_ptr<FdWatcher>(new FdWatcher(state.release()));
}

FdWatcher::~FdWatcher() {
  WSYNC_CHECK(state_->loop.in_loop(), "watchers belong to the loop's thread");
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->handle),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

void FdWatcher::watch(FdEvents wanted) {
  WSYNC_CHECK(state_->loop.in_loop(), "watchers belong to the loop's thread");
  if (wanted.readable == state_->wanted.readable && wanted.writable == state_->wanted.writable)
    return;
  state_->wanted = wanted;
  const int events = (wanted.readable ? UV_READABLE : 0) | (wanted.writable ? UV_WRITABLE : 0);
  if (events == 0)
    uv_poll_stop(&state_->handle);
  else
    uv_poll_start(&state_->handle, events, State::event);
}

}  // namespace wsync
