// What a coordinator does with its folder of keys.
#include "trainer_side/publish/key_watch.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/format.h"
#include "tests/support/captured_log.h"
#include "tests/support/run_command.h"

namespace wsync::publish {
namespace {

using control::KeyRole;
using testing::HasSubstr;

control::KeyPair pair_of(char half) {
  return {.public_key = std::string(control::kKeyCharacters, half),
          .secret_key = std::string(control::kKeyCharacters, 'z')};
}

TEST(KeyWatch, JudgesByTheFolderAndSaysEachReasonOnce) {
  const cli::test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/keys";
  auto folder = control::KeyFolder::init(path, pair_of('a'));
  ASSERT_TRUE(folder.has_value()) << folder.error().message();
  ASSERT_TRUE(folder->add({.role = KeyRole::kReader, .name = "eve"}, pair_of('b')).has_value());
  test::capture_log();
  const auto watch = KeyWatch::create(path);
  ASSERT_TRUE(watch.has_value()) << watch.error().message();
  EXPECT_EQ((*watch)->router_keys().admitted.size(), 1U);
  control::RouterCallbacks callbacks;
  (*watch)->guard(callbacks);
  const control::KeyOwner eve{.role = KeyRole::kReader, .name = "eve"};
  EXPECT_EQ(callbacks.why_refused(eve, control::Status{}), std::nullopt);
  EXPECT_TRUE(callbacks.why_refused(eve, control::Push{}).has_value());
  for (int i = 0; i < 5; ++i) {
    callbacks.on_refused("reader eve", Error(ErrorCode::kRefused, "no"));
    callbacks.on_refused("reader bob", Error(ErrorCode::kRefused, "no"));
  }
  // An attacker who has a new key for each attempt does not fill the log.
  for (int i = 0; i < 1000; ++i)
    callbacks.on_refused(fmt::format("stranger {}", i), Error(ErrorCode::kRefused, "no"));
  const std::string log = test::captured_log();
  const auto count = [&log](std::string_view text) {
    int found = 0;
    for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("reader eve was refused: no"), 1) << log;
  EXPECT_EQ(count("reader bob was refused: no"), 1) << log;
  EXPECT_EQ(count("stranger"), 18);
  EXPECT_THAT(log, HasSubstr("the control port has keys: 1 key listed"));
}

TEST(KeyWatch, AFolderThatIsNoneIsRefused) {
  const cli::test::TemporaryDirectory directory;
  const auto watch = KeyWatch::create(directory.path() + "/none");
  ASSERT_FALSE(watch.has_value());
  EXPECT_EQ(watch.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(watch.error().message(), HasSubstr("keys: "));
}

}  // namespace
}  // namespace wsync::publish
