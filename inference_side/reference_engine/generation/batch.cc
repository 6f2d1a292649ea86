#include "inference_side/reference_engine/generation/batch.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::engine::generation {
namespace {

// Fields first_position, wants_logits and the two counts; then at least one token and one block.
constexpr std::size_t kSliceBytesMin = 4 + 1 + 4 + 4 + 4 + 4;

tl::unexpected<Error> refuse_slice(std::size_t slice, const std::string& why) {
  return fail(ErrorCode::kInvalidInput, fmt::format("slice {} {}", slice, why));
}

// Checks a slice by itself. `last_user`: for each block, one plus the index of the last slice that
// named it.
Result<> check_slice(const SequenceSlice& slice, std::size_t number, const BatchLimits& limits,
                     std::vector<std::size_t>& last_user) {
  if (slice.tokens.empty()) return refuse_slice(number, "has no token");
  const std::uint64_t end = std::uint64_t{slice.first_position} + slice.tokens.size();
  if (end > limits.max_positions)
    return refuse_slice(
        number, fmt::format("ends at position {}, expected {} at most", end, limits.max_positions));
  for (const Token token : slice.tokens)
    if (token >= limits.vocabulary)
      return refuse_slice(
          number, fmt::format("has token {}; the vocabulary has {}", token, limits.vocabulary));
  if (slice.blocks.size() * std::uint64_t{limits.block_tokens} < end)
    return refuse_slice(
        number,
        fmt::format("has {} of {} for {}, expected {}", counted(slice.blocks.size(), "block"),
                    counted(limits.block_tokens, "token"), counted(end, "position"),
                    (end - 1) / limits.block_tokens + 1));
  for (const std::uint32_t block : slice.blocks) {
    if (block >= limits.blocks)
      return refuse_slice(
          number, fmt::format("has block {}; there are only {} blocks", block, limits.blocks));
    if (last_user[block] == number + 1)
      return refuse_slice(number, fmt::format("has block {} twice", block));
    last_user[block] = number + 1;
  }
  return {};
}

// Where the keys and values of a token are stored.
struct WrittenPlace {
  std::uint64_t place = 0;  // block * block_tokens + position in the block
  std::size_t slice = 0;
};

// Checks that no two slices write to the same place. Each slice has already passed check_slice().
Result<> check_places(const Batch& batch, const BatchLimits& limits) {
  std::vector<WrittenPlace> written;
  written.reserve(batch.tokens());
  for (std::size_t i = 0; i < batch.slices.size(); ++i) {
    const SequenceSlice& slice = batch.slices[i];
    for (std::size_t token = 0; token < slice.tokens.size(); ++token) {
      const std::size_t position = slice.first_position + token;
      const std::uint64_t block = slice.blocks[position / limits.block_tokens];
      written.push_back(
          {.place = block * limits.block_tokens + position % limits.block_tokens, .slice = i});
    }
  }
  std::ranges::sort(written, {}, &WrittenPlace::place);
  const auto twice = std::ranges::adjacent_find(written, {}, &WrittenPlace::place);
  if (twice == written.end()) return {};
  const auto [first, second] = std::minmax(twice->slice, (twice + 1)->slice);
  return fail(ErrorCode::kInvalidInput,
              fmt::format("slices {} and {} both write to position {} of block {}", first, second,
                          twice->place % limits.block_tokens, twice->place / limits.block_tokens));
}

std::vector<std::uint32_t> get_list(ByteReader& reader, std::string_view field) {
  // While decoding, a count is checked only against the remaining bytes. The limits are checked at
  // the end.
  std::vector<std::uint32_t> list(
      reader.get_count(reader.remaining(), sizeof(std::uint32_t), field));
  for (std::uint32_t& value : list) value = reader.get<std::uint32_t>(field);
  return list;
}

void put_list(ByteWriter& writer, std::span<const std::uint32_t> list) {
  writer.put(static_cast<std::uint32_t>(list.size()));
  writer.put_raw(std::as_bytes(list));
}

}  // namespace

std::size_t Batch::tokens() const noexcept {
  std::size_t count = 0;
  for (const SequenceSlice& slice : slices) count += slice.tokens.size();
  return count;
}

std::size_t Batch::logits() const noexcept {
  return static_cast<std::size_t>(std::ranges::count(slices, true, &SequenceSlice::wants_logits));
}

Result<> check_batch(const Batch& batch, const BatchLimits& limits) {
  WSYNC_CHECK(limits.vocabulary > 0 && limits.max_positions > 0 && limits.blocks > 0 &&
                  limits.block_tokens > 0 && limits.tokens > 0,
              "a batch is checked against limits above 0");
  if (batch.slices.empty()) return {};
  if (const std::size_t tokens = batch.tokens(); tokens > limits.tokens)
    return fail(ErrorCode::kInvalidInput, fmt::format("{} in one step, expected {} at most",
                                                      counted(tokens, "token"), limits.tokens));
  std::vector<std::size_t> last_user(limits.blocks);
  for (std::size_t i = 0; i < batch.slices.size(); ++i)
    WSYNC_TRY(check_slice(batch.slices[i], i, limits, last_user));
  return check_places(batch, limits);
}

Bytes encode(const Batch& batch) {
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(batch.slices.size()));
  for (const SequenceSlice& slice : batch.slices) {
    writer.put(slice.first_position);
    writer.put(static_cast<std::uint8_t>(slice.wants_logits));
    put_list(writer, slice.tokens);
    put_list(writer, slice.blocks);
  }
  return std::move(writer).take();
}

Result<Batch> decode_batch(std::span<const std::byte> bytes, const BatchLimits& limits) {
  ByteReader reader(bytes);
  Batch batch;
  batch.slices.resize(reader.get_count(limits.tokens, kSliceBytesMin, "slices"));
  for (SequenceSlice& slice : batch.slices) {
    slice.first_position = reader.get<std::uint32_t>("first position");
    slice.wants_logits = reader.get_bool("wants logits");
    slice.tokens = get_list(reader, "tokens");
    slice.blocks = get_list(reader, "blocks");
  }
  WSYNC_TRY(reader.finish("a batch"));
  if (const Result<> fits = check_batch(batch, limits); !fits)
    return fail(fits.error().with_context("a batch"));
  return batch;
}

}  // namespace wsync::engine::generation
