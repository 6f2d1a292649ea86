#include "shared/base/open_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace wsync {
namespace {

using testing::HasSubstr;

class OpenFilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void set_soft(rlim_t soft) const {
    const rlimit limit{.rlim_cur = soft, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  static rlim_t soft() {
    rlimit limit{};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
  }
  rlimit before_{};
};

TEST_F(OpenFilesTest, TheSoftLimitIsRaisedToTheHardOne) {
  set_soft(100);
  EXPECT_EQ(raise_open_files(), before_.rlim_max);
  EXPECT_EQ(soft(), before_.rlim_max);
  EXPECT_EQ(raise_open_files(), before_.rlim_max) << "again";
}

TEST_F(OpenFilesTest, ALimitThatIsTooLowIsAnErrorWithItsRemedy) {
  set_soft(100);
  EXPECT_TRUE(allow_open_files(before_.rlim_max).has_value());
  if (before_.rlim_max == RLIM_INFINITY) GTEST_SKIP() << "nothing is above this hard limit";
  const Result<> allowed = allow_open_files(before_.rlim_max + 1);
  ASSERT_FALSE(allowed.has_value());
  EXPECT_EQ(allowed.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(allowed.error().message(), HasSubstr("ulimit -Hn"));
}

}  // namespace
}  // namespace wsync
