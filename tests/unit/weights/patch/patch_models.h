// Models for the tests of patches: a few tensors with their bytes, and changes of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/units.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/patch.h"
#include "tests/support/bytes.h"

namespace wsync::patch::test {

using Content = std::vector<Bytes>;  // the bytes of each tensor, in manifest order

inline Content random_content(const Manifest& manifest, std::mt19937_64& random) {
  Content content;
  for (std::size_t t = 0; t < manifest.size(); ++t) {
    Bytes bytes(manifest.byte_size(t));
    fill_random(random, bytes);
    content.push_back(std::move(bytes));
  }
  return content;
}

// Flips a bit in this share of the elements of each tensor, chosen at random.
inline Content changed(const Layout& layout, Content content, double share,
                       std::mt19937_64& random) {
  std::bernoulli_distribution chosen(share);
  for (std::uint32_t t = 0; t < content.size(); ++t) {
    const std::uint32_t size = layout.tensor(t).element_bytes;
    for (std::size_t at = 0; at < content[t].size(); at += size)
      if (chosen(random))
        content[t][at + random() % size] ^= std::byte{1} << static_cast<int>(random() % 8);
  }
  return content;
}

inline Digest digest_of_content(const Manifest& manifest, const Content& content) {
  ContentDigester digester(manifest);
  for (std::uint32_t t = 0; t < content.size(); ++t) EXPECT_TRUE(digester.add(t, 0, content[t]));
  return digester.finish().value().root;
}

inline std::vector<BlockPlace> places_of(const Layout& layout) {
  std::vector<BlockPlace> places;
  for (std::uint32_t t = 0; t < layout.manifest().size(); ++t)
    for (std::uint32_t b = 0; b < layout.block_count(t); ++b)
      places.push_back({.tensor = t, .block = b});
  return places;
}

template <class Tensors>
auto block_bytes(const Layout& layout, Tensors& content, const BlockPlace& place) {
  return std::span(content[place.tensor]).subspan(Layout::offset(place), layout.block_bytes(place));
}

inline Patch make_patch(const Layout& layout, const Content& base, const Content& target,
                        std::uint64_t bucket_bytes = limits::kMiB,
                        CopyKind kind = best_copy_kind()) {
  auto builder = PatchBuilder::create(layout, bucket_bytes).value();
  BlockMaker maker(kind);
  for (const BlockPlace& place : places_of(layout)) {
    if (auto block = maker.make(layout, place, block_bytes(layout, base, place),
                                block_bytes(layout, target, place)))
      builder.add(std::move(*block));
    EXPECT_EQ(maker.target_sum(), word_sum(block_bytes(layout, target, place),
                                           {.seed = layout.tensor(place.tensor).seed,
                                            .position = Layout::offset(place)}));
  }
  auto patch = builder.finish(digest_of_content(layout.manifest(), base),
                              digest_of_content(layout.manifest(), target));
  EXPECT_TRUE(patch) << patch.error().message();
  return std::move(patch).value();
}

inline Result<> apply_patch(const Layout& layout, const Patch& patch, Content& content,
                            BeforeRule rule = BeforeRule::kBase) {
  const auto reader = WSYNC_TRY(PatchReader::open(layout, patch));
  BlockApplier applier(layout);
  for (const BlockView& block : reader.blocks())
    WSYNC_TRY(applier.apply(block, block_bytes(layout, content, block.place), rule));
  return {};
}

// Applies a patch and returns the one that undoes it.
inline Result<Patch> apply_and_reverse(const Layout& layout, const Patch& patch, Content& content,
                                       std::uint64_t bucket_bytes = limits::kMiB) {
  const auto reader = WSYNC_TRY(PatchReader::open(layout, patch));
  BlockApplier applier(layout);
  auto builder = WSYNC_TRY(PatchBuilder::create(layout, bucket_bytes));
  std::vector<std::byte*> begins;
  for (const BlockView& block : reader.blocks())
    begins.push_back(block_bytes(layout, content, block.place).data());
  WSYNC_TRY(applier.apply_reversibly(reader.blocks(), begins,
                                     [&](Block back) { builder.add(std::move(back)); }));
  return builder.finish(reader.index().link().target, reader.index().link().base);
}

// One tensor of each type with an odd shape, scalars, empty tensors, and tensors of several blocks.
inline Manifest every_dtype() {
  std::vector<TensorInfo> tensors;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(dtype_name(dtype));
    const std::uint64_t columns = dtype_bits(dtype) < 8 ? 8 : 7;
    tensors.push_back({.name = "odd." + name, .dtype = dtype, .shape = {5, 3, columns}});
    tensors.push_back({.name = "none." + name, .dtype = dtype, .shape = {3, 0}});
    if (dtype_bits(dtype) >= 8)
      tensors.push_back({.name = "one." + name, .dtype = dtype, .shape = {}});
  }
  tensors.push_back({.name = "large", .dtype = DType::kBF16, .shape = {3, kBlockBytes / 4 + 3}});
  tensors.push_back({.name = "bytes", .dtype = DType::kU8, .shape = {2 * kBlockBytes + 5}});
  tensors.push_back({.name = "exact", .dtype = DType::kF32, .shape = {kBlockBytes / 4}});
  tensors.push_back({.name = "wide", .dtype = DType::kF64, .shape = {kBlockBytes / 8 + 1}});
  return Manifest::create(std::move(tensors)).value();
}

}  // namespace wsync::patch::test
