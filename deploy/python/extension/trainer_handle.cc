#include "deploy/python/extension/trainer_handle.h"

#include <thread>
#include <utility>

namespace wsync::python {

Failure failure_of(wsync_code code) {
  if (code == WSYNC_OK) return {};
  return {code, wsync_trainer_error()};
}

Failure Handle::call(const Use& use, Token& token) {
  // The locks of a child may be held by threads that it does not have.
  if (!is_here()) return is_forked();
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return closed();
    ++waited_for_;
  }
  Failure failure = failure_of(use(trainer_));
  wsync_trainer* ended = nullptr;
  {
    const std::lock_guard lock(mutex_);
    token.has_ended = true;
    if (!token.is_background && --waited_for_ == 0) idle_.notify_all();
    if (token.is_background && --background_ == 0 && is_left_) std::swap(ended, trainer_);
  }
  wsync_trainer_destroy(ended);
  return failure;
}

void Handle::to_background(Token& token) {
  const std::lock_guard lock(mutex_);
  if (token.has_ended || token.is_background) return;
  token.is_background = true;
  ++background_;
  if (--waited_for_ == 0) idle_.notify_all();
}

void Handle::close() {
  if (!is_here()) return;
  wsync_trainer* ended = nullptr;
  {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    idle_.wait(lock, [&] { return waited_for_ == 0; });
    if (background_ == 0)
      std::swap(ended, trainer_);
    else
      is_left_ = true;
  }
  wsync_trainer_destroy(ended);
}

Failure Task::run(std::shared_ptr<Handle> handle, Handle::Use use, Handle::Use drop,
                  std::shared_ptr<Task>* left) {
  auto task = std::make_shared<Task>();
  {
    const WithoutGil unlocked;
    const WithoutSignals blocked;
    std::thread([task, handle, use = std::move(use), drop = std::move(drop)] {
      Failure failure = handle->call(use, task->token_);
      std::unique_lock lock(task->mutex_);
      task->is_done_ = true;
      task->failure_ = std::move(failure);
      task->done_.notify_all();
      if (task->is_dropped_ && !task->failure_ && drop) {
        lock.unlock();
        (void)handle->call(drop);
        lock.lock();
      }
      task->is_settled_ = true;
      task->done_.notify_all();
    }).detach();
  }
  try {
    while (!task->wait_slice()) {
      check_signals();
      if (handle->is_closed()) raise(Handle::closed());
    }
  } catch (...) {
    if (task->drop_it()) {
      handle->to_background(task->token_);
      if (left != nullptr) *left = task;
      throw;
    }
    // It was done in the meantime. Then its result counts, except for the exception.
    if (!task->failure_ && drop) (void)handle->call(drop);
    throw;
  }
  return task->failure_;
}

void Task::settle(const Handle& handle) {
  while (true) {
    {
      const WithoutGil unlocked;
      std::unique_lock lock(mutex_);
      if (done_.wait_for(lock, kSlice, [&] { return is_settled_; })) return;
    }
    check_signals();
    if (handle.is_closed()) raise(Handle::closed());
  }
}

}  // namespace wsync::python
