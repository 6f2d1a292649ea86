// Events. Work of a stream completes them.
#pragma once

#include <atomic>
#include <memory>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

// "The work before the newest record is complete" is completed >= recorded.
struct EventState {
  std::uint64_t context = 0;
  std::atomic<std::uint64_t> recorded = 0;
  std::atomic<std::uint64_t> completed = 0;
};

// An event of this process; the mutex is not held.
[[nodiscard]] CUresult find_event(const char* name, CUevent handle,
                                  std::shared_ptr<EventState>& event);

}  // namespace emulated_cuda
