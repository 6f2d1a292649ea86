// What the files of this folder share: the libuv loop behind a Loop. Not for other folders.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <uv.h>
#include <vector>

#include "shared/loop/loop.h"

namespace wsync {

struct Loop::State {
  uv_loop_t loop{};
  uv_async_t wake{};
  std::atomic<std::thread::id> owner;
  std::mutex mutex;
  std::vector<Task> posted;  // guarded by mutex
};

}  // namespace wsync
