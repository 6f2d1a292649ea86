// Any bytes as the changes of a bucket: the reader refuses them, or what it accepts is applied to
// the leaves of the bucket alone, and gives sums of what is there then. The sums that are told
// before anything is written are the same, and the arena that is changed in place has the same
// bytes, and can be changed back. Merged with what leads on to a third content, they lead there;
// merged with what leads back, they are none.
//
// Input: 1 byte, which bucket; the changes.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "shared/base/check.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/patch/leaf_changes.h"

namespace {

using wsync::Bytes;
using wsync::DType;
using wsync::LeafPlace;
using wsync::WordSum;
using wsync::patch::BlockView;

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

std::vector<WordSum> sums_of(std::span<const LeafPlace> leaves, std::span<const std::byte> arena) {
  std::vector<WordSum> sums;
  for (const LeafPlace& leaf : leaves)
    sums.push_back(wsync::word_sum(arena.subspan(leaf.arena_offset, leaf.bytes), leaf.place));
  return sums;
}

// `applied`: what apply_leaf_changes() said, and `into` what it wrote within the leaves.
void check_in_place(const Model& model, std::span<const LeafPlace> leaves,
                    std::span<const BlockView> blocks, std::span<const std::byte> changes,
                    const wsync::Result<std::vector<WordSum>>& applied,
                    std::span<const std::byte> into) {
  const auto told = wsync::patch::sum_leaf_changes(model.layout, leaves, blocks, model.base,
                                                   sums_of(leaves, model.base));
  WSYNC_CHECK(told.has_value() == applied.has_value(), "both prove the same");
  Bytes data = model.base;
  const auto back = wsync::patch::exchange_leaf_changes(model.layout, leaves, blocks, data);
  WSYNC_CHECK(back.has_value() == applied.has_value(), "all prove the same");
  if (!applied) return;
  WSYNC_CHECK(*told == *applied, "the sums are told before anything is written");
  for (const LeafPlace& leaf : leaves)
    WSYNC_CHECK(std::ranges::equal(std::span(data).subspan(leaf.arena_offset, leaf.bytes),
                                   into.subspan(leaf.arena_offset, leaf.bytes)),
                "in place there are the same bytes");
  const auto reverse = wsync::patch::read_leaf_changes(model.layout, leaves, *back);
  WSYNC_CHECK(reverse.has_value(), "what leads back can be read");
  const auto again = wsync::patch::exchange_leaf_changes(model.layout, leaves, *reverse, data);
  WSYNC_CHECK(again.has_value() && std::ranges::equal(*again, changes), "the changes come back");
  WSYNC_CHECK(data == model.base, "the base comes back");
}

// `there`: what the changes make of the base.
void check_merged(const Model& model, std::span<const LeafPlace> leaves,
                  std::span<const BlockView> blocks, const Bytes& there) {
  Bytes third = model.base;
  for (const LeafPlace& leaf : leaves)
    for (std::uint64_t at = 0; at < leaf.bytes; at += 777)
      third[leaf.arena_offset + at] ^= std::byte{0x11};
  wsync::patch::LeafChangesMaker maker;
  for (const Bytes* end : {&std::as_const(third), &model.base}) {
    const Bytes on = maker.make(model.layout, leaves, there, *end, ~std::uint64_t{0}).value();
    const auto merged = wsync::patch::merge_leaf_changes(
        model.layout, leaves, blocks,
        wsync::patch::read_leaf_changes(model.layout, leaves, on).value(), there);
    WSYNC_CHECK(merged.has_value(), "changes that were proven can be merged with what follows");
    const auto read = wsync::patch::read_leaf_changes(model.layout, leaves, *merged);
    WSYNC_CHECK(read.has_value(), "merged changes can be read");
    Bytes data = model.base;
    WSYNC_CHECK(
        wsync::patch::exchange_leaf_changes(model.layout, leaves, *read, data).has_value() &&
            data == *end,
        "merged changes lead where both lead together");
  }
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
  check_in_place(model, leaves, *blocks, bytes, sums, into);
  if (!sums) return 0;
  Bytes there = model.base;
  for (const LeafPlace& leaf : leaves)
    std::ranges::copy(std::span(into).subspan(leaf.arena_offset, leaf.bytes),
                      there.begin() + static_cast<std::ptrdiff_t>(leaf.arena_offset));
  check_merged(model, leaves, *blocks, there);
  return 0;
}
