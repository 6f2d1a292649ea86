// The ceilings of a GPU, on the emulated driver: what they do and refuse. Their speed is a GPU's.
#include <gtest/gtest.h>

#include "shared/base/units.h"
#include "shared/device/cuda/ceilings.h"

namespace wsync::device::cuda {
namespace {

// What a replaced function finds.
CUresult (*real_query)(CUstream) = nullptr;
int queries = 0;

class CudaCeilings : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto cuda = driver();
    ASSERT_TRUE(cuda.has_value()) << cuda.error().message();
    cuda_ = **cuda;
    unreleased_ = release_failures().count;
  }
  // Whatever fails, what was made is given back.
  void TearDown() override { EXPECT_EQ(release_failures().count, unreleased_); }

  Driver cuda_;
  std::uint64_t unreleased_ = 0;
};

TEST_F(CudaCeilings, EachCanBeMeasured) {
  const auto ceilings = make_ceilings(cuda_, 0, limits::kMiB + 16);
  ASSERT_TRUE(ceilings.has_value()) << ceilings.error().message();
  for (const unsigned times : {1U, 3U}) {
    const auto in = (*ceilings)->host_to_device(times);
    const auto copied = (*ceilings)->device_copy(times);
    const auto read = (*ceilings)->device_read(times);
    for (const auto* taken : {&in, &copied, &read}) {
      ASSERT_TRUE(taken->has_value()) << taken->error().message();
      EXPECT_GT((*taken)->count(), 0);
    }
  }
}

TEST_F(CudaCeilings, SizesThatAreNoGranulesAreRefused) {
  for (const std::uint64_t bytes : {0U, 8U, 1000U}) {
    const auto ceilings = make_ceilings(cuda_, 0, bytes);
    ASSERT_FALSE(ceilings.has_value()) << bytes;
    EXPECT_EQ(ceilings.error().code(), ErrorCode::kInvalidInput);
  }
}

TEST_F(CudaCeilings, AGpuThatIsNotThereIsRefused) {
  const auto ceilings = make_ceilings(cuda_, 99, limits::kMiB);
  ASSERT_FALSE(ceilings.has_value());
  EXPECT_EQ(ceilings.error().code(), ErrorCode::kRefused);
}

TEST_F(CudaCeilings, MemoryThatIsNotThereIsSaid) {
  cuda_.cuMemAllocHost = [](void**, std::size_t) { return CUDA_ERROR_OUT_OF_MEMORY; };
  const auto ceilings = make_ceilings(cuda_, 0, limits::kMiB);
  ASSERT_FALSE(ceilings.has_value());
  EXPECT_EQ(ceilings.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(ceilings.error().message().find("pinned host memory"), std::string::npos);
}

TEST_F(CudaCeilings, AFaultOfTheGpuIsTheMeasurementsError) {
  const auto ceilings = make_ceilings(cuda_, 0, limits::kMiB);
  ASSERT_TRUE(ceilings.has_value()) << ceilings.error().message();
  // Once: what is still queued ends before the memory is given back.
  real_query = cuda_.cuStreamQuery;
  queries = 0;
  cuda_.cuStreamQuery = [](CUstream stream) {
    return queries++ == 0 ? CUDA_ERROR_ECC_UNCORRECTABLE : real_query(stream);
  };
  const auto taken = (*ceilings)->device_copy(1);
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code(), ErrorCode::kIo);
  EXPECT_NE(taken.error().message().find("cuMemcpyAsync"), std::string::npos);
}

}  // namespace
}  // namespace wsync::device::cuda
