#include "inference_side/reference_engine/http/utf8.h"

#include <gtest/gtest.h>
#include <string_view>
#include <vector>

namespace wsync::engine::http {
namespace {

using Bytes = std::vector<std::uint8_t>;

const std::string kReplaced = "\xEF\xBF\xBD";

std::string decoded(std::string_view bytes) {
  Utf8Decoder decoder;
  std::string text;
  for (const char byte : bytes) decoder.take(static_cast<std::uint8_t>(byte), text);
  decoder.finish(text);
  return text;
}

TEST(Utf8, WholeCharactersStayAsTheyAre) {
  const std::string text =
      "a\n\0z \xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 "
      "\xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF";
  EXPECT_EQ(decoded(text), text);
}

TEST(Utf8, WhatIsNoCharacterIsReplaced) {
  EXPECT_EQ(decoded("\x80"), kReplaced);                  // a continuation alone
  EXPECT_EQ(decoded("\xC0\x80"), kReplaced + kReplaced);  // overlong, in two bytes
  EXPECT_EQ(decoded("\xC1\xBF"), kReplaced + kReplaced);
  EXPECT_EQ(decoded("\xE0\x9F\xBF"), kReplaced + kReplaced + kReplaced);  // in three
  EXPECT_EQ(decoded("\xF0\x8F\xBF\xBF"), kReplaced + kReplaced + kReplaced + kReplaced);
  EXPECT_EQ(decoded("\xED\xA0\x80"), kReplaced + kReplaced + kReplaced);  // a surrogate
  EXPECT_EQ(decoded("\xF4\x90\x80\x80"), kReplaced + kReplaced + kReplaced + kReplaced);
  EXPECT_EQ(decoded("\xF5\xFF"), kReplaced + kReplaced);
}

TEST(Utf8, AnUnfinishedCharacterIsOneReplacement) {
  EXPECT_EQ(decoded("\xE2\x82"), kReplaced);
  EXPECT_EQ(decoded("\xF0\x9F\x98"), kReplaced);
  EXPECT_EQ(decoded("\xE2\x82X"), kReplaced + "X");
  EXPECT_EQ(decoded("\xE2\x82\xC3\xA9"), kReplaced + "\xC3\xA9");
  EXPECT_EQ(decoded("\xF0\x9F\xE2\x82\xAC"), kReplaced + "\xE2\x82\xAC");
}

TEST(Utf8, ACharacterIsGivenOutOnceItIsWhole) {
  Utf8Decoder decoder;
  std::string text;
  for (const std::uint8_t byte : Bytes{0xE2, 0x82}) decoder.take(byte, text);
  EXPECT_EQ(text, "");
  EXPECT_EQ(decoder.characters(), 0U);
  decoder.take(0xAC, text);
  EXPECT_EQ(text, "\xE2\x82\xAC");
  EXPECT_EQ(decoder.characters(), 1U);
  decoder.finish(text);
  EXPECT_EQ(text, "\xE2\x82\xAC");
}

TEST(Utf8, EveryByteHasThePlaceOfItsCharacter) {
  Utf8Decoder decoder;
  std::string text;
  std::vector<std::uint64_t> places;
  // A euro sign, an unfinished one, an x, a byte that is nothing, a y.
  for (const std::uint8_t byte : Bytes{0xE2, 0x82, 0xAC, 0xE2, 0x82, 0x78, 0xFF, 0x79})
    places.push_back(decoder.take(byte, text));
  EXPECT_EQ(places, (std::vector<std::uint64_t>{0, 0, 0, 1, 1, 2, 3, 4}));
  EXPECT_EQ(text, "\xE2\x82\xAC" + kReplaced + "x" + kReplaced + "y");
}

}  // namespace
}  // namespace wsync::engine::http
