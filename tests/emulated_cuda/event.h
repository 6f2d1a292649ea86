// Events. Work of a stream completes them; processes share those with a SharedPage.
#pragma once

#include <atomic>
#include <memory>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

// "The work before the newest record is complete" is completed >= recorded.
struct EventState {
  std::uint64_t context = 0;
  unsigned flags = 0;
  std::shared_ptr<Storage> storage;  // of an interprocess event
  bool imported = false;
  int exporter = 0;
  std::atomic<std::uint64_t> own_recorded = 0;
  std::atomic<std::uint64_t> own_completed = 0;

  [[nodiscard]] std::atomic<std::uint64_t>& recorded() {
    return storage ? storage->page().recorded : own_recorded;
  }
  [[nodiscard]] std::atomic<std::uint64_t>& completed() {
    return storage ? storage->page().completed : own_completed;
  }
  // The process that exported it has destroyed it.
  [[nodiscard]] bool gone() const { return imported && storage->page().freed != 0; }
};

// An event of this process; the mutex is not held.
[[nodiscard]] CUresult find_event(const char* name, CUevent handle,
                                  std::shared_ptr<EventState>& event);

}  // namespace emulated_cuda
