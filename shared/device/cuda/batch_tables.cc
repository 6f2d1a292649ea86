#include "shared/device/cuda/batch_tables.h"

#include <utility>

namespace wsync::device::cuda {

Result<BatchTables> BatchTablePool::take(const std::shared_ptr<const Context>& context,
                                         std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    auto best = kept_.end();
    for (auto at = kept_.begin(); at != kept_.end(); ++at)
      if (at->bytes >= bytes && (best == kept_.end() || at->bytes < best->bytes)) best = at;
    if (best != kept_.end()) {
      BatchTables tables = std::move(*best);
      kept_.erase(best);
      return tables;
    }
  }
  auto host = WSYNC_TRY(allocate_pinned(context, bytes));
  auto device = WSYNC_TRY(allocate_memory(context, bytes));
  return BatchTables{.host = std::move(host), .device = std::move(device), .bytes = bytes};
}

void BatchTablePool::give(BatchTables tables) {
  if (tables.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(tables));
}

// Without the lock: streams take and give tables meanwhile.
void BatchTablePool::clear() noexcept {
  std::list<BatchTables> gone;
  const std::unique_lock lock(mutex_);
  gone.swap(kept_);
}

}  // namespace wsync::device::cuda
