// A patch in one piece of memory: its index, then its buckets one after the other, as processes of
// a host share it.
//
// Thread: the one that calls, and those of the pool.
#pragma once

#include <cstddef>
#include <span>

#include "shared/base/error.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/patch/patch.h"

namespace wsync::patch {

// Reads and checks all of it. The buckets are read by the calling thread and those of `helpers`,
// which may be null. The layout and the bytes are borrowed and must outlive the reader.
// kInvalidInput if the memory ends within the patch or goes on behind it; otherwise errors as
// PatchReader::open().
[[nodiscard]] Result<PatchReader> read_mapped(const Layout& layout,
                                              std::span<const std::byte> memory,
                                              ThreadPool* helpers);

}  // namespace wsync::patch
