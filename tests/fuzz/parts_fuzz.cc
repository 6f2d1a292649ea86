// Any bytes as the parts of a version, as they come with an Announce: they are refused with one
// line, or make a plan of which every bucket has one part, and which covers every byte once.
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/word_sum.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/parts.h"

namespace {

using wsync::DType;

const wsync::Manifest& model() {
  static const wsync::Manifest manifest =
      wsync::Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {40, 30}},
                               {.name = "b", .dtype = DType::kU8, .shape = {(3U << 20U) + 5}},
                               {.name = "c", .dtype = DType::kU8, .shape = {0}},
                               {.name = "d", .dtype = DType::kF32, .shape = {}}})
          .value();
  return manifest;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = wsync::Parts::decode(model(), std::as_bytes(std::span(data, size)));
  if (!parts) {
    const std::string& why = parts.error().message();
    WSYNC_CHECK(!why.empty() && why.find('\n') == std::string::npos, "a refusal is one line");
    return 0;
  }
  wsync::ByteWriter again;
  parts->encode(again);
  const wsync::Bytes bytes = std::move(again).take();
  WSYNC_CHECK(wsync::Parts::decode(model(), bytes).value() == *parts, "they come back");
  const auto plan = wsync::BucketPlan::create(model(), 1U << 20U, *parts).value();
  const wsync::LeafTable leaves(model(), plan);
  std::vector<std::uint64_t> covered(model().size());
  for (const wsync::Piece& piece : plan.pieces()) {
    WSYNC_CHECK(piece.tensor_offset == covered[piece.tensor], "pieces follow one another");
    covered[piece.tensor] += piece.bytes;
    const std::uint32_t part = plan.bucket_part(piece.bucket);
    WSYNC_CHECK(part < parts->count(), "there is such a part");
    for (const wsync::PartRange& range : parts->of_tensor(piece.tensor))
      WSYNC_CHECK(range.end <= piece.tensor_offset ||
                      range.begin >= piece.tensor_offset + piece.bytes || range.part == part,
                  "a bucket has one part");
  }
  for (std::size_t i = 0; i < model().size(); ++i)
    WSYNC_CHECK(covered[i] == model().byte_size(i), "every byte is covered");
  for (const wsync::LeafPlace& leaf : leaves.all())
    WSYNC_CHECK(leaf.place.position % wsync::kSumWordBytes == 0 && leaf.bytes > 0,
                "leaves begin at words");
  return 0;
}
