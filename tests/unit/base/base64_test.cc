#include "shared/base/base64.h"

#include <gtest/gtest.h>
#include <string>

namespace wsync {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::optional<std::string> decoded(std::string_view text) {
  const auto bytes = decode_base64(text);
  if (!bytes) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

// RFC 4648, section 10.
TEST(Base64, TheExamplesOfTheStandard) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [text, code] : examples) {
    EXPECT_EQ(base64(bytes_of(text)), code);
    EXPECT_EQ(decoded(code), text);
  }
}

TEST(Base64, EveryByteComesBack) {
  for (std::size_t size = 0; size < 70; ++size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(i * 89 + size * 7);
    EXPECT_EQ(decoded(base64(bytes_of(text))), text);
  }
  EXPECT_EQ(base64url(bytes_of("\xfb\xff\xbe")), "-_--");
  EXPECT_EQ(base64url(bytes_of("f")), "Zg");
}

TEST(Base64, OtherTextsAreNone) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zg==Zg==", "Z===", "====", "Zm9v!mFy", "Zm9\n",
                           "-_--", "Zh=="})  // the last one has bits that no byte has
    EXPECT_FALSE(decode_base64(text).has_value()) << text;
}

}  // namespace
}  // namespace wsync
