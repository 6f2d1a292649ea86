// Groups of CUDA devices: on the emulated driver and the emulated NCCL, or, under the label gpu, on
// real ones.
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/broadcast/nccl_library.h"
#include "tests/contract/broadcast/communicator_suite.h"
#include "tests/support/misuse_report.h"

namespace wsync::collective {
namespace {

[[maybe_unused]] const auto* const kReportIsEmpty =
    ::testing::AddGlobalTestEnvironment(new MisuseReport);

INSTANTIATE_TEST_SUITE_P(
    Cuda, CommunicatorContract,
    ::testing::Values(CommunicatorBackend{DeviceKind::kCuda, GroupKind::kLocal},
                      CommunicatorBackend{DeviceKind::kCuda, GroupKind::kNccl}),
    backend_name);

TEST(NcclFacts, TellWhichLibraryAndVersion) {
  if (const auto why = device::no_gpu_for_tests(); !why.empty()) GTEST_SKIP() << why;
  const auto backend = nccl_backend();
  ASSERT_TRUE(backend.has_value()) << backend.error().message();
  if (const auto why = no_nccl_for_tests(GroupKind::kNccl); !why.empty()) GTEST_SKIP() << why;
  const auto facts = (*backend)->facts();
  ASSERT_TRUE(facts.has_value()) << facts.error().message();
  EXPECT_THAT(facts->library, ::testing::HasSubstr("libnccl.so"));
  EXPECT_GE(facts->version, 21800U);
  EXPECT_GE(facts->built_with, 21800U);
}

TEST(FittingGroup, IsOfNcclForSeveralGpusAndLocalOtherwise) {
  if (const auto why = device::no_gpu_for_tests(); !why.empty()) GTEST_SKIP() << why;
  if (const auto why = no_nccl_for_tests(GroupKind::kNccl); !why.empty()) GTEST_SKIP() << why;
  if (visible_gpus() < 2 && std::getenv("WSYNC_TEST_GPU") != nullptr)
    GTEST_SKIP() << "too few GPUs: 2 are needed, this machine shows " << visible_gpus();
  const auto make = [](std::uint32_t index, DeviceKind kind, std::uint32_t gpu) {
    return std::move(*device::make_device({.kind = kind, .index = DeviceIndex{index}, .gpu = gpu}));
  };
  const auto first = make(0, DeviceKind::kCuda, 0);
  const auto second = make(1, DeviceKind::kCuda, 1);
  const auto twin = make(2, DeviceKind::kCuda, 0);
  const auto host = make(3, DeviceKind::kSeparate, 0);
  EXPECT_EQ(fitting_group({first.get(), second.get()}).kind, GroupKind::kNccl);
  EXPECT_EQ(fitting_group({first.get(), twin.get()}).kind, GroupKind::kLocal) << "one GPU twice";
  EXPECT_EQ(fitting_group({first.get()}).kind, GroupKind::kLocal);
  EXPECT_EQ(fitting_group({host.get(), first.get()}).kind, GroupKind::kLocal);
  const auto refused = join_all(GroupKind::kNccl, {first.get(), twin.get()}, far_deadline());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("both use GPU-"));
  const auto no_gpu = join_all(GroupKind::kNccl, {host.get(), first.get()}, far_deadline());
  ASSERT_FALSE(no_gpu);
  EXPECT_EQ(no_gpu.error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::collective
