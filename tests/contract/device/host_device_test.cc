#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/contract/device/device_suite.h"
#include "tests/contract/device/pieces_suite.h"
#include "tests/contract/device/words_suite.h"

namespace wsync::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract,
                         ::testing::Values(DeviceKind::kUnified, DeviceKind::kSeparate), kind_of);

INSTANTIATE_TEST_SUITE_P(Host, PieceContract,
                         ::testing::Values(DeviceKind::kUnified, DeviceKind::kSeparate), kind_of);
INSTANTIATE_TEST_SUITE_P(Host, WordContract,
                         ::testing::Values(DeviceKind::kUnified, DeviceKind::kSeparate), kind_of);

TEST(HostDevice, AnExportedBufferCanBeNeitherResizedNorMappedForWriting) {
  auto device = make_device({.kind = DeviceKind::kSeparate});
  auto memory = (*device)->allocate(8192);
  ASSERT_TRUE(memory.has_value());
  auto handle = (*memory)->export_handle();
  ASSERT_TRUE(handle.has_value());
  EXPECT_NE(::ftruncate(handle->fd.get(), 4096), 0);
  EXPECT_NE(::ftruncate(handle->fd.get(), 16384), 0);
  EXPECT_EQ(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, handle->fd.get(), 0),
            MAP_FAILED);
}

TEST(HostDevice, AFileThatIsNotSealedIsNotImported) {
  auto device = make_device({.kind = DeviceKind::kSeparate});
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  const auto imported = (*device)->import_memory(
      {.kind = DeviceKind::kSeparate, .bytes = 4096, .fd = std::move(fd), .opaque = {}});
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code(), ErrorCode::kInvalidInput);
}

TEST(DeviceFactory, CudaIsRefusedWithASentence) {
  const auto device = make_device({.kind = DeviceKind::kCuda, .index = DeviceIndex{3}});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kRefused);
  EXPECT_NE(device.error().message().find("libwsync_cuda.so"), std::string::npos);
}

TEST(DeviceFactory, TooLargeAnIndexIsRefused) {
  const auto device = make_device({.kind = DeviceKind::kSeparate, .index = DeviceIndex{64}});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kInvalidInput);
}

TEST(DeviceFactory, KindsHaveNames) {
  EXPECT_EQ(device_kind_name(DeviceKind::kUnified), "unified");
  EXPECT_EQ(device_kind_name(DeviceKind::kSeparate), "separate");
  EXPECT_EQ(device_kind_name(DeviceKind::kCuda), "cuda");
}

}  // namespace
}  // namespace wsync::device
