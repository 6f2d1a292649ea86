// Parts of a version: their ranges, the plan of a transfer that is cut between them, and its sums.
#include "shared/weights/parts.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/leaf_check.h"
#include "shared/weights/leaf_table.h"

namespace wsync {
namespace {

using testing::HasSubstr;

TensorInfo bytes_tensor(std::string name, std::uint64_t bytes) {
  return {.name = std::move(name), .dtype = DType::kU8, .shape = {bytes}};
}

// Tensors a (3 MiB and 8 bytes), b (100 bytes) and c (2 MiB and 4 bytes).
Manifest three_tensors() {
  return Manifest::create({bytes_tensor("a", 3 * limits::kMiB + 8), bytes_tensor("b", 100),
                           bytes_tensor("c", 2 * limits::kMiB + 4)})
      .value();
}

std::string why_refused(std::vector<PartRange> ranges) {
  const auto parts = Parts::create(three_tensors(), std::move(ranges));
  return parts ? "accepted" : parts.error().message();
}

TEST(Parts, OnePartHasNothingToSay) {
  const Parts parts;
  EXPECT_EQ(parts.count(), 1U);
  ByteWriter writer;
  parts.encode(writer);
  EXPECT_EQ(writer.size(), 0U);
  EXPECT_EQ(Parts::decode(three_tensors(), {}).value(), parts);
}

TEST(Parts, ComeBackFromTheirBytes) {
  const Manifest manifest = three_tensors();
  const auto parts = Parts::create(manifest, {{.tensor = 2, .part = 2, .begin = 8, .end = 80},
                                              {.tensor = 0, .part = 1, .begin = 0, .end = 16},
                                              {.tensor = 1, .part = 2, .begin = 96, .end = 100}})
                         .value();
  EXPECT_EQ(parts.count(), 3U);
  EXPECT_EQ(parts.of_tensor(0).size(), 1U);
  EXPECT_EQ(parts.of_tensor(2).front().begin, 8U);
  ByteWriter writer;
  parts.encode(writer);
  const Bytes bytes = std::move(writer).take();
  EXPECT_EQ(Parts::decode(manifest, bytes).value(), parts);
  // Every end that comes too early, and a byte too many.
  for (std::size_t n = 1; n < bytes.size(); ++n)
    EXPECT_FALSE(Parts::decode(manifest, std::span(bytes).first(n))) << n;
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Parts::decode(manifest, longer));
}

TEST(Parts, RefusesWhatCannotBe) {
  EXPECT_THAT(why_refused({{.tensor = 3, .part = 1, .begin = 0, .end = 8}}),
              HasSubstr("tensor 3, but there are 3 tensors"));
  EXPECT_THAT(why_refused({{.tensor = 0, .part = 0, .begin = 0, .end = 8}}),
              HasSubstr("expected a part from 1 to"));
  EXPECT_THAT(why_refused({{.tensor = 0, .part = 4096, .begin = 0, .end = 8}}),
              HasSubstr("expected a part from 1 to"));
  EXPECT_THAT(why_refused({{.tensor = 1, .part = 1, .begin = 8, .end = 8}}),
              HasSubstr("it has bytes 0 to 100"));
  EXPECT_THAT(why_refused({{.tensor = 1, .part = 1, .begin = 0, .end = 104}}),
              HasSubstr("it has bytes 0 to 100"));
  EXPECT_THAT(why_refused({{.tensor = 1, .part = 1, .begin = 4, .end = 100}}),
              HasSubstr("multiples of 8 bytes"));
  EXPECT_THAT(why_refused({{.tensor = 1, .part = 1, .begin = 0, .end = 12}}),
              HasSubstr("multiples of 8 bytes"));
  EXPECT_THAT(why_refused({{.tensor = 0, .part = 1, .begin = 0, .end = 16},
                           {.tensor = 0, .part = 2, .begin = 8, .end = 24}}),
              HasSubstr("part 1 has bytes 0 to 16"));
}

TEST(Parts, ManyRandomCutsGiveTheSameArenaAndTheSameSums) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<TensorInfo> tensors;
    for (std::uint64_t i = 0; i < 1 + random() % 6; ++i) {
      const std::uint64_t most = std::array<std::uint64_t, 3>{200, 70'000, 5 << 20U}[random() % 3];
      tensors.push_back(bytes_tensor("t" + std::to_string(i), random() % most));
    }
    const Manifest manifest = Manifest::create(std::move(tensors)).value();
    std::vector<PartRange> ranges;
    for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor) {
      const std::uint64_t bytes = manifest.byte_size(tensor);
      for (std::uint64_t at = 0; at < bytes;) {
        const std::uint64_t n = std::min(bytes - at, 8 * (1 + random() % (1 + bytes / 16)));
        if (const auto part = static_cast<std::uint32_t>(random() % 4); part != 0)
          ranges.push_back({.tensor = tensor, .part = part, .begin = at, .end = at + n});
        at += n;
      }
    }
    const Parts parts = Parts::create(manifest, ranges).value();
    const std::uint64_t bucket_bytes = limits::kBucketBytesMin + 256 * (random() % 4000);
    const BucketPlan plain = BucketPlan::create(manifest, bucket_bytes).value();
    const BucketPlan cut = BucketPlan::create(manifest, bucket_bytes, parts).value();
    EXPECT_EQ(cut.arena_bytes(), plain.arena_bytes());

