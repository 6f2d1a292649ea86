// The pieces that an engine copies out of a bucket, with the shapes of a transformer: large
// matrices, columns of others, and norms of a few KiB.
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
  device::Memory* to = nullptr;  // destination; null: sums only
  std::uint64_t to_offset = 0;
  std::uint64_t bytes = 0;  // bytes of the bucket, all of which are copied
};

struct Batch {
  std::vector<device::Piece> pieces;
  std::uint32_t sums = 0;  // number of sums, one per tensor
};

// Makes layers of bf16 weights: norms, q, k and v, o, gate and up, down. The hidden size is the
// largest one, up to 4096, of which two layers fit. The left and the right columns of o and down
// are copied separately, as two tensor-parallel ranks do. The remaining bytes are one more tensor.
[[nodiscard]] Batch make_batch(const BatchPlace& place);

// Combines the sums of a batch into one number.
[[nodiscard]] std::uint64_t check_of(std::span<const SplitSum> sums);

// The expected check of the same batch, which the host computes from host bytes.
[[nodiscard]] Result<std::uint64_t> expected_check(std::span<const std::byte> bucket);

}  // namespace wsync::bench
