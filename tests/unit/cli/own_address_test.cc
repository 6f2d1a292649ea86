// The address by which this host reaches another one. Nothing of the network of the tests is
// needed.
#include "deploy/cli/own_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::cli {
namespace {

using testing::HasSubstr;

TEST(OwnAddress, IsNotNeededWithinThisHost) {
  for (const std::string address : {"ipc:///run/wsync/control", "tcp://127.0.0.1:7000",
                                    "tcp://localhost:7000", "tcp://127.8.0.1:1"})
    EXPECT_EQ(own_address_towards(address).value(), "") << address;
}

TEST(OwnAddress, ANameThatLeadsNowhereIsNamed) {
  const auto own = own_address_towards("tcp://no-such-host.invalid:7000");
  ASSERT_FALSE(own.has_value());
  EXPECT_EQ(own.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(own.error().message(),
              HasSubstr("tcp://no-such-host.invalid:7000: the name 'no-such-host.invalid' has no "
                        "address: "));
}

TEST(OwnAddress, OfSeveralTheFirstThatIsReachedCounts) {
  EXPECT_EQ(own_address_towards("tcp://no-such-host.invalid:1, tcp://127.0.0.1:1").value(), "");
}

TEST(OwnAddress, AnotherFormIsRefused) {
  for (const std::string address : {"", "host:7000", "tcp://host"})
    EXPECT_EQ(own_address_towards(address).error().code(), ErrorCode::kInvalidInput) << address;
}

}  // namespace
}  // namespace wsync::cli
