// How the batches of a stream follow one another, and what happens when a step of one fails: the
// emulated driver, with single functions of its table replaced.
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/clock.h"
#include "shared/base/split_sum.h"
#include "shared/base/units.h"
#include "shared/device/cuda/device.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda/stream.h"

namespace wsync::device::cuda {
namespace {

constexpr std::size_t kBatchBytes = 3 * limits::kKiB;

// What a replaced function finds; functions of the driver have no other argument for it.
const Driver* emulated = nullptr;
std::atomic<int> kernels_launched = 0;
std::atomic<int> answers = 0;

Bytes batch_bytes(std::size_t size) {
  Bytes bytes(size);
  std::uint32_t state = 7;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return bytes;
}

class CudaBatches : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto cuda = driver();
    ASSERT_TRUE(cuda.has_value()) << cuda.error().message();
    emulated = *cuda;
    cuda_ = **cuda;
    unreleased_ = release_failures().count;
  }
  void TearDown() override { EXPECT_EQ(release_failures().count, unreleased_); }

  // A device with `batches` times kBatchBytes bytes of a pattern, and a stream. Replaced functions
  // count from here on.
  void open(std::size_t batches, std::chrono::nanoseconds settle_limit = kSettleLimit) {
    auto device = make_cuda_device(cuda_, {.kind = DeviceKind::kCuda}, settle_limit);
    ASSERT_TRUE(device.has_value()) << device.error().message();
    device_ = std::move(*device);
    data_ = batch_bytes(batches * kBatchBytes);
    from_ = std::move(*device_->allocate(data_.size()));
    to_ = std::move(*device_->allocate(data_.size()));
    stream_ = std::move(*device_->create_stream(StreamRole::kReload));
    ASSERT_TRUE(stream_->copy_to_device({.memory = from_.get(), .bytes = data_.size()}, data_));
    ASSERT_TRUE(drained().has_value());
    sums_.assign(batches, {});
    kernels_launched = 0;
    answers = 0;
  }
  [[nodiscard]] Piece piece(std::size_t batch) const {
    return {.to = to_.get(),
            .to_offset = batch * kBatchBytes,
            .from = from_.get(),
            .from_offset = batch * kBatchBytes,
            .row_bytes = kBatchBytes,
            .sum = 0,
            .place = {.seed = batch, .position = 0, .tensor_bytes = kBatchBytes}};
  }
  Result<> enqueue(std::size_t batch) {
    const Piece one = piece(batch);
    return stream_->copy_pieces({&one, 1}, std::span(sums_).subspan(batch, 1));
  }
  Result<> drained() {
    auto end = device_->create_event();
    WSYNC_TRY(stream_->record(**end));
    return (*end)->wait(now() + std::chrono::seconds(60));
  }
  [[nodiscard]] SplitSum expected(std::size_t batch) const {
    return split_sum(std::span(data_).subspan(batch * kBatchBytes, kBatchBytes),
                     piece(batch).place);
  }

  Driver cuda_;
  Bytes data_;
  std::vector<SplitSum> sums_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Memory> from_, to_;
  std::unique_ptr<Stream> stream_;
  std::uint64_t unreleased_ = 0;
};

TEST_F(CudaBatches, EachHasItsOwnTableAndSums) {
  constexpr std::size_t kBatches = 7;
  open(kBatches);
  for (std::size_t batch = 0; batch < kBatches; ++batch) ASSERT_TRUE(enqueue(batch));
  Bytes back(data_.size());
  ASSERT_TRUE(stream_->copy_to_host(back, {.memory = to_.get(), .bytes = back.size()}));
  ASSERT_TRUE(drained().has_value());
  EXPECT_EQ(back, data_);
  for (std::size_t batch = 0; batch < kBatches; ++batch) EXPECT_EQ(sums_[batch], expected(batch));
}

// The GPU seems to be busy until two kernels have been launched: a batch that waited for the one
// before it would never be launched.
TEST_F(CudaBatches, TheNextOneIsSubmittedWhileOneRuns) {
  cuda_.cuLaunchKernel = [](CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void** parameters, void** extra) {
    ++kernels_launched;
    return emulated->cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, parameters,
                                    extra);
  };
  cuda_.cuEventQuery = [](CUevent event) {
    return kernels_launched == 1 ? CUDA_ERROR_NOT_READY : emulated->cuEventQuery(event);
  };
  cuda_.cuStreamQuery = [](CUstream stream) {
    return kernels_launched == 1 ? CUDA_ERROR_NOT_READY : emulated->cuStreamQuery(stream);
  };
  kernels_launched = 2;  // the stream's first launch is not a batch
  open(2, std::chrono::seconds(5));
  ASSERT_TRUE(enqueue(0) && enqueue(1));
  const auto done = drained();
  ASSERT_TRUE(done.has_value()) << done.error().message();
  EXPECT_EQ(kernels_launched, 2);
  EXPECT_EQ(sums_[0], expected(0));
  EXPECT_EQ(sums_[1], expected(1));
}

