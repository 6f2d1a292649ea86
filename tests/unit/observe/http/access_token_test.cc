#include "shared/observe/http/access_token.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "shared/base/format.h"

namespace wsync::http {
namespace {

using testing::HasSubstr;

constexpr const char* kSecret = "correct-horse-battery";

AccessToken token() { return AccessToken::parse(fmt::format("{}\n", kSecret), "t").value(); }

bool admits(const std::string& authorization) {
  return token().admits({.headers = {{"authorization", authorization}}});
}

TEST(AccessToken, IsShownAsABearerTokenOrAsAPassword) {
  EXPECT_EQ(token().authorization(), fmt::format("Bearer {}", kSecret));
  EXPECT_TRUE(admits(token().authorization()));
  EXPECT_TRUE(admits(fmt::format("bearer   {} ", kSecret)));
  // printf 'eve:correct-horse-battery' | base64, and with no user, and with a longer one
  EXPECT_TRUE(admits("Basic ZXZlOmNvcnJlY3QtaG9yc2UtYmF0dGVyeQ=="));
  EXPECT_TRUE(admits("Basic OmNvcnJlY3QtaG9yc2UtYmF0dGVyeQ=="));
  EXPECT_TRUE(admits("basic ZXZlMTpjb3JyZWN0LWhvcnNlLWJhdHRlcnk="));
}

TEST(AccessToken, NothingElseIsAdmitted) {
  for (const std::string& header :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string(kSecret),
        fmt::format("Bearer {}x", kSecret), fmt::format("Bearer x{}", kSecret),
        fmt::format("Bearer {0}{0}", kSecret), std::string("Bearer correct-horse-batter"),
        std::string("Bearer c"), std::string("Bearer Correct-horse-battery"),
        fmt::format("Digest {}", kSecret), fmt::format("Basic {}", kSecret),
        // printf 'correct-horse-battery' | base64: no colon
        std::string("Basic Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5"),
        // printf 'correct-horse-battery:eve' | base64
        std::string("Basic Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5OmV2ZQ=="),
        // Base64 that is none.
        std::string("Basic OmNvcnJlY3QtaG9yc2UtYmF0dGVyeQ"), std::string("Basic ="),
        std::string("Basic ===="), std::string("Basic A==="), std::string("Basic O*==")})
    EXPECT_FALSE(admits(header)) << header;
  EXPECT_FALSE(token().admits({}));
  const std::string good = token().authorization();
  EXPECT_FALSE(token().admits({.headers = {{"Authorization", good}, {"Authorization", good}}}))
      << "two of them: a proxy may look at the other one";
}

TEST(AccessToken, AFileHasOneLineOfVisibleCharacters) {
  const auto why = [](std::string_view text) {
    const auto parsed = AccessToken::parse(text, "/etc/t");
    EXPECT_FALSE(parsed) << text;
    return parsed ? std::string() : parsed.error().message();
  };
  EXPECT_TRUE(AccessToken::parse("0123456789abcdef", "t"));
  EXPECT_TRUE(AccessToken::parse("0123456789abcdef\r\n", "t"));
  EXPECT_TRUE(AccessToken::parse(std::string(kTokenBytesMax, 'x'), "t"));
  EXPECT_EQ(
      why("0123456789abcde\n"),
      "/etc/t: expected one line with a token of 16 to 256 visible ASCII characters, found 15 "
      "characters: make one with `wsync keys token FILE`");
  EXPECT_THAT(why(""), HasSubstr("found 0 characters"));
  EXPECT_THAT(why(std::string(kTokenBytesMax + 1, 'x')), HasSubstr("found 257 characters"));
  const std::string two = why("0123456789abcdef\n0123456789abcdef\n");
  EXPECT_THAT(two, HasSubstr("found other characters in it"));
  EXPECT_THAT(two, testing::Not(HasSubstr("0123456789abcdef"))) << "a secret is not shown";
  EXPECT_THAT(why("0123456789 bcdef"), HasSubstr("found other characters in it"));
}

class TokenFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "wsync-token-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = std::filesystem::path(pattern) / "pages.token";
  }
  void TearDown() override { std::filesystem::remove_all(path_.parent_path()); }
  std::filesystem::path path_;
};

TEST_F(TokenFile, IsMadeOnceForItsOwnerAlone) {
  EXPECT_EQ(AccessToken::read(path_).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(AccessToken::make(path_));
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_EQ(status.st_size, 44) << "43 characters for 256 bits, and the end of the line";
  const std::string made = AccessToken::read(path_).value().authorization();
  const auto again = AccessToken::make(path_);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(AccessToken::read(path_).value().authorization(), made);
  const auto other = path_.parent_path() / "other";
  ASSERT_TRUE(AccessToken::make(other));
  EXPECT_NE(AccessToken::read(other).value().authorization(), made);
}

TEST_F(TokenFile, ThatOthersMayReadIsRefused) {
  ASSERT_TRUE(AccessToken::make(path_));
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  const auto read = AccessToken::read(path_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(read.error().message(), HasSubstr("otherwise make a new token"));
}

TEST_F(TokenFile, OfAMegabyteIsRefused) {
  std::ofstream(path_) << std::string(1 << 20, 'x');
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  EXPECT_THAT(AccessToken::read(path_).error().message(),
              HasSubstr("expected a token of at most 258 bytes, found more"));
}

}  // namespace
}  // namespace wsync::http
