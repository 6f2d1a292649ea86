#include <gtest/gtest.h>

#include "tests/contract/broadcast/communicator_suite.h"

namespace wsync::collective {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Host, CommunicatorContract,
    ::testing::Values(CommunicatorBackend{DeviceKind::kUnified, GroupKind::kLocal},
                      CommunicatorBackend{DeviceKind::kSeparate, GroupKind::kLocal}),
    backend_name);

TEST(GroupFactory, CudaAndImpossibleSizesAreRefused) {
  EXPECT_EQ(make_group(GroupKind::kNccl, 2).error().code(), ErrorCode::kRefused);
  EXPECT_EQ(make_group(GroupKind::kLocal, 0).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(make_group(GroupKind::kLocal, 65).error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::collective
