#include "bench/control/loop_thread.h"

#include <future>
#include <latch>

namespace wsync::bench {

Result<std::unique_ptr<LoopThread>> LoopThread::start(std::function<Result<Guest>(Loop&)> set_up) {
  std::unique_ptr<LoopThread> made(new LoopThread());
  std::promise<Result<Loop*>> ready;
  auto made_ready = ready.get_future();
  made->thread_ = std::jthread([ready = std::move(ready), set_up = std::move(set_up)]() mutable {
    auto loop = Loop::create();
    if (!loop) return ready.set_value(fail(loop.error()));
    auto guest = set_up(**loop);
    if (!guest) return ready.set_value(fail(guest.error()));
    ready.set_value(loop->get());
    (*loop)->run();
    guest->reset();
  });
  const auto loop = WSYNC_TRY(made_ready.get());
  made->loop_ = loop;
  return made;
}

LoopThread::~LoopThread() {
  if (loop_ != nullptr) loop_->stop();
}

void LoopThread::run(const std::function<void()>& work) {
  std::latch done(1);
  loop_->post([&work, &done] {
    work();
    done.count_down();
  });
  done.wait();
}

}  // namespace wsync::bench
