#include "shared/weights/patch/directory.h"

#include "shared/base/format.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

tl::unexpected<Error> broken_rule(std::string_view text) {
  return fail(ErrorCode::kInvalidInput, std::string(text));
}

}  // namespace

void put_entry(Bytes& directory, const Block& block, const std::optional<BlockPlace>& last) {
  const bool same_tensor = last && last->tensor == block.place.tensor;
  put_varint(directory, block.place.tensor - (last ? last->tensor : 0));
  put_varint(directory, same_tensor ? block.place.block - last->block - 1 : block.place.block);
  put_varint(directory, block.dense ? 0 : block.elements);
  if (!block.dense) put_varint(directory, block.gap_bytes);
  ByteWriter sums;
  for (const WordSum& sum : {block.before, block.after}) {
    sums.put(sum.product);
    sums.put(sum.sum);
  }
  directory.insert(directory.end(), sums.buffer().begin(), sums.buffer().end());
}

Result<BlockPlace> BlockSequence::next_place() {
  const auto tensor_gap = take_varint(directory_, limits::kTensorCount);
  if (!tensor_gap) return broken_rule("the number of its tensor is not valid");
  const auto block_gap = take_varint(directory_, limits::kModelBytesMax / kBlockBytes);
  if (!block_gap) return broken_rule("its number in the tensor is not valid");
  BlockPlace place{.tensor = static_cast<std::uint32_t>(*tensor_gap),
                   .block = static_cast<std::uint32_t>(*block_gap)};
  place.tensor += last_.tensor;
  if (has_last_ && *tensor_gap == 0) place.block += last_.block + 1;
  if (layout_.block_bytes(place) == 0)
    return broken_rule(
        fmt::format("the model has no block {} of tensor {}", place.block, place.tensor));
  last_ = place;
  has_last_ = true;
  return place;
}

Result<BlockView> BlockSequence::next() {
  BlockView block;
  block.place = WSYNC_TRY(next_place());
  const std::uint64_t block_bytes = layout_.block_bytes(block.place);
  const std::uint32_t size = layout_.tensor(block.place.tensor).element_bytes;
  const auto here = [&](std::string_view rule) {
    return broken_rule(fmt::format("{}: {}", layout_.describe(block.place), rule));
  };
  const auto elements = take_varint(directory_, block_bytes / size);
  if (!elements) return here("the number of its elements is not valid");
  block.dense = *elements == 0;
  block.elements = static_cast<std::uint32_t>(*elements != 0 ? *elements : block_bytes / size);
  const std::uint64_t value_bytes = std::uint64_t{block.elements} * size;
  std::uint64_t gap_bytes = 0;
  if (!block.dense) {
    const auto found = take_varint(directory_, block_bytes);
    if (!found) return here("the length of its gaps is not valid");
    gap_bytes = *found;
    if (gap_bytes + value_bytes >= block_bytes)
      return here("it is sparse, although dense it would not be larger");
  }
  ByteReader sums(directory_);
  for (WordSum* sum : {&block.before, &block.after}) {
    sum->product = sums.get<std::uint64_t>("product");
    sum->sum = sums.get<std::uint64_t>("sum");
  }
  if (!sums.ok()) return here("the directory ends within its sums");
  directory_ = directory_.subspan(kSumBytes);
  if (gap_bytes + value_bytes > payload_.size())
    return here(
        fmt::format("it needs {} bytes, {} are left", gap_bytes + value_bytes, payload_.size()));
  block.gaps = payload_.first(gap_bytes);
  block.values = payload_.subspan(gap_bytes, value_bytes);
  payload_ = payload_.subspan(gap_bytes + value_bytes);
  if (block.dense) return block;
  if (const auto read = check_positions(block, block_bytes / size); !read)
    return here(read.error().message());
  return block;
}

}  // namespace wsync::patch
