#include "shared/transport/tcp/uv_thread.h"

#include <csignal>
#include <future>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::transport::tcp {

std::string uv_sentence(std::string_view what, int code) {
  return fmt::format("{}: {}", what, uv_strerror(code));
}

Result<std::unique_ptr<UvThread>> UvThread::start() {
  std::unique_ptr<UvThread> self(new UvThread);
  if (const int rc = uv_loop_init(&self->loop_); rc != 0)
    return fail(ErrorCode::kResourceExhausted, uv_sentence("make an event loop", rc));
  self->wake_.data = self.get();
  const int rc = uv_async_init(&self->loop_, &self->wake_, [](uv_async_t* handle) {
    static_cast<UvThread*>(handle->data)->drain();
  });
  WSYNC_CHECK(rc == 0, "a fresh loop takes an async handle");
  self->thread_ = std::thread([raw = self.get()] {
    // Signals belong to the owner's loop. With SIGPIPE blocked, a write to a closed peer fails with
    // EPIPE.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    uv_run(&raw->loop_, UV_RUN_DEFAULT);
  });
  return self;
}

UvThread::~UvThread() {
  if (!thread_.joinable()) return;
  post([this] { uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr); });
  thread_.join();
  WSYNC_CHECK(uv_loop_close(&loop_) == 0, "every handle is closed before its loop goes");
}

void UvThread::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  uv_async_send(&wake_);
}

void UvThread::run(const std::function<void()>& work) {
  WSYNC_CHECK(!in_thread(), "the bulk thread does not wait for itself");
  // Shared, because the thread may still be inside set_value() when the waiting thread continues.
  const auto done = std::make_shared<std::promise<void>>();
  post([&work, done] {
    work();
    done->set_value();
  });
  done->get_future().wait();
}

void UvThread::drain() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(work_);
  }
  for (const auto& function : work) function();
}

}  // namespace wsync::transport::tcp
