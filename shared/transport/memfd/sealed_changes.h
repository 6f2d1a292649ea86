// The changes of a version, as one process of a host gives them to another: sealed memory with a
// frame `changes` for each bucket, in order, and after each the bucket's leaf changes and the
// digest. These are the bytes that a stream has for a sink that wants the changes alone.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/sealed_memory.h"
#include "shared/transport/offered.h"
#include "shared/transport/stream.h"

namespace wsync::transport::memfd {

// How many bytes of changes a request for changes alone wants at most, of all buckets.
[[nodiscard]] std::uint64_t changes_wanted(const FetchRequest& wanted);

// The size of the changes of a version of which all buckets are ready.
[[nodiscard]] std::uint64_t changes_bytes(const Offered& offered);

// Writes the changes of a version that is held as its changes alone, and of which all buckets are
// ready. Errors as SealedMemory::create(). Blocks: it copies the changes.
[[nodiscard]] Result<SealedMemory> seal_changes(const Offered& offered);

// Reads the changes of a version that is wanted as changes alone, and proves them against the base
// of the request. kInvalidInput with the broken rule if the bytes are not those of seal_changes()
// for this request; kDigestMismatch with the bucket if the changes do not fit the base. Blocks, and
// uses up to `threads` threads.
[[nodiscard]] Result<std::vector<ArrivedBucket>> read_changes(const FetchRequest& wanted,
                                                              std::span<const std::byte> bytes,
                                                              unsigned threads = 1);

}  // namespace wsync::transport::memfd
