// Any bytes as the changes of a bucket: the reader refuses them, or what it accepts is applied to
// the leaves of the bucket alone, and gives sums of what is there then.
//
// Input: 1 byte, which bucket; the changes.
#include <algorithm>
#include <cstdint>
#include <span>

#include "shared/base/check.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/patch/leaf_changes.h"

namespace {

using wsync::Bytes;
using wsync::DType;
using wsync::LeafPlace;

struct Model {
  wsync::Manifest manifest =
      wsync::Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {40, 30}},
                               {.name = "b", .dtype = DType::kU8, .shape = {5, 7}},
                               {.name = "c", .dtype = DType::kF64, .shape = {3}},
                               {.name = "d", .dtype = DType::kF4, .shape = {4, 6}},
                               {.name = "e", .dtype = DType::kU8, .shape = {(1U << 20U) + 9}}})
          .value();
  wsync::BucketPlan plan = wsync::BucketPlan::create(manifest, 1U << 20U).value();
  wsync::LeafTable leaves{manifest, plan};
  wsync::patch::Layout layout{manifest};
  Bytes base = Bytes(plan.arena_bytes(), std::byte{0x3C});
};

// The leaves are in the order of their bytes.
void check_outside(std::span<const LeafPlace> leaves, std::span<const std::byte> arena) {
  std::uint64_t at = 0;
  const auto is_untouched_until = [&](std::uint64_t end) {
    return std::ranges::all_of(arena.subspan(at, end - at),
                               [](std::byte byte) { return byte == std::byte{0xA5}; });
  };
  for (const LeafPlace& leaf : leaves) {
    WSYNC_CHECK(is_untouched_until(leaf.arena_offset), "nothing is written outside of the leaves");
    at = leaf.arena_offset + leaf.bytes;
  }
  WSYNC_CHECK(is_untouched_until(arena.size()), "nothing is written behind the leaves");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Model model;
  if (size == 0) return 0;
  const auto leaves = model.leaves.bucket(data[0] % model.plan.bucket_count());
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const auto blocks = wsync::patch::read_leaf_changes(model.layout, leaves, bytes);
  if (!blocks) {
    const std::string& message = blocks.error().message();
    WSYNC_CHECK(!message.empty() && message.find('\n') == std::string::npos, "one line says why");
    return 0;
  }
  Bytes into(model.base.size(), std::byte{0xA5});
  const auto sums =
      wsync::patch::apply_leaf_changes(model.layout, leaves, *blocks, model.base, into);
  if (sums)
    for (std::size_t i = 0; i < leaves.size(); ++i)
      WSYNC_CHECK((*sums)[i] == wsync::word_sum(std::span(into).subspan(leaves[i].arena_offset,
                                                                        leaves[i].bytes),
                                                leaves[i].place),
                  "the sums are of what is there");
  check_outside(leaves, into);
  return 0;
}
