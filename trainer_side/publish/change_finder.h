// ChangeFinder: finds what changes from an earlier snapshot while a new one is copied, and makes a
// patch of it. The bytes are compared while the copy has them in the cache anyway, so that nobody
// has to read both versions again to switch engines by what differs. Or the new one is not copied
// at all, and what changes of each bucket is kept in place of its bytes.
//
// It gives up as soon as that is not worth it (shared/weights/patch/worth.h). A snapshot that is
// copied is complete without it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/sealed_memory.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/patch.h"
#include "shared/weights/patch/sum_link.h"
#include "shared/weights/patch/version_changes.h"
#include "shared/weights/patch/worth.h"
#include "trainer_side/publish/snapshot.h"
#include "trainer_side/publish/weight_source.h"

namespace wsync::publish {

class ChangeFinder {
 public:
  // `base`: a snapshot with the layout of the new one. Some bytes are compared first, if the
  // source can show them, or `written`, the data of the new arena, has them already (otherwise
  // empty). Returns null if a patch would not be worth it. Blocks.
  [[nodiscard]] static std::unique_ptr<ChangeFinder> create(std::shared_ptr<const Snapshot> base,
                                                            const WeightSource& source,
                                                            std::span<const std::byte> written,
                                                            std::uint64_t value_cost);

  // The same for a snapshot that is not copied: only its bytes count, because a rank that gets them
  // by copies is not slower for it.
  [[nodiscard]] static std::unique_ptr<ChangeFinder> create_for_buckets(
      std::shared_ptr<const Snapshot> base, const WeightSource& source);

  // False: it has given up, and nothing needs to be compared any more. Thread: any.
  [[nodiscard]] bool is_comparing() const noexcept { return !worth_.is_exceeded(); }
  // Compares a range of a tensor that begins and ends with a block, or with the tensor. `maker`
  // belongs to the calling thread. Returns the sum of the range, or of a part of it if
  // is_comparing() has become false. Thread: several, each with ranges of its own.
  WordSum compare(patch::BlockMaker& maker, std::uint32_t tensor, std::uint64_t offset,
                  std::span<const std::byte> target);
  // Call it once, after everything has been compared. Returns the patch from the base to the
  // content with these digests; null if it was not worth it or there is no change. Errors:
  // kDigestMismatch if the weights were changed while they were copied, so that what was compared
  // is not what was copied; kResourceExhausted; kIo.
  [[nodiscard]] Result<std::shared_ptr<const SealedMemory>> finish(const ContentDigests& target);
  // The same of create_for_buckets(): what changes in each bucket. kRefused if it was not worth it;
  // kDigestMismatch as finish().
  [[nodiscard]] Result<patch::ChangedBuckets> finish_buckets(const ContentDigests& target);

 private:
  ChangeFinder(std::shared_ptr<const Snapshot> base, std::optional<patch::PatchBuilder> builder,
               std::uint64_t value_cost);
  // Compares some bytes first. kRefused if it will not be worth it.
  [[nodiscard]] Result<> sample(const WeightSource& source,
                                std::span<const std::byte> written) const;
  // Where a byte of a tensor lies in an arena of this layout.
  [[nodiscard]] std::uint64_t arena_offset(std::uint32_t tensor, std::uint64_t offset) const;
  [[nodiscard]] std::optional<patch::Block> make(patch::BlockMaker& maker,
                                                 const patch::BlockPlace& place,
                                                 std::span<const std::byte> target) const;

  const std::shared_ptr<const Snapshot> base_;
  const patch::Layout& layout_;                    // of base_
  std::optional<patch::PatchBuilder> builder_;     // none: for buckets
  std::vector<std::vector<patch::Block>> leaves_;  // for buckets; each leaf has one thread
  patch::PatchWorth worth_;
  patch::SumLink link_;
};

}  // namespace wsync::publish
