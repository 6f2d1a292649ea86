#include "shared/observe/http/chunked_body.h"

#include <gtest/gtest.h>

namespace wsync::http {
namespace {

using BodyState = ChunkedBody::State;

struct Taken {
  BodyState state;
  std::size_t used;
  std::string body;
};

// The wire in pieces of this size.
Taken taken(std::string_view wire, std::size_t piece_bytes, std::uint64_t limit = 100) {
  ChunkedBody chunks(limit);
  Taken result{};
  while (result.used < wire.size() && chunks.state() == BodyState::kMore)
    result.used += chunks.take(wire.substr(result.used, piece_bytes), result.body);
  result.state = chunks.state();
  return result;
}

TEST(ChunkedBody, IsTheSameInPiecesOfAnySize) {
  const std::string wire =
      "5\r\nhello\r\n0B;name=value\r\n, chunked\r\n\r\n1 \t\r\n!\r\n000\r\nTrailer: x\r\n\r\n";
  for (std::size_t piece = 1; piece <= wire.size() + 4; ++piece) {
    const Taken result = taken(wire + "GET ", piece);
    EXPECT_EQ(result.state, BodyState::kEnd) << piece;
    EXPECT_EQ(result.used, wire.size()) << piece;
    EXPECT_EQ(result.body, "hello, chunked\r\n!") << piece;
  }
}

TEST(ChunkedBody, GoesOnUntilItsLastLine) {
  const std::string wire = "a\r\n0123456789\r\n0\r\n\r\n";
  for (std::size_t n = 0; n < wire.size(); ++n)
    EXPECT_EQ(taken(wire.substr(0, n), 3).state, BodyState::kMore) << n;
  EXPECT_EQ(taken(wire, 3).state, BodyState::kEnd);
}

TEST(ChunkedBody, ThatIsNoneIsRefused) {
  for (const std::string wire :
       {"\r\n", "x\r\n", "-1\r\n", "+1\r\n", "0x1\r\n", " 1\r\n", ";a\r\n", "1g\r\n", "1\n", "\n",
        "2\r\nabXX\r\n", "2\r\nab\n", "2\r\nabc\r\n", "0\r\nTrailer: x\n"})
    EXPECT_EQ(taken(wire, wire.size()).state, BodyState::kBad) << wire;
  EXPECT_EQ(taken("1;" + std::string(kMaxChunkLineBytes, 'x'), 9).state, BodyState::kBad);
}

TEST(ChunkedBody, MoreThanTheLimitIsRefusedBeforeItComes) {
  EXPECT_EQ(taken("64\r\n", 9).state, BodyState::kMore);
  EXPECT_EQ(taken("65\r\n", 9).state, BodyState::kTooLarge);
  EXPECT_EQ(taken("ffffffffffffffff\r\n", 99).state, BodyState::kTooLarge);
  EXPECT_EQ(taken("10000000000000000\r\n", 99).state, BodyState::kTooLarge);
  EXPECT_EQ(taken("60\r\n" + std::string(96, 'a') + "\r\n5\r\n", 9).state, BodyState::kTooLarge);
}

TEST(ChunkedBody, LinesWithoutEndAreRefused) {
  std::string wire = "0\r\n";
  while (wire.size() <= kMaxChunkOverheadBytes) wire += std::string(200, 'x') + "\r\n";
  EXPECT_EQ(taken(wire, wire.size()).state, BodyState::kTooLarge);
}

}  // namespace
}  // namespace wsync::http
