#include "shared/command/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/unix_socket.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

TEST(Ask, TheTimeoutAlsoLimitsTheConnection) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/run/control";
  // Its queue takes the connection, and nothing answers it.
  const auto listener = ListeningSocket::bind(path);
  ASSERT_TRUE(listener.has_value()) << listener.error().message();
  const auto reply =
      ask<control::StatusReply>({.address = "ipc://" + path, .timeout_s = 0.05}, control::Status{});
  ASSERT_FALSE(reply.has_value());
  EXPECT_THAT(reply.error().message(), testing::HasSubstr("within 50 ms"));
}

}  // namespace
}  // namespace wsync::cli
