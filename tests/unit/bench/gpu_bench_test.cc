// What is measured on GPUs, without one: the batch of a bucket, how buckets lie, and the report.
#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "bench/gpu/batch.h"
#include "bench/gpu/report.h"
#include "bench/gpu/staged_arena.h"
#include "bench/gpu/stages.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kPlaceOffset = 4096;

// Every byte of the bucket is read once, and every byte of the destination written once.
void expect_a_permutation(std::uint64_t bytes) {
  auto device =
      device::make_device({.kind = DeviceKind::kSeparate, .index = device::DeviceIndex{0}});
  ASSERT_TRUE(device.has_value());
  std::vector<std::byte> memory_bytes(kPlaceOffset + bytes);
  const auto memory = *(*device)->borrow(memory_bytes);
  const Batch batch = make_batch({.from = memory.get(),
                                  .from_offset = kPlaceOffset,
                                  .to = memory.get(),
                                  .to_offset = 0,
                                  .bytes = bytes});
  std::vector<std::uint8_t> reads(bytes);
  std::vector<std::uint8_t> writes(bytes);
  for (const device::Piece& piece : batch.pieces) {
    ASSERT_LT(piece.sum, batch.sums);
    for (std::uint64_t row = 0; row < piece.rows; ++row)
      for (std::uint64_t i = 0; i < piece.row_bytes; ++i) {
        ++reads.at(piece.from_offset - kPlaceOffset + row * piece.from_stride + i);
        ++writes.at(piece.to_offset + row * piece.row_bytes + i);
      }
  }
  EXPECT_EQ(std::ranges::count(reads, 1), static_cast<std::ptrdiff_t>(bytes)) << bytes;
  EXPECT_EQ(std::ranges::count(writes, 1), static_cast<std::ptrdiff_t>(bytes)) << bytes;
}

TEST(GpuBenchBatch, TakesEveryByteOfABucketOnce) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{100}, 64 * limits::kKiB,
                                    2 * limits::kMiB, 3 * limits::kMiB + 7})
    expect_a_permutation(bytes);
}

TEST(GpuBenchBatch, HasManyTensorsAndColumns) {
  const Batch batch = make_batch({.bytes = 512 * limits::kMiB});
  EXPECT_GT(batch.sums, 6U);
  EXPECT_TRUE(std::ranges::any_of(batch.pieces, [](const auto& piece) { return piece.rows > 1; }));
  std::uint64_t bytes = 0;
  for (const auto& piece : batch.pieces) bytes += piece.bytes();
  EXPECT_EQ(bytes, 512 * limits::kMiB);
}

TEST(GpuBenchBatch, TheCheckFindsWhatChangedAndWhatWasSwapped) {
  std::vector<std::byte> bucket(limits::kMiB);
  fill_with_noise(bucket, 1);
  const auto check = expected_check(bucket);
  ASSERT_TRUE(check.has_value());
  EXPECT_EQ(*expected_check(bucket), *check);
  bucket[limits::kMiB / 3] ^= std::byte{4};
  EXPECT_NE(*expected_check(bucket), *check);
  const std::vector<SplitSum> sums = {{.words = {.product = 1, .sum = 2}, .edges = {}},
                                      {.words = {.product = 3, .sum = 4}, .edges = {}}};
  const std::vector<SplitSum> swapped = {sums[1], sums[0]};
  EXPECT_NE(check_of(sums), check_of(swapped));
}

TEST(GpuBenchBuckets, AreCutAndPutInPlace) {
  const std::vector<std::byte> bytes(10);
  const Buckets buckets{.bytes = bytes, .bucket_bytes = 4};
  EXPECT_EQ(buckets.count(), 3U);
  EXPECT_EQ(buckets.at(1).size(), 4U);
  EXPECT_EQ(buckets.at(2).size(), 2U);
  // A reader with room for two of them goes round.
  EXPECT_EQ(reload_offset(0, 4, 9), 0U);
  EXPECT_EQ(reload_offset(1, 4, 9), 4U);
  EXPECT_EQ(reload_offset(2, 4, 9), 0U);
}

