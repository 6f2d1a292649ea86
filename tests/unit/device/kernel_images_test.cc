// The file of compiled kernels: which image a GPU gets, and files that are damaged.
#include "shared/device/cuda/kernel_images.h"

#include <cstring>
#include <gtest/gtest.h>

#include "shared/base/bytes.h"

namespace wsync::device::cuda {
namespace {

KernelImage image(bool is_ptx, std::uint32_t major, std::uint32_t minor) {
  return {.is_ptx = is_ptx, .capability = {.major = major, .minor = minor}, .bytes = {}};
}

TEST(KernelImages, AGpuGetsMachineCodeOfItsOwnMajorCapabilityElsePtx) {
  const std::vector<KernelImage> images{image(false, 8, 0), image(false, 9, 0), image(true, 8, 0),
                                        image(false, 8, 6), image(true, 9, 0)};
  struct Row {
    std::uint32_t major, minor;
    const KernelImage* expected;
  };
  for (const Row& row :
       {Row{8, 0, &images[0]}, Row{8, 6, &images[3]}, Row{8, 9, &images[3]}, Row{8, 5, &images[0]},
        Row{9, 0, &images[1]}, Row{10, 0, &images[4]}, Row{12, 1, &images[4]}, Row{7, 5, nullptr}})
    EXPECT_EQ(choose_kernel_image(images, {.major = row.major, .minor = row.minor}), row.expected)
        << row.major << '.' << row.minor;
  EXPECT_EQ(choose_kernel_image({image(false, 8, 0)}, {.major = 9, .minor = 0}), nullptr)
      << "machine code of another major capability, and no PTX";
}

TEST(KernelImages, ThoseOfTheBuildAreMachineCodeAndPtx) {
  const auto& images = kernel_images();
  ASSERT_GE(images.size(), 3U);
  for (const KernelImage& one : images) {
    ASSERT_GT(one.bytes.size(), 64U);
    const auto* text = reinterpret_cast<const char*>(one.bytes.data());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(text) % 64, 0U);
    if (one.is_ptx)
      EXPECT_EQ(one.bytes.back(), std::byte{0}) << "the driver reads PTX up to a null byte";
    else
      EXPECT_EQ(std::memcmp(text,
                            "\x7f"
                            "ELF",
                            4),
                0);
  }
  const auto* newest = choose_kernel_image(images, {.major = 99, .minor = 0});
  ASSERT_NE(newest, nullptr);
  EXPECT_TRUE(newest->is_ptx);
}

Bytes file_of(std::uint64_t count, std::uint64_t offset, std::uint64_t bytes) {
  Bytes file(64);
  std::memcpy(file.data(), "WSYNCKI1", 8);
  std::memcpy(file.data() + 8, &count, 8);
  file[17] = std::byte{9};
  std::memcpy(file.data() + 24, &offset, 8);
  std::memcpy(file.data() + 32, &bytes, 8);
  return file;
}

TEST(KernelImages, AFileThatIsDamagedIsRefused) {
  const auto good = file_of(1, 48, 16);
  const auto read = read_kernel_images(good);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  ASSERT_EQ(read->size(), 1U);
  EXPECT_EQ(read->front().capability, (ComputeCapability{.major = 9, .minor = 0}));
  EXPECT_EQ(read->front().bytes.size(), 16U);
  auto other = good;
  other[0] = std::byte{'w'};
  for (const Bytes& bad :
       {other, Bytes(good.begin(), good.begin() + 15), Bytes{}, file_of(3, 48, 16),
        file_of(~std::uint64_t{0}, 48, 16), file_of(1, 48, 17), file_of(1, 65, 0),
        file_of(1, ~std::uint64_t{0}, 2)}) {
    const auto refused = read_kernel_images(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidInput);
  }
}

}  // namespace
}  // namespace wsync::device::cuda
