// Asker: lets other threads run a question on a loop's thread and wait for the answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/format.h"
#include "shared/loop/loop.h"

namespace wsync {

// Thread: ask() may be called from any thread but the loop's, by several at once. The rest belongs
// to the loop's thread.
// Outlives: the loop outlives this object, which outlives every ask().
class Asker {
 public:
  explicit Asker(Loop& loop) : loop_(loop) {}
  ~Asker() { close(); }
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  // No question runs after this call. Pending questions end with kCancelled.
  void close() {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->changed.notify_all();
  }

  // Runs `question` on the loop and returns its answer. kDeadline if the loop did not answer in
  // time (it may still run the question later and drop the answer); kCancelled if close() came
  // first.
  template <class Answer>
  [[nodiscard]] Result<Answer> ask(std::function<Answer()> question,
                                   std::chrono::milliseconds wait_limit,
                                   std::source_location made = std::source_location::current()) {
    auto answer = std::make_shared<std::optional<Answer>>();
    loop_.post(
        [state = state_, answer, question = std::move(question)] {
          {
            const std::lock_guard lock(state->mutex);
            if (state->closed) return;
          }
          // Without the lock: close() runs on this thread, so it cannot come in between.
          std::optional<Answer> found(question());
          const std::lock_guard lock(state->mutex);
          *answer = std::move(found);
          state->changed.notify_all();
        },
        made);
    std::unique_lock lock(state_->mutex);
    const bool woken = state_->changed.wait_for(
        lock, wait_limit, [&] { return state_->closed || answer->has_value(); });
    if (answer->has_value()) return std::move(**answer);
    if (woken) return fail(ErrorCode::kCancelled, "this process is shutting down");
    return fail(ErrorCode::kDeadline,
                fmt::format("the loop of this process has not answered for {} ms: it is stuck or "
                            "overloaded",
                            wait_limit.count()));
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool closed = false;
  };
  Loop& loop_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace wsync
