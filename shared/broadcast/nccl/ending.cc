#include "shared/broadcast/nccl/ending.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace wsync::collective::nccl {

bool ends_in_time(std::function<void()> call, TimePoint deadline) {
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool come = false;
  };
  const auto end = std::make_shared<End>();
  std::thread thread([end, call = std::move(call)]() mutable {
    call();
    call = nullptr;  // destroy the captured objects before the end is signalled
    const std::lock_guard lock(end->mutex);
    end->come = true;
    end->changed.notify_all();
  });
  {
    std::unique_lock lock(end->mutex);
    if (!end->changed.wait_until(lock, steady_time(deadline), [&] { return end->come; })) {
      thread.detach();
      return false;
    }
  }
  thread.join();
  return true;
}

}  // namespace wsync::collective::nccl
