// What a rank of a scenario has of a checkpoint.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "shared/weights/checkpoint_dir.h"
#include "trainer_side/publish/gathered_source.h"

namespace wsync {

struct RankPart {
  TensorInfo info;
  std::optional<publish::ShardRange> range;
  std::vector<std::byte> bytes;
};

// This rank's part of a tensor: its share of one dimension, the dimension changing from tensor to
// tensor; every third tensor is whole on every rank. `rows_only`: the first dimension of each.
inline RankPart rank_part(const CheckpointDirectory& directory, std::size_t index,
                          std::uint32_t rank, std::uint32_t world_size, bool rows_only = false) {
  const TensorInfo& info = directory.manifest().tensor(index);
  RankPart part{.info = info};
  std::vector<std::byte> whole(directory.manifest().byte_size(index));
  if (!directory.read(index, 0, whole)) std::abort();
  const auto dim =
      static_cast<std::uint32_t>(info.shape.empty() || rows_only ? 0 : index % info.shape.size());
  if (world_size == 1 || index % 3 == 2 || info.shape.empty() || info.shape[dim] < world_size) {
    part.bytes = std::move(whole);
    return part;
  }
  const std::uint64_t extent = info.shape[dim];
  const std::uint64_t begin = extent * rank / world_size;
  const std::uint64_t length = extent * (rank + 1) / world_size - begin;
  part.range = publish::ShardRange{.dim = dim, .begin = begin, .length = length};
  std::uint64_t rows = 1;
  for (std::uint32_t i = 0; i < dim; ++i) rows *= info.shape[i];
  const std::uint64_t row_bytes = whole.size() / rows;
  const std::uint64_t unit = row_bytes / extent;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const auto from = whole.begin() + static_cast<std::ptrdiff_t>(row * row_bytes + begin * unit);
    part.bytes.insert(part.bytes.end(), from, from + static_cast<std::ptrdiff_t>(length * unit));
  }
  return part;
}

}  // namespace wsync
