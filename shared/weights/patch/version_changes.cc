#include "shared/weights/patch/version_changes.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/patch/leaf_changes.h"

namespace wsync::patch {
namespace {

using BucketViews = std::vector<BlockView>;

// Calls `change` for each bucket with its blocks, each once, until one fails.
Result<> for_each_bucket(
    const VersionChanges& changes, unsigned threads, const std::stop_token& stop,
    const std::function<Result<>(std::size_t bucket, const BucketViews& blocks)>& change) {
  std::mutex mutex;
  std::optional<Error> failure;  // the first one; under mutex
  std::atomic<bool> is_over = false;
  std::atomic<std::size_t> next = 0;
  const auto one = [&](std::size_t bucket) -> Result<> {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "the copy is no longer needed");
    const auto blocks = WSYNC_TRY(read_leaf_changes(*changes.blocks, changes.leaves->bucket(bucket),
                                                    *changes.buckets[bucket]));
    return change(bucket, blocks);
  };
  const auto helpers = helpers_for(threads);
  for_each_index(helpers.get(), std::max(1U, threads), [&](std::size_t /*thread*/) {
    for (std::size_t bucket = next++; bucket < changes.buckets.size() && !is_over;
         bucket = next++) {
      auto changed = one(bucket);
      if (changed) continue;
      is_over = true;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::move(changed).error();
    }
  });
  if (failure) return fail(std::move(*failure));
  return {};
}

}  // namespace

std::uint64_t VersionChanges::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& bucket : buckets) total += bucket ? bucket->size() : 0;
  return total;
}

Result<> copy_with_changes(const VersionChanges& changes, std::span<const std::byte> base,
                           std::span<std::byte> into, std::span<const WordSum> sums,
                           unsigned threads, const std::stop_token& stop, BeforeRule rule) {
  return for_each_bucket(
      changes, threads, stop, [&](std::size_t bucket, const BucketViews& blocks) -> Result<> {
        const auto leaves = changes.leaves->bucket(bucket);
        const auto found =
            WSYNC_TRY(apply_leaf_changes(*changes.blocks, leaves, blocks, base, into, rule));
        if (std::ranges::equal(found, sums.subspan(changes.leaves->first(bucket), leaves.size())))
          return {};
        return fail(ErrorCode::kDigestMismatch,
                    fmt::format("bucket {}: bytes of {} that do not change are not those that were "
                                "published: its copy is damaged",
                                bucket, changes.base.to_string()));
      });
}

Result<ChangedBuckets> changes_back(const VersionChanges& changes, std::span<const std::byte> base,
                                    unsigned threads, const std::stop_token& stop) {
  ChangedBuckets back(changes.buckets.size());
  WSYNC_TRY(for_each_bucket(
      changes, threads, stop, [&](std::size_t bucket, const BucketViews& blocks) -> Result<> {
        back[bucket] = std::make_shared<const Bytes>(WSYNC_TRY(
            reverse_leaf_changes(*changes.blocks, changes.leaves->bucket(bucket), blocks, base)));
        return {};
      }));
  return back;
}

Result<ChangedBuckets> change_in_place(const VersionChanges& changes, std::span<std::byte> bytes,
                                       unsigned threads, const std::stop_token& stop) {
  ChangedBuckets back(changes.buckets.size());
  WSYNC_TRY(for_each_bucket(
      changes, threads, stop, [&](std::size_t bucket, const BucketViews& blocks) -> Result<> {
        const auto leaves = changes.leaves->bucket(bucket);
        back[bucket] = std::make_shared<const Bytes>(
            WSYNC_TRY(exchange_leaf_changes(*changes.blocks, leaves, blocks, bytes)));
        fail_point("copy_changed");
        return {};
      }));
  return back;
}

}  // namespace wsync::patch
