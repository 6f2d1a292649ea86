// A trainer of the C library that is closed while calls of other threads run, and calls that can be
// left before they end.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <unistd.h>

#include "deploy/python/extension/calls.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace wsync::python {

// Of the last call of this thread.
Failure failure_of(wsync_code code);

// A handle, and the calls that use it.
class Handle {
 public:
  using Use = std::function<wsync_code(wsync_trainer*)>;
  // A call for whose end nobody waits any more is in the background.
  struct Token {
    bool is_background = false;
    bool has_ended = false;
  };

  explicit Handle(wsync_trainer* trainer) : trainer_(trainer) {}
  ~Handle() { close(); }

  // Calls `use` with the handle, from any thread, without the GIL.
  Failure call(const Use& use) {
    Token token;
    return call(use, token);
  }
  Failure call(const Use& use, Token& token);

  // Nobody waits for this call any more, so close() does not either.
  void to_background(Token& token);

  bool is_here() const { return ::getpid() == home_; }

  // Without the GIL: waits for the calls that run, and ends those that check is_closed(). If one is
  // in the background, its end is that of the trainer.
  void close();

  bool is_closed() const {
    if (!is_here()) return false;
    const std::lock_guard lock(mutex_);
    return is_closed_;
  }

  // Of every call in a forked child.
  Failure is_forked() const {
    return forked(WSYNC_INVALID_INPUT, "wsync.Publisher", home_,
                  "send it there what is to be published, or close it there before this process "
                  "makes a wsync.Publisher of its own");
  }
  static Failure closed() { return {kClosed, "the publisher has been closed"}; }

 private:
  const pid_t home_ = ::getpid();
  wsync_trainer* trainer_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable idle_;
  int waited_for_ = 0;
  int background_ = 0;
  bool is_closed_ = false;
  bool is_left_ = false;  // to the last call in the background
};

// A call on a thread of its own, because the library's call waits for a time that the caller must
// be able to cut short.
class Task {
 public:
  // Calls `use` and waits for its end. If a signal handler raises an exception, the handle is
  // closed or the interpreter ends, it waits no longer: `drop` is then called on the other thread,
  // after a `use` that has succeeded, and `left` is set to the task.
  static Failure run(std::shared_ptr<Handle> handle, Handle::Use use, Handle::Use drop,
                     std::shared_ptr<Task>* left = nullptr);

  bool wait_slice() {
    const WithoutGil unlocked;
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, kSlice, [&] { return is_done_; });
  }

  // Waits for the end of a task that was left, with what follows it.
  void settle(const Handle& handle);

 private:
  // Returns false if it is done.
  bool drop_it() {
    const std::lock_guard lock(mutex_);
    is_dropped_ = !is_done_;
    return is_dropped_;
  }

  Handle::Token token_;  // protected by the handle
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  bool is_dropped_ = false;
  bool is_settled_ = false;  // also what follows a dropped one
  Failure failure_;
};

}  // namespace wsync::python
