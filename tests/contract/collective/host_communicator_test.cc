#include <gtest/gtest.h>

#include "tests/contract/collective/communicator_suite.h"

namespace wsync::collective {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, CommunicatorContract,
                         ::testing::Values(DeviceKind::kUnified, DeviceKind::kSeparate),
                         device::kind_of);

TEST(GroupFactory, CudaAndImpossibleSizesAreRefused) {
  EXPECT_EQ(make_group(DeviceKind::kCuda, 2).error().code(), ErrorCode::kRefused);
  EXPECT_EQ(make_group(DeviceKind::kSeparate, 0).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(make_group(DeviceKind::kSeparate, 65).error().code(), ErrorCode::kInvalidInput);
}

TEST(GroupFactory, HostGroupsDoNotLeaveTheirProcess) {
  EXPECT_EQ((*make_group(DeviceKind::kSeparate, 2))->id().error().code(), ErrorCode::kRefused);
  EXPECT_EQ(attach_group(DeviceKind::kSeparate, {}, 2).error().code(), ErrorCode::kRefused);
}

}  // namespace
}  // namespace wsync::collective
