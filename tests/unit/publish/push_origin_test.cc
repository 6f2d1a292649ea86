// Which host must have the directory of a push.
#include "trainer_side/publish/push_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::publish {
namespace {

TEST(PushOrigin, ATrainerReadsDirectoriesOfItsOwnHost) {
  EXPECT_EQ(why_not_read_here({.directory = "/m", .host = "a", .boot_id = "1"}, "a", "1"),
            std::nullopt);
  EXPECT_EQ(why_not_read_here({.directory = "/m", .host = "a", .boot_id = "1"}, "b", "1"),
            std::nullopt)
      << "containers of one host have names of their own";
}

TEST(PushOrigin, ADirectoryOfAnotherHostIsRefusedWithBothHosts) {
  const auto why =
      why_not_read_here({.directory = "/models/x", .host = "laptop", .boot_id = "1"}, "t0", "2");
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(*why,
            "/models/x is a directory of the host laptop, and the trainer that reads it is on the "
            "host t0: push on that host, or, if both see the directory under this path, with "
            "--shared-path");
}

TEST(PushOrigin, OneThatSaysNothingOfItsHostIsReadByTheTrainer) {
  EXPECT_EQ(why_not_read_here({.directory = "/m"}, "a", "1"), std::nullopt);
}

TEST(PushOrigin, AHostWhoseBootIsNotKnownIsAnotherOne) {
  EXPECT_TRUE(
      why_not_read_here({.directory = "/m", .host = "a", .boot_id = "1"}, "a", "").has_value());
}

}  // namespace
}  // namespace wsync::publish