// The third batch uses the memory of the first one.
TEST_F(CudaBatches, TheThirdOneWaitsForTheFirst) {
  cuda_.cuEventQuery = [](CUevent event) {
    return ++answers < 4 ? CUDA_ERROR_NOT_READY : emulated->cuEventQuery(event);
  };
  open(3);
  ASSERT_TRUE(enqueue(0) && enqueue(1) && enqueue(2));
  ASSERT_TRUE(drained().has_value());
  EXPECT_GE(answers, 4);
  for (std::size_t batch = 0; batch < 3; ++batch) EXPECT_EQ(sums_[batch], expected(batch));
}

TEST_F(CudaBatches, OneThatIsNeverCompleteIsGivenUp) {
  cuda_.cuEventQuery = [](CUevent) { return CUDA_ERROR_NOT_READY; };
  open(3, std::chrono::milliseconds(30));
  ASSERT_TRUE(enqueue(0) && enqueue(1) && enqueue(2));
  const auto done = drained();
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kDeadline);
  EXPECT_NE(done.error().message().find("has not completed its work within"), std::string::npos)
      << done.error().message();
  EXPECT_EQ(sums_[2], SplitSum{});
}

// Two batches in flight may have the same sums, which are then those of the later one. One without
// pieces has sums of zero.
TEST_F(CudaBatches, TheSumsAreThoseOfTheLaterOne) {
  open(2);
  const Piece first = piece(0);
  const Piece second = piece(1);
  const auto sum = std::span(sums_).first(1);
  ASSERT_TRUE(stream_->copy_pieces({&first, 1}, sum));
  ASSERT_TRUE(stream_->copy_pieces({&second, 1}, sum));
  ASSERT_TRUE(drained().has_value());
  EXPECT_EQ(sums_[0], expected(1));
  ASSERT_TRUE(stream_->copy_pieces({&first, 1}, sum));
  ASSERT_TRUE(stream_->copy_pieces({}, sum));
  ASSERT_TRUE(drained().has_value());
  EXPECT_EQ(sums_[0], SplitSum{});
}

TEST_F(CudaBatches, AStepThatFailsIsTheErrorOfTheStream) {
  const auto failed = [&](std::string_view step) {
    open(1);
    ASSERT_TRUE(enqueue(0));
    const auto done = drained();
    ASSERT_FALSE(done.has_value()) << step;
    EXPECT_NE(done.error().message().find(step), std::string::npos) << done.error().message();
    EXPECT_EQ(sums_[0], SplitSum{}) << "sums are not read";
    stream_.reset();
  };
  cuda_.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return CUDA_ERROR_INVALID_HANDLE; };
  failed("reload stream: the table of a batch: CUDA_ERROR_INVALID_HANDLE");
  cuda_.cuStreamWaitEvent = emulated->cuStreamWaitEvent;
  cuda_.cuEventRecord = [](CUevent, CUstream) { return CUDA_ERROR_UNKNOWN; };
  failed("reload stream: the table of a batch: CUDA_ERROR_UNKNOWN");
  cuda_.cuEventRecord = [](CUevent event, CUstream stream) {
    return ++answers == 2 ? CUDA_ERROR_UNKNOWN : emulated->cuEventRecord(event, stream);
  };
  failed("reload stream: the end of a batch: CUDA_ERROR_UNKNOWN");
  cuda_.cuEventRecord = emulated->cuEventRecord;
  cuda_.cuEventCreate = [](CUevent*, unsigned) { return CUDA_ERROR_OUT_OF_MEMORY; };
  auto device = make_cuda_device(cuda_, {.kind = DeviceKind::kCuda}, kSettleLimit);
  ASSERT_TRUE(device.has_value());
  const auto refused = (*device)->create_stream(StreamRole::kReload);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("an event of a batch cannot be created"),
            std::string::npos)
      << refused.error().message();
}

}  // namespace
}  // namespace wsync::device::cuda
