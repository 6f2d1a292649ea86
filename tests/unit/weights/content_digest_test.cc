// The content digest: its definition, and leaves that come in any order.
#include "shared/weights/content_digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <thread>

#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"
#include "tests/support/bytes.h"

namespace wsync {
namespace {

using Buffer = std::vector<std::byte>;

Buffer random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer bytes(count);
  fill_random(random, bytes);
  return bytes;
}

Manifest manifest_of(const std::vector<std::uint64_t>& sizes) {
  std::vector<TensorInfo> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    tensors.push_back({.name = "h." + std::to_string(i), .dtype = DType::kU8, .shape = {sizes[i]}});
  return Manifest::create(std::move(tensors)).value();
}

TEST(ContentDigest, IsWhatTheHeaderSays) {
  const Buffer bytes = random_bytes(2 * limits::kLeafBytes + 5, 1);
  const WordSum sum = word_sum(bytes, {.seed = seed_of("h.0")});
  Digester tensor;
  tensor.update(sum.product);
  tensor.update(sum.sum);
  tensor.update(std::uint64_t{bytes.size()});
  EXPECT_EQ(tensor_digest("h.0", bytes), tensor.finish());
  Digester root;
  root.update(std::uint64_t{1});
  root.update(tensor.finish());
  EXPECT_EQ(root_digest(std::vector{tensor.finish()}), root.finish());
  EXPECT_EQ(leaf_count(0), 0U);
  EXPECT_EQ(leaf_count(1), 1U);
  EXPECT_EQ(leaf_count(limits::kLeafBytes), 1U);
  EXPECT_EQ(leaf_count(limits::kLeafBytes + 1), 2U);
}

TEST(ContentDigest, LeavesInAnyOrderFromSeveralThreads) {
  const std::vector<std::uint64_t> sizes{0, 3 * limits::kLeafBytes + 1, 7, 2 * limits::kLeafBytes};
  const Manifest manifest = manifest_of(sizes);
  std::vector<Buffer> tensors;
  std::vector<Digest> expected;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tensors.push_back(random_bytes(sizes[i], i));
    expected.push_back(tensor_digest(manifest.tensor(i).name, tensors.back()));
  }
  ContentDigester digester(manifest);
  const auto add = [&](std::uint32_t tensor, std::uint64_t begin, std::uint64_t end) {
    const auto range = std::span<const std::byte>(tensors[tensor]).subspan(begin, end - begin);
    ASSERT_TRUE(digester.add(tensor, begin, range));
  };
  {
    std::jthread last([&] { add(1, 2 * limits::kLeafBytes, sizes[1]); });
    std::jthread first([&] { add(1, 0, 2 * limits::kLeafBytes); });
  }
  add(3, limits::kLeafBytes, sizes[3]);
  add(2, 0, 7);
  const auto missing = digester.finish();
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message(), "tensor 'h.3': leaf 0 of 2 was never digested");
  ASSERT_TRUE(
      digester.add_leaf(3, 0,
                        word_sum(std::span<const std::byte>(tensors[3]).first(limits::kLeafBytes),
                                 digester.place(3, 0))));
  const auto digests = digester.finish();
  ASSERT_TRUE(digests);
  EXPECT_EQ(digests->tensors, expected);
  EXPECT_EQ(digests->root, root_digest(expected));
}

TEST(ContentDigest, RefusesWhatIsNoWholeLeaf) {
  const Manifest manifest = manifest_of({limits::kLeafBytes + 10});
  ContentDigester digester(manifest);
  const Buffer bytes(limits::kLeafBytes + 10);
  const auto all = std::span<const std::byte>(bytes);
  EXPECT_FALSE(digester.add(0, 0, all.first(10)));
  EXPECT_FALSE(digester.add(0, 10, all.first(limits::kLeafBytes)));
  EXPECT_FALSE(digester.add(0, limits::kLeafBytes, all.first(11)));
  EXPECT_FALSE(digester.add(0, ~0ULL / limits::kLeafBytes * limits::kLeafBytes, all));
  EXPECT_FALSE(digester.add(1, 0, all.first(10)));
  EXPECT_FALSE(digester.add_leaf(0, 2, {}));
  EXPECT_TRUE(digester.add(0, limits::kLeafBytes, all.first(10)));
}

// The content digest of tensors of these bytes.
Digest content_of(const std::vector<Buffer>& tensors) {
  std::vector<std::uint64_t> sizes;
  for (const Buffer& tensor : tensors) sizes.push_back(tensor.size());
  const Manifest manifest = manifest_of(sizes);
  ContentDigester digester(manifest);
  for (std::uint32_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(digester.add(i, 0, tensors[i]));
  return digester.finish()->root;
}

TEST(ContentDigest, SeesASwapOfTensorsAndOfLeaves) {
  const Buffer a = random_bytes(limits::kLeafBytes, 1);
  const Buffer b = random_bytes(limits::kLeafBytes, 2);
  EXPECT_NE(content_of({a, b}), content_of({b, a}));
  const auto joined = [](const Buffer& first, const Buffer& second) {
    Buffer both = first;
    both.insert(both.end(), second.begin(), second.end());
    return both;
  };
  EXPECT_NE(content_of({joined(a, b)}), content_of({joined(b, a)}));
}

// Two experts of one shape. Their sums are compared each under its own name, and a sum over both
// must not stay the same if they are taken for each other.
TEST(ContentDigest, GivesTensorsOfOneShapeDifferentSums) {
  const Buffer expert = random_bytes(3 * 4096, 3);
  const Manifest manifest = manifest_of({expert.size(), expert.size()});
  ContentDigester digester(manifest);
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(digester.add(i, 0, expert));
  const auto digests = digester.finish();
  ASSERT_TRUE(digests);
  EXPECT_NE(digests->sums[0], digests->sums[1]) << "the same bytes under two names";
  EXPECT_NE(digests->tensors[0], digests->tensors[1]);
}

}  // namespace
}  // namespace wsync
