#include "shared/weights/parts.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/base/word_sum.h"

namespace wsync {
namespace {

tl::unexpected<Error> refuse(const Manifest& manifest, const PartRange& range,
                             std::string_view what) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("part {}: bytes {} to {} of tensor {}: {}", range.part, range.begin,
                          range.end, describe(manifest.tensor(range.tensor)), what));
}

}  // namespace

Result<Parts> Parts::create(const Manifest& manifest, std::vector<PartRange> ranges) {
  if (ranges.size() > limits::kPartRangeCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the parts of a version have {} ranges of tensors, at most {} are "
                            "allowed",
                            ranges.size(), limits::kPartRangeCount));
  std::ranges::sort(ranges, {}, [](const PartRange& range) {
    return std::tuple(range.tensor, range.begin, range.end);
  });
  Parts parts;
  const PartRange* before = nullptr;
  for (const PartRange& range : ranges) {
    if (range.tensor >= manifest.size())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("part {} has bytes of tensor {}, but there are {} tensors",
                              range.part, range.tensor, manifest.size()));
    const std::uint64_t bytes = manifest.byte_size(range.tensor);
    if (range.part == 0 || range.part >= limits::kTrainerRankCount)
      return refuse(manifest, range,
                    fmt::format("expected a part from 1 to {}", limits::kTrainerRankCount - 1));
    if (range.begin >= range.end || range.end > bytes)
      return refuse(manifest, range, fmt::format("it has bytes 0 to {}", bytes));
    if (range.begin % kSumWordBytes != 0 || (range.end != bytes && range.end % kSumWordBytes != 0))
      return refuse(
          manifest, range,
          fmt::format("a part must begin and end at multiples of {} bytes", kSumWordBytes));
    if (before != nullptr && before->tensor == range.tensor && range.begin < before->end)
      return refuse(
          manifest, range,
          fmt::format("part {} has bytes {} to {}", before->part, before->begin, before->end));
    parts.count_ = std::max(parts.count_, range.part + 1);
    before = &range;
  }
  parts.ranges_ = std::move(ranges);
  return parts;
}

std::span<const PartRange> Parts::of_tensor(std::uint32_t tensor) const {
  const auto found = std::ranges::equal_range(ranges_, tensor, {}, &PartRange::tensor);
  return {found.begin(), found.end()};
}

void Parts::encode(ByteWriter& writer) const {
  if (ranges_.empty()) return;
  writer.put(static_cast<std::uint32_t>(ranges_.size()));
  for (const PartRange& range : ranges_) {
    writer.put(range.tensor);
    writer.put(range.part);
    writer.put(range.begin);
    writer.put(range.end);
  }
}

Result<Parts> Parts::decode(const Manifest& manifest, std::span<const std::byte> bytes) {
  if (bytes.empty()) return Parts();
  constexpr std::size_t kRangeBytes = 4 + 4 + 8 + 8;
  ByteReader reader(bytes);
  std::vector<PartRange> ranges(
      reader.get_count(limits::kPartRangeCount, kRangeBytes, "parts.ranges"));
  for (PartRange& range : ranges) {
    range.tensor = reader.get<std::uint32_t>("parts.tensor");
    range.part = reader.get<std::uint32_t>("parts.part");
    range.begin = reader.get<std::uint64_t>("parts.begin");
    range.end = reader.get<std::uint64_t>("parts.end");
  }
  if (const auto finished = reader.finish("parts"); !finished) return fail(finished.error());
  return create(manifest, std::move(ranges));
}

}  // namespace wsync
