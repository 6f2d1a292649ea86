// A patch in one piece of memory: its index, then its buckets one after the other, as processes of
// a host share it.
//
// Thread: the one that calls, and those of the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "shared/base/error.h"
#include "shared/base/sealed_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/patch.h"

namespace wsync::patch {

// Limit of a bucket of a patch that engines read: one thread reads a bucket.
inline constexpr std::uint64_t kPatchBucketBytes = limits::kBucketBytesMin;

// Writes the patch to sealed memory. Errors as SealedMemory::create(). Blocks.
[[nodiscard]] Result<std::shared_ptr<const SealedMemory>> share_patch(const Patch& patch);

// Returns the contents that a patch leads from and to, of which only the index is read. Errors as
// Index::parse(), and kInvalidInput if the memory ends within the index.
[[nodiscard]] Result<Link> link_of(std::span<const std::byte> memory);

// Reads and checks all of it. The buckets are read by the calling thread and those of `helpers`,
// which may be null. The layout and the bytes are borrowed and must outlive the reader.
// kInvalidInput if the memory ends within the patch or goes on behind it; otherwise errors as
// PatchReader::open().
[[nodiscard]] Result<PatchReader> read_mapped(const Layout& layout,
                                              std::span<const std::byte> memory,
                                              ThreadPool* helpers);

}  // namespace wsync::patch
