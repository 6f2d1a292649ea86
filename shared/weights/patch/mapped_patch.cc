#include "shared/weights/patch/mapped_patch.h"

#include <vector>

#include "shared/base/format.h"

namespace wsync::patch {
namespace {

Result<std::span<const std::byte>> index_bytes_of(std::span<const std::byte> memory) {
  const std::uint64_t bytes = WSYNC_TRY(Index::size_of(memory));
  if (bytes > memory.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the memory of a patch ends within its index: it has {} bytes, the "
                            "index {}",
                            memory.size(), bytes));
  return memory.first(bytes);
}

}  // namespace

Result<std::shared_ptr<const SealedMemory>> share_patch(const Patch& patch) {
  std::vector<std::span<const std::byte>> parts = {patch.index};
  parts.insert(parts.end(), patch.buckets.begin(), patch.buckets.end());
  return std::make_shared<const SealedMemory>(
      WSYNC_TRY(SealedMemory::create("wsync-patch", parts)));
}

Result<Link> link_of(std::span<const std::byte> memory) {
  return WSYNC_TRY(Index::parse(WSYNC_TRY(index_bytes_of(memory)))).link();
}

Result<PatchReader> read_mapped(const Layout& layout, std::span<const std::byte> memory,
                                ThreadPool* helpers) {
  const std::uint64_t index_bytes = WSYNC_TRY(index_bytes_of(memory)).size();
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