    Bytes arena(plain.arena_bytes());
    for (std::byte& byte : arena) byte = static_cast<std::byte>(random());
    std::uint64_t end = 0;  // of the windows
    for (std::size_t i = 0; i < cut.bucket_count(); ++i) {
      EXPECT_GE(cut.bucket_offset(i), end);
      EXPECT_LE(cut.bucket_size(i), bucket_bytes);
      end = cut.bucket_offset(i) + cut.bucket_size(i);
      EXPECT_TRUE(cut.bucket_part(i) == 0 || cut.bucket(i).size() == 1);
      for (const Piece& piece : cut.bucket(i)) {
        // At its place in the plain arena, and of its part alone.
        const Piece& first = plain.tensor_pieces(piece.tensor).front();
        EXPECT_EQ(cut.arena_offset(piece), plain.arena_offset(first) + piece.tensor_offset);
        for (const PartRange& range : parts.of_tensor(piece.tensor)) {
          const bool meets =
              range.begin < piece.tensor_offset + piece.bytes && piece.tensor_offset < range.end;
          EXPECT_TRUE(!meets || range.part == cut.bucket_part(i));
        }
      }
    }
    std::vector<std::uint64_t> covered(manifest.size());
    for (const Piece& piece : cut.pieces()) {
      EXPECT_EQ(piece.tensor_offset, covered[piece.tensor]);
      covered[piece.tensor] += piece.bytes;
    }
    for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor)
      EXPECT_EQ(covered[tensor], manifest.byte_size(tensor));

    const LeafTable whole(manifest, plain);
    const LeafTable of_parts(manifest, cut);
    const auto expected = sum_leaves(whole, arena, 1).value();
    const auto found = sum_leaves(of_parts, arena, 1).value();
    EXPECT_EQ(whole_leaves(manifest, of_parts, found), expected);
    EXPECT_EQ(digests_of_leaves(manifest, whole_leaves(manifest, of_parts, found)).value().root,
              digests_of_leaves(manifest, expected).value().root);
  }
}

TEST(Parts, APlanWithOnePartIsThePlanWithout) {
  const Manifest manifest = three_tensors();
  const BucketPlan plain = BucketPlan::create(manifest, 2 * limits::kMiB).value();
  const BucketPlan cut = BucketPlan::create(manifest, 2 * limits::kMiB, Parts()).value();
  EXPECT_TRUE(std::ranges::equal(cut.pieces(), plain.pieces()));
  EXPECT_EQ(cut.bucket_count(), plain.bucket_count());
}

}  // namespace
}  // namespace wsync
