#include "shared/loop/process_watch.h"

#include <utility>

#include "shared/base/process_fd.h"

namespace wsync {

Result<std::unique_ptr<ProcessWatch>> ProcessWatch::create(Loop& loop, pid_t pid,
                                                           std::function<void()> on_end,
                                                           std::source_location made) {
  // Not inside the new expression: an early return there would leak its memory.
  UniqueFd process = WSYNC_TRY(open_process(pid));
  std::unique_ptr<ProcessWatch> watch(new ProcessWatch(std::move(process)));
  // The watcher stops first, because it would call again and again: a pidfd stays readable.
  watch->watcher_ = WSYNC_TRY(FdWatcher::create(
      loop, watch->fd_.get(),
      [self = watch.get(), on_end = std::move(on_end)](FdEvents) {
        self->watcher_->watch({});
        const auto notify = on_end;  // the call may destroy this object
        notify();
      },
      made));
  watch->watcher_->watch({.readable = true});
  return watch;
}

bool ProcessWatch::has_ended() const noexcept { return process_has_ended(fd_); }

}  // namespace wsync
