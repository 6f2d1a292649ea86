#include "shared/weights/patch/mapped_patch.h"

#include <vector>

#include "shared/base/format.h"

namespace wsync::patch {

Result<PatchReader> read_mapped(const Layout& layout, std::span<const std::byte> memory,
                                ThreadPool* helpers) {
  const std::uint64_t index_bytes = WSYNC_TRY(Index::size_of(memory));
  if (index_bytes > memory.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the memory of a patch ends within its index: it has {} bytes, the "
                            "index {}",
                            memory.size(), index_bytes));
  const auto index = WSYNC_TRY(Index::parse(memory.first(index_bytes)));
  if (index.body_bytes() != memory.size() - index_bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the memory of a patch has {} bytes behind its index, expected {} for "
                            "its buckets",
                            memory.size() - index_bytes, index.body_bytes()));
  std::vector<std::span<const std::byte>> buckets;
  for (std::size_t i = 0; i < index.buckets().size(); ++i)
    buckets.push_back(
        memory.subspan(index_bytes + index.bucket_offset(i), index.buckets()[i].bytes));
  return PatchReader::open(layout, memory.first(index_bytes), buckets, helpers);
}

}  // namespace wsync::patch
