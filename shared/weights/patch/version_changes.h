// VersionChanges: what changes from one version to another one of the same layout, bucket by
// bucket. A trainer or a sidecar holds it in place of the bytes of a version.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/version.h"

namespace wsync::patch {

// For each bucket of the plan its leaf changes (shared/weights/patch/leaf_changes.h).
using ChangedBuckets = std::vector<std::shared_ptr<const Bytes>>;

// The bytes of the buckets are shared with sources that send them, so they are never changed.
struct VersionChanges {
  Version base;
  std::shared_ptr<const LeafTable> leaves;  // of the plan's buckets
  std::shared_ptr<const Layout> blocks;
  ChangedBuckets buckets;
  [[nodiscard]] std::uint64_t bytes() const noexcept;
};

// Writes the bytes of the base with the changes into other memory of the same size, with so many
// threads. `sums`: those that all leaves have then. kDigestMismatch with the block if the base, or
// the result, is not that of the changes, and with the bucket if the leaves have other sums;
// kCancelled soon after `stop` is requested. With BeforeRule::kRepeat, a process may have ended
// while it made these changes in `base`. Blocks; any thread.
[[nodiscard]] Result<> copy_with_changes(const VersionChanges& changes,
                                         std::span<const std::byte> base, std::span<std::byte> into,
                                         std::span<const WordSum> sums, unsigned threads,
                                         const std::stop_token& stop,
                                         BeforeRule rule = BeforeRule::kBase);

// What leads back to the base, of which only the bytes are read that change. Errors as
// copy_with_changes(), but for the sums. Blocks; any thread.
[[nodiscard]] Result<ChangedBuckets> changes_back(const VersionChanges& changes,
                                                  std::span<const std::byte> base, unsigned threads,
                                                  const std::stop_token& stop);

// Changes the bytes of the base in place, and returns what leads back to it. Bytes that do not
// change are not read. Errors as copy_with_changes(), but for the sums; the bytes are then those of
// no version. Blocks; any thread.
[[nodiscard]] Result<ChangedBuckets> change_in_place(const VersionChanges& changes,
                                                     std::span<std::byte> bytes, unsigned threads,
                                                     const std::stop_token& stop);

}  // namespace wsync::patch