CopyCase copy_case(double ratio) {
  CopyCase made;
  made.name = "reload";
  made.target = kReloadTarget;
  made.rates = {ratio};
  made.ceiling_rates = {1.0};
  made.ratio = spread_of(made.rates);
  return made;
}

PipelineCase pipeline_case(double three_stages) {
  PipelineCase made;
  made.gpus = {0, 0};
  made.rounds = {{.h2d = 1.0, .broadcast = 0.5, .reload = 0.2, .three_stages = three_stages}};
  const double ratio = made.rounds[0].three_stages / made.rounds[0].longest();
  made.three_ratio = spread_of({&ratio, 1});
  return made;
}

TEST(GpuBenchReport, SaysOfEachTargetWhetherItWasMet) {
  GpuBenchResult result;
  result.copies = {copy_case(0.95)};
  result.pipelines = {pipeline_case(1.05)};
  EXPECT_TRUE(targets_met(result));
  EXPECT_EQ(to_json(result)["copies"][0]["met"], true);
  EXPECT_EQ(to_text(result).find("missed"), std::string::npos);
  result.copies.push_back(copy_case(0.89));
  EXPECT_FALSE(targets_met(result));
  EXPECT_EQ(to_json(result)["copies"][1]["met"], false);
  EXPECT_NE(to_text(result).find("missed"), std::string::npos);
  result.copies.pop_back();
  result.pipelines.push_back(pipeline_case(1.11));
  EXPECT_FALSE(targets_met(result));
  EXPECT_EQ(to_json(result)["pipelines"][1]["met"], false);
}

TEST(GpuBenchReport, SaysOfWhichPagesArenasCannotBe) {
  GpuBenchResult result;
  PageSizeCase small{.pages = "4 KiB", .bytes = limits::kGiB / 2, .missing = {}, .fallback = {}};
  small.taken = {0.05};
  small.copied = {50e9};
  small.register_s = spread_of(small.taken);
  small.rate = spread_of(small.copied);
  result.page_sizes = {
      small, {.pages = "huge, of the pool", .missing = "the pool is empty", .fallback = {}}};
  const std::string text = to_text(result);
  EXPECT_NE(text.find("4 KiB                        0.1000"), std::string::npos) << text;
  EXPECT_NE(text.find("huge, of the pool  not available: the pool is empty"), std::string::npos)
      << text;
  EXPECT_EQ(to_json(result)["page_sizes"][1]["missing"], "the pool is empty");
  const SuiteResult suite = to_suite(result);
  ASSERT_EQ(suite.cases.size(), 2U) << "what was not measured is no case";
  EXPECT_EQ(suite.cases[1].samples, std::vector{50.0});
}

TEST(GpuBenchArena, IsMappedAsASidecarMapsThoseOfATrainer) {
  const auto arena = StagedArena::create({.bytes = 3 * limits::kMiB, .seed = 2});
  ASSERT_TRUE(arena.has_value()) << arena.error().message();
  std::vector<std::byte> expected(3 * limits::kMiB);
  fill_with_noise(expected, 2);
  EXPECT_TRUE(std::ranges::equal(arena->data(), expected));
  EXPECT_GE(arena->data().data(), arena->mapping().data());
  EXPECT_EQ(arena->fallback(), "");
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // arenas are not mapped in a forked child
  EXPECT_DEATH(
      {
        const auto read_only = StagedArena::create({.bytes = limits::kMiB, .seed = 2});
        const_cast<std::byte&>(read_only->data().front()) = std::byte{1};
      },
      "");
}

TEST(GpuBenchReport, SaysWhenNoGpuDidIt) {
  GpuBenchResult result;
  EXPECT_EQ(to_text(result).find("EMULATED"), std::string::npos);
  EXPECT_EQ(to_json(result)["emulated"], false);
  result.emulated = true;
  EXPECT_NE(to_text(result).find("EMULATED"), std::string::npos);
  EXPECT_EQ(to_json(result)["emulated"], true);
}

}  // namespace
}  // namespace wsync::bench
