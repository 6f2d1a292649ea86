// What a rank needs of each bucket is enough for its load, and little more.
#include "inference_side/reload/needed_bytes.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "tests/unit/reload/random_model.h"

namespace wsync::reload {
namespace {

// A buffer in which nothing but these rows is right.
std::vector<std::byte> received(std::span<const std::byte> bucket, const NeededBytes& needed,
                                std::uint64_t number) {
  std::vector<std::byte> buffer(bucket.size());
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = ~bucket[i];
  for (const NeededRows& rows : needed.of_bucket(number)) {
    EXPECT_LE(rows.from + rows.span_bytes(), bucket.size());
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      std::ranges::copy(
          bucket.subspan(rows.from + row * rows.stride, rows.row_bytes),
          buffer.begin() + static_cast<std::ptrdiff_t>(rows.from + row * rows.stride));
  }
  return buffer;
}

TEST(NeededBytes, AreEnoughForALoad) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model = random_model(seed);
    const LoadPlan plan = LoadPlan::make(model.manifest, model.plan, model.tensors).value();
    const NeededBytes needed = NeededBytes::of(plan);
    ASSERT_EQ(needed.bucket_count(), plan.bucket_count());
    std::vector<std::vector<std::byte>> buffers;
    for (std::uint64_t b = 0; b < plan.bucket_count(); ++b)
      buffers.push_back(received(plan.bucket_of(model.arena, b), needed, b));
    CopyScratch scratch;
    for (const CopyGroup& group : plan.groups()) {
      std::vector<std::byte> here(plan.tensors()[group.tensor].shard.bytes());
      std::vector<std::byte> expected(here.size());
      (void)plan.execute(group, buffers[group.bucket], here, scratch);
      (void)plan.execute(group, plan.bucket_of(model.arena, group.bucket), expected, scratch);
      ASSERT_EQ(here, expected) << "a byte of a group was not copied";
    }
  }
}

Manifest matrices() {
  return Manifest::create({{.name = "a", .dtype = DType::kU8, .shape = {4096, 1024}},
                           {.name = "b", .dtype = DType::kU8, .shape = {4096, 1024}}})
      .value();
}

NeededBytes of_range(const control::DimRange& range) {
  const Manifest manifest = matrices();
  const BucketPlan buckets = BucketPlan::create(manifest, 16 * limits::kMiB).value();
  std::vector<control::EngineTensor> tensors;
  for (const TensorInfo& tensor : manifest.tensors()) tensors.push_back(wanted(tensor, {range}));
  return NeededBytes::of(LoadPlan::make(manifest, buckets, tensors).value());
}

TEST(NeededBytes, OfColumnsAreRowsAndOfRowsOneRange) {
  const NeededBytes columns = of_range({.dim = 1, .begin = 256, .length = 128});
  ASSERT_EQ(columns.bucket_count(), 1U);
  ASSERT_EQ(columns.of_bucket(0).size(), 2U) << "one call for each tensor";
  EXPECT_EQ(columns.of_bucket(0)[0],
            (NeededRows{.from = 256, .row_bytes = 128, .rows = 4096, .stride = 1024}));
  EXPECT_EQ(columns.bytes(), 2U * 4096 * 128);

  const NeededBytes rows = of_range({.dim = 0, .begin = 1024, .length = 1024});
  ASSERT_EQ(rows.of_bucket(0).size(), 2U);
  EXPECT_EQ(rows.of_bucket(0)[0],
            (NeededRows{.from = limits::kMiB, .row_bytes = limits::kMiB, .rows = 1, .stride = 0}));
  EXPECT_EQ(rows.bytes(), 2 * limits::kMiB);
}

TEST(NeededBytes, SmallRowsInLittleSpaceAreOneCopy) {
  const Manifest manifest =
      Manifest::create({{.name = "a", .dtype = DType::kU8, .shape = {4096, 16, 16}}}).value();
  const BucketPlan buckets = BucketPlan::create(manifest, 16 * limits::kMiB).value();
  const auto tensor = wanted(manifest.tensor(0), {{.dim = 1, .begin = 4, .length = 8},
                                                  {.dim = 2, .begin = 4, .length = 8}});
  const NeededBytes needed =
      NeededBytes::of(LoadPlan::make(manifest, buckets, std::array{tensor}).value());
  EXPECT_EQ(needed.of_bucket(0).size(), 1U) << "not a call for each of 4096 places";
  EXPECT_EQ(needed.bytes(), 4096U * 8 * 8);
}

TEST(NeededBytes, RangesWithLittleBetweenAreOneCopy) {
  const NeededBytes nearly_all = of_range({.dim = 0, .begin = 10, .length = 4086});
  ASSERT_EQ(nearly_all.of_bucket(0).size(), 1U);
  EXPECT_EQ(nearly_all.of_bucket(0)[0].bytes(), (2U * 4096 - 10) * 1024);
  EXPECT_EQ(nearly_all.bytes(), 2U * 4086 * 1024) << "without what lies between";
}

}  // namespace
}  // namespace wsync::reload
