// BatchTables: the memory that a stream passes the table and the sums of a batch through, and
// BatchTablePool, which keeps it for the next stream.
//
// cuMemFree and cuMemFreeHost return only when all running kernels of the GPU and of its peers have
// ended, so a stream that ends while another GPU hangs would hang, too. Therefore streams free
// nothing: their tables stay in the pool until the GPU is closed, or its memory is given away
// (Device::free_unused).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "shared/device/cuda/context.h"

namespace wsync::device::cuda {

// Host and device memory of the same size. One batch at a time uses it.
struct BatchTables {
  OwnedPinned host;
  OwnedMemory device;
  std::uint64_t bytes = 0;
};

// Thread: any.
class BatchTablePool {
 public:
  // The smallest tables of at least `bytes` bytes that are kept, or new ones.
  [[nodiscard]] Result<BatchTables> take(const std::shared_ptr<const Context>& context,
                                         std::uint64_t bytes);
  // Keeps tables that no work of a GPU uses any more.
  void give(BatchTables tables);
  // Frees what is kept. Waits for running kernels.
  void clear() noexcept;

 private:
  std::mutex mutex_;
  std::list<BatchTables> kept_;
};

}  // namespace wsync::device::cuda
