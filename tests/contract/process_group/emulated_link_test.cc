#include "shared/process_group/emulated_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "shared/process_group/memory/host_segment.h"
#include "tests/contract/process_group/process_group_suite.h"

namespace wsync::collective {
namespace {

Groups in_memory(std::uint32_t size, const LinkSpeed& speed) {
  const auto segment = memory::HostSegment::create({.size = size});
  Groups groups;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    groups.push_back(std::move(*emulate_link(std::move(*segment->attach(rank)), speed)));
  return groups;
}

INSTANTIATE_TEST_SUITE_P(EmulatedLink, ProcessGroupContract,
                         ::testing::Values(GroupBackend{
                             .name = "Memory",
                             .make =
                                 [](std::uint32_t size) {
                                   return in_memory(size, {.latency = std::chrono::microseconds(10),
                                                           .bytes_per_second = 1e9});
                                 },
                             .seeds = 1}),
                         backend_name);

TEST(EmulatedLink, AnExchangeLastsAsLongAsItsLatencyAndItsLargerDirection) {
  const Groups groups =
      in_memory(3, {.latency = std::chrono::milliseconds(20), .bytes_per_second = 1e6});
  const Bytes sent(30'000);
  const TimePoint begin = now();
  // Two messages of 30 ms each, from one rank: they share its link.
  ASSERT_TRUE(groups[0]->exchange(
      std::vector<Send>{{.to = 1, .bytes = sent}, {.to = 2, .bytes = sent}}, {}, far_off()));
  EXPECT_GE(now() - begin, std::chrono::milliseconds(80));
  Bytes received(sent.size());
  const TimePoint again = now();
  ASSERT_TRUE(
      groups[1]->exchange({}, std::vector<Receive>{{.from = 0, .bytes = received}}, far_off()));
  EXPECT_GE(now() - again, std::chrono::milliseconds(50));
}

TEST(EmulatedLink, WhatTheLinkCannotDoUntilTheDeadlineFails) {
  const Groups groups = in_memory(2, {.bytes_per_second = 1.0});
  const Bytes sent(600);
  const auto result = groups[0]->exchange(std::vector<Send>{{.to = 1, .bytes = sent}}, {},
                                          in(std::chrono::seconds(5)));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kDeadline);
  EXPECT_EQ(result.error().message(),
            "rank 0 sends 600 bytes and receives 0 bytes on a link of 1 bytes/s, which takes "
            "longer than its deadline");
  EXPECT_EQ(groups[1]->health().error().message(), result.error().message());
}

TEST(EmulatedLink, ASpeedThatIsNoneIsRefused) {
  using std::chrono::nanoseconds;
  const auto refusal = [](const LinkSpeed& speed) {
    const auto segment = memory::HostSegment::create({.size = 1});
    const auto link = emulate_link(std::move(*segment->attach(0)), speed);
    EXPECT_FALSE(link.has_value());
    return link ? "" : link.error().message();
  };
  EXPECT_EQ(refusal({}), "a link of 0 bytes/s, expected more than 0");
  EXPECT_EQ(refusal({.bytes_per_second = -1.0}), "a link of -1 bytes/s, expected more than 0");
  EXPECT_EQ(refusal({.bytes_per_second = std::numeric_limits<double>::quiet_NaN()}),
            "a link of nan bytes/s, expected more than 0");
  EXPECT_EQ(refusal({.latency = nanoseconds(-1), .bytes_per_second = 1.0}),
            "a link with a latency of -1 ns, expected 0 to 1000000000 s");
}

}  // namespace
}  // namespace wsync::collective
