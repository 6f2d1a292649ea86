// What a batch may be, and that bytes are read as one or refused with a reason.
#include "inference_side/reference_engine/generation/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

namespace wsync::engine::generation {
namespace {

constexpr BatchLimits kLimits{
    .vocabulary = 50, .max_positions = 20, .blocks = 8, .block_tokens = 4, .tokens = 12};

// A prompt's first piece, a sequence that decodes, and one that shares a full block with it.
Batch some_batch() {
  return {.slices = {{.first_position = 0, .tokens = {1, 2, 3, 4, 5}, .blocks = {7, 0}},
                     {.first_position = 6, .tokens = {49}, .blocks = {3, 5}, .wants_logits = true},
                     {.first_position = 4,
                      .tokens = {0, 0},
                      .blocks = {3, 1, 2},  // one ahead of what it needs
                      .wants_logits = true}}};
}

std::string refusal(const Batch& batch, const BatchLimits& limits = kLimits) {
  const Result<> checked = check_batch(batch, limits);
  const Result<Batch> read = decode_batch(encode(batch), limits);
  EXPECT_EQ(checked.has_value(), read.has_value());
  if (checked || read) return "taken";
  EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
  return checked.error().message();
}

std::string refusal(const SequenceSlice& slice) { return refusal(Batch{.slices = {slice}}); }

TEST(Batch, CountsItsTokensAndLogits) {
  EXPECT_EQ(Batch{}.tokens(), 0U);
  EXPECT_EQ(some_batch().tokens(), 8U);
  EXPECT_EQ(some_batch().logits(), 2U);
}

TEST(Batch, ReadsBackAsItWasWritten) {
  for (const Batch& batch : {Batch{}, some_batch()}) {
    const Result<Batch> read = decode_batch(encode(batch), kLimits);
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ(*read, batch);
  }
}

TEST(Batch, EverySliceIsHeldAgainstTheLimits) {
  EXPECT_EQ(refusal({.first_position = 3, .tokens = {}, .blocks = {1}}), "slice 0 has no token");
  EXPECT_EQ(refusal({.first_position = 0, .tokens = {50}, .blocks = {1}}),
            "slice 0 has token 50; the vocabulary has 50");
  EXPECT_EQ(refusal({.first_position = 18, .tokens = {1, 2, 3}, .blocks = {0, 1, 2, 3, 4, 5}}),
            "slice 0 ends at position 21, expected 20 at most");
  EXPECT_EQ(refusal({.first_position = 0xffff'ffff, .tokens = {1}, .blocks = {0, 1, 2, 3, 4, 5}}),
            "slice 0 ends at position 4294967296, expected 20 at most");
  EXPECT_EQ(refusal({.first_position = 7, .tokens = {1, 2}, .blocks = {0, 1}}),
            "slice 0 has 2 blocks of 4 tokens for 9 positions, expected 3");
  EXPECT_EQ(refusal({.first_position = 0, .tokens = {1}, .blocks = {}}),
            "slice 0 has 0 blocks of 4 tokens for 1 position, expected 1");
  EXPECT_EQ(refusal({.first_position = 0, .tokens = {1}, .blocks = {8}}),
            "slice 0 has block 8; there are only 8 blocks");
  EXPECT_EQ(refusal({.first_position = 4, .tokens = {1}, .blocks = {2, 2}}),
            "slice 0 has block 2 twice");
  // The last of everything.
  EXPECT_EQ(refusal({.first_position = 19, .tokens = {49}, .blocks = {7, 6, 5, 4, 3}}), "taken");
}

TEST(Batch, AllTokensTogetherAreAStepsAtMost) {
  Batch batch;
  for (std::uint32_t i = 0; i < 4; ++i)
    batch.slices.push_back({.first_position = 0, .tokens = {1, 2, 3}, .blocks = {i}});
  EXPECT_EQ(refusal(batch), "taken");
  batch.slices.front().tokens.push_back(4);
  EXPECT_EQ(refusal(batch), "13 tokens in one step, expected 12 at most");
}

TEST(Batch, NoTwoSlicesWriteToOnePlace) {
  Batch batch = some_batch();
  batch.slices[2].blocks[1] = 5;  // position 6 of slice 1 is in block 5 too
  batch.slices[2].first_position = 5;
  EXPECT_EQ(refusal(batch), "slices 1 and 2 both write to position 2 of block 5");
  // One block, other positions; and a place that one slice writes and another reads.
  batch.slices[2].first_position = 4;
  EXPECT_EQ(refusal(batch), "taken");
}

TEST(Batch, BytesThatEndEarlyOrLateAreRefused) {
  const Bytes bytes = encode(some_batch());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Result<Batch> read = decode_batch(std::span(bytes).first(size), kLimits);
    ASSERT_FALSE(read.has_value()) << size;
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  const Result<Batch> read = decode_batch(longer, kLimits);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().message(), "a batch: end: 1 bytes left over after the last field");
}

TEST(Batch, CountsAreHeldAgainstTheBytesBeforeThereIsMemoryForThem) {
  const auto why = [](std::size_t at, std::uint32_t value) {
    Bytes bytes = encode(some_batch());
    std::memcpy(bytes.data() + at, &value, sizeof value);
    const Result<Batch> read = decode_batch(bytes, kLimits);
    return read ? std::string("taken") : read.error().message();
  };
  EXPECT_EQ(why(0, 0xffff'ffff), "a batch: slices: 4294967295 entries, at most 12 allowed");
  EXPECT_EQ(why(0, 12), "a batch: slices: 12 entries do not fit in the 99 bytes that are left");
  EXPECT_THAT(why(9, 0x4000'0000), ::testing::StartsWith("a batch: tokens: 1073741824 entries"));
  EXPECT_THAT(why(33, 0x4000'0000), ::testing::StartsWith("a batch: blocks: 1073741824 entries"));
  Bytes flag = encode(some_batch());
  flag[8] = std::byte{2};
  const Result<Batch> read = decode_batch(flag, kLimits);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().message(), "a batch: wants logits: a flag must be 0 or 1, found 2");
}

TEST(BatchDeathTest, LimitsAreNotZero) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  BatchLimits limits = kLimits;
  limits.block_tokens = 0;
  EXPECT_DEATH(static_cast<void>(check_batch({}, limits)),
               "a batch is checked against limits above 0");
}

}  // namespace
}  // namespace wsync::engine::generation
