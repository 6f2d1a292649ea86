#include "shared/transport/frame.h"

#include <algorithm>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/limits.h"
#include "shared/transport/offered.h"
#include "shared/transport/tcp/frame_reader.h"

namespace wsync::transport {
namespace {

using ::testing::HasSubstr;

Frame example(FrameType type) {
  return {
      .type = type,
      .key = {.fence = {.epoch = 1, .run_id = {2, 3}},
              .version = {.epoch = 4, .step = 5},
              .layout = {.low = 6, .high = 7}},
      .code = type == FrameType::kFailure ? ErrorCode::kBusy : ErrorCode::kInternal,
      .bucket = 8,
      .bytes = type == FrameType::kWaiting ? 0U : 9U,
      .base = type == FrameType::kGet || type == FrameType::kChanges || type == FrameType::kArena
                  ? Version{.epoch = 10, .step = 11}
                  : Version(),
      .changes_max = type == FrameType::kGet ? 12U : 0U,
      .takes_leaves = type == FrameType::kGet,
      .takes_changes_alone = false,
      .offset = type == FrameType::kLeaves ? 13U : 0U};
}

std::string refusal(std::array<std::byte, kFrameBytes> bytes) {
  const auto frame = decode_frame(bytes);
  return frame ? "accepted" : frame.error().message();
}

TEST(DataFrame, EveryTypeComesBackAsItWas) {
  for (const auto type :
       {FrameType::kGet, FrameType::kBucket, FrameType::kWaiting, FrameType::kFailure,
        FrameType::kArena, FrameType::kChanges, FrameType::kLeaves}) {
    const Frame sent = example(type);
    const auto got = decode_frame(encode_frame(sent));
    ASSERT_TRUE(got.has_value()) << got.error().message();
    EXPECT_EQ(got->type, sent.type);
    EXPECT_EQ(got->key, sent.key);
    EXPECT_EQ(got->code, sent.code);
    EXPECT_EQ(got->bucket, sent.bucket);
    EXPECT_EQ(got->bytes, sent.bytes);
    EXPECT_EQ(got->base, sent.base);
    EXPECT_EQ(got->changes_max, sent.changes_max);
    EXPECT_EQ(got->takes_leaves, sent.takes_leaves);
    EXPECT_EQ(got->offset, sent.offset);
  }
  Frame alone = example(FrameType::kGet);
  alone.takes_leaves = false;
  alone.takes_changes_alone = true;
  const auto got = decode_frame(encode_frame(alone));
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(got->takes_changes_alone && !got->takes_leaves);
  EXPECT_EQ(got->changes_max, alone.changes_max);
  const Digest digest{.low = 1, .high = 2};
  EXPECT_EQ(decode_trailer(encode_trailer(digest)), digest);
}

TEST(DataFrame, WrongFieldsAreRefusedByName) {
  const auto with = [](std::size_t offset, std::uint8_t value) {
    auto bytes = encode_frame(example(FrameType::kGet));
    bytes[offset] = static_cast<std::byte>(value);
    return bytes;
  };
  EXPECT_THAT(refusal(with(0, 0)), HasSubstr("magic"));
  EXPECT_THAT(refusal(with(4, 2)), HasSubstr("protocol version: 2, expected 3"));
  EXPECT_THAT(refusal(with(6, 0)), HasSubstr("type"));
  EXPECT_THAT(refusal(with(6, 8)), HasSubstr("type: value 8 is unknown"));
  EXPECT_THAT(refusal(with(36, 1)), HasSubstr("error code"));
  EXPECT_THAT(refusal(with(63, 1)), HasSubstr("bytes"));
  EXPECT_THAT(refusal(with(84, 1)), HasSubstr("base epoch: 1 is behind it"));
  Frame bucket = example(FrameType::kBucket);
  bucket.base.step = 1;
  EXPECT_THAT(refusal(encode_frame(bucket)),
              HasSubstr("only a request for changes, changes, leaves and arenas"));
  Frame changes = example(FrameType::kChanges);
  changes.base = {};
  EXPECT_THAT(refusal(encode_frame(changes)), HasSubstr("base"));
  changes = example(FrameType::kChanges);
  changes.changes_max = 1;
  EXPECT_THAT(refusal(encode_frame(changes)), HasSubstr("only a request has them"));
  Frame leaves = example(FrameType::kLeaves);
  leaves.offset = limits::kBucketBytesMax;
  EXPECT_THAT(refusal(encode_frame(leaves)), HasSubstr("offset: 8589934592, expected less than"));
  Frame failure = example(FrameType::kFailure);
  failure.bytes = limits::kStreamTextBytes + 1;
  EXPECT_THAT(refusal(encode_frame(failure)), HasSubstr("at most 4096 allowed"));
}

TEST(DataFrame, LongReasonIsCutToItsLimit) {
  const Error error(ErrorCode::kIo, std::string(2 * limits::kStreamTextBytes, 'x'));
  EXPECT_EQ(failure_text(error).size(), limits::kStreamTextBytes);
  const Frame answer = failure_frame(example(FrameType::kGet), error);
  EXPECT_EQ(answer.bytes, limits::kStreamTextBytes);
  EXPECT_EQ(refusal(encode_frame(answer)), "accepted");
}

// A stream of frames, fed in pieces of random size, comes apart into the same frames.
TEST(FrameReader, TakesAnyFragmentationApart) {
  std::mt19937_64 random(3);
  Bytes payload(3000);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
  Frame bucket = example(FrameType::kBucket);
  bucket.bytes = payload.size();
  Frame failure = example(FrameType::kFailure);
  failure.bytes = 5;
  Bytes stream;
  const auto add = [&](const auto& bytes) {
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  };
  add(encode_frame(example(FrameType::kWaiting)));
  add(encode_frame(bucket));
  add(payload);
  // Two leaves with room before, between and behind them; the first one ends within a word.
  const std::vector<LeafPlace> leaves = {
      {.arena_offset = 64, .bytes = 1003, .place = {.seed = 5, .position = 0}, .tensor = 0},
      {.arena_offset = 1600, .bytes = 1200, .place = {.seed = 6, .position = 4096}, .tensor = 1}};
  std::vector<WordSum> sums;
  for (const LeafPlace& leaf : leaves)
    sums.push_back(word_sum(std::span(payload).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
  add(encode_trailer(bucket_digest(sums)));
  add(encode_frame(failure));
  add(std::as_bytes(std::span("sorry", 5)));

  for (int round = 0; round < 200; ++round) {
    Bytes arena(payload.size());
    tcp::FrameReader reader([&](const Frame&) -> Result<tcp::PayloadPlace> {
      return tcp::PayloadPlace{.bytes = arena, .leaves = leaves, .arena_offset = 0, .arena = arena};
    });
    std::vector<tcp::ArrivedFrame> arrived;
    for (std::size_t at = 0; at < stream.size();) {
      const auto room = reader.next();
      ASSERT_FALSE(room.empty());
      const std::size_t n = std::min({room.size(), 1 + random() % 700, stream.size() - at});
      std::memcpy(room.data(), stream.data() + at, n);
      at += n;
      auto frame = reader.advance(n);
      ASSERT_TRUE(frame.has_value()) << frame.error().message();
      if (*frame) arrived.push_back(std::move(**frame));
    }
    ASSERT_EQ(arrived.size(), 3U);
    EXPECT_EQ(arrived[1].computed, arrived[1].promised);
    EXPECT_EQ(arrived[1].sums, sums);
    EXPECT_EQ(arena, payload);
    EXPECT_EQ(arrived[2].text, "sorry");
  }
}

TEST(FrameReader, RefusalOfAHeaderEndsTheStream) {
  tcp::FrameReader reader([](const Frame&) -> Result<tcp::PayloadPlace> {
    return fail(ErrorCode::kRefused, "not asked for");
  });
  const auto bytes = encode_frame(example(FrameType::kBucket));
  std::memcpy(reader.next().data(), bytes.data(), bytes.size());
  EXPECT_EQ(reader.advance(bytes.size()).error().message(), "not asked for");
}

}  // namespace
}  // namespace wsync::transport
