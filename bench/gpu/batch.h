// What an engine copies out of a bucket, with the shapes of a transformer: large matrices, columns
// of others, and norms of some KiB.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/device/device.h"

namespace wsync::bench {

struct BatchPlace {
  const device::Memory* from = nullptr;
  std::uint64_t from_offset = 0;
  device::Memory* to = nullptr;  // null: digests only
  std::uint64_t to_offset = 0;
  std::uint64_t bytes = 0;  // of the bucket, all of which are copied
};

struct Batch {
  std::vector<device::Piece> pieces;
  std::uint32_t sums = 0;  // one for each tensor
};

// Layers of bf16 weights of the largest hidden size (4096 at most) of which two fit: norms, q, k
// and v, o, gate and up, down. Of o and down the left and the right columns are copied by
// themselves, as two tensor-parallel ranks do. What is left is one tensor more.
[[nodiscard]] Batch make_batch(const BatchPlace& place);

// One number for the sums of a batch of `bytes` bytes.
[[nodiscard]] std::uint64_t check_of(std::span<const device::PieceDigest> sums);

// The same batch over host bytes, computed by the host.
[[nodiscard]] Result<std::uint64_t> expected_check(std::span<const std::byte> bucket);

}  // namespace wsync::bench
