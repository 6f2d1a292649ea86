// Buckets taken by the memory of a device: the same bytes as on the host, and the same sums. On a
// host device with memory of its own, which copies as a GPU does.
#include "inference_side/engine_link/device_weights.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <sys/mman.h>

#include "shared/base/units.h"
#include "shared/weights/content_digest.h"
#include "tests/support/bytes.h"

namespace wsync::engine {
namespace {

using testing::HasSubstr;

TimePoint in_good_time() { return now() + std::chrono::seconds(20); }

// Tensors of several buckets, in rows that are aligned and in rows that are not.
class DeviceWeightsTest : public testing::Test {
 protected:
  DeviceWeightsTest() {
    const auto manifest =
        Manifest::create({{.name = "embed", .dtype = DType::kBF16, .shape = {1500, 1024}},
                          {.name = "layers.0.empty", .dtype = DType::kF32, .shape = {0, 3}},
                          {.name = "layers.0.norm", .dtype = DType::kU8, .shape = {1001}},
                          {.name = "layers.0.w", .dtype = DType::kBF16, .shape = {1024, 3000}},
                          {.name = "layers.1.odd", .dtype = DType::kU8, .shape = {777, 511}}})
            .value();
    const auto buckets = BucketPlan::create(manifest, 2 * limits::kMiB).value();
    std::vector<control::EngineTensor> tensors;
    for (const TensorInfo& info : manifest.tensors())
      tensors.push_back({.name = info.name, .dtype = info.dtype, .shape = info.shape});
    for (auto& tensor : tensors) {
      if (tensor.name == "layers.0.w") tensor.ranges = {{.dim = 1, .begin = 504, .length = 1200}};
      if (tensor.name == "layers.1.odd") tensor.ranges = {{.dim = 1, .begin = 3, .length = 77}};
    }
    plan_ = reload::LoadPlan::make(manifest, buckets, tensors).value();
    arena_.resize(plan_.arena_bytes());
    std::mt19937_64 random(5);
    fill_random(random, arena_);
    for (std::size_t t = 0; t < tensors.size(); ++t)
      memory_.emplace_back(plan_.tensors()[t].shard.bytes());
    for (std::size_t t = 0; t < tensors.size(); ++t)
      tensors_.push_back({.description = tensors[t], .destination = memory_[t]});
    device_ = device::make_device({.kind = DeviceKind::kSeparate}).value();
    buffer_ = device_->allocate(2 * limits::kMiB).value();
    description_.tensors = tensors_;
    weights_ = DeviceWeights::create(*device_, description_).value();
  }

  void fill_buffer(std::uint64_t bucket) {
    const auto stream = device_->create_stream(device::StreamRole::kBroadcast).value();
    const auto bytes = plan_.bucket_of(arena_, bucket);
    ASSERT_TRUE(stream->copy_to_device(
        {.memory = buffer_.get(), .offset = 0, .bytes = bytes.size()}, bytes));
    const auto event = device_->create_event().value();
    ASSERT_TRUE(stream->record(*event));
    ASSERT_TRUE(event->wait(in_good_time()));
  }
  Result<> take(std::uint64_t bucket, TimePoint deadline) {
    fill_buffer(bucket);
    return weights_->take(*buffer_,
                          {.plan = &plan_,
                           .bucket = bucket,
                           .deadline = deadline,
                           .destination = {},
                           .on_group = [&](std::size_t g, const SplitSum& sum) -> Result<> {
                             if (refuse_ == g) return fail(ErrorCode::kIo, "refused");
                             sums_.emplace_back(g, sum);
                             return {};
                           }});
  }
  // Of each group, as the host computes them.
  std::vector<SplitSum> expected_sums() const {
    std::vector<SplitSum> sums;
    for (const reload::CopyGroup& group : plan_.groups())
      sums.push_back(plan_.sum(group, plan_.bucket_of(arena_, group.bucket)));
    return sums;
  }
  void expect_loaded() {
    for (std::size_t t = 0; t < memory_.size(); ++t)
      EXPECT_EQ(tensor_digest(plan_.tensors()[t].seed, memory_[t]),
                reload::expected_digest(plan_.tensors()[t], arena_))
          << tensors_[t].description.name;
  }

  reload::LoadPlan plan_;
  std::vector<std::byte> arena_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<RankTensor> tensors_;
  EngineDescription description_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Memory> buffer_;
  std::unique_ptr<DeviceWeights> weights_;
  std::optional<std::size_t> refuse_;
  std::vector<std::pair<std::size_t, SplitSum>> sums_;  // as they were told
};

TEST_F(DeviceWeightsTest, EveryGroupLiesInPlaceWithTheSumThatTheHostComputes) {
  for (std::uint64_t bucket = 0; bucket < plan_.bucket_count(); ++bucket)
    ASSERT_TRUE(take(bucket, in_good_time()));
  const auto expected = expected_sums();
  ASSERT_EQ(sums_.size(), expected.size());
  for (std::size_t g = 0; g < sums_.size(); ++g) {
    EXPECT_EQ(sums_[g].first, g);
    EXPECT_EQ(sums_[g].second, expected[g]) << plan_.groups()[g].tensor;
  }
  expect_loaded();
}

TEST_F(DeviceWeightsTest, AChangedByteOfABufferChangesTheSumOfItsGroupAlone) {
  const auto expected = expected_sums();
  const std::uint64_t bucket = plan_.bucket_count() - 1;
  const std::size_t first = plan_.first_group(bucket);
  const reload::GroupRows rows = plan_.rows(plan_.groups()[first + 1]).front();
  arena_[plan_.bucket_offset(bucket) + rows.from] ^= std::byte{1};
  ASSERT_TRUE(take(bucket, in_good_time()));
  ASSERT_GE(sums_.size(), 2U);
  for (const auto& [g, sum] : sums_) EXPECT_EQ(sum == expected[g], g != first + 1) << g;
}

TEST_F(DeviceWeightsTest, TheSumOfWhatIsHeldIsThatOfItsGroups) {
  for (std::uint64_t bucket = 0; bucket < plan_.bucket_count(); ++bucket)
    ASSERT_TRUE(take(bucket, in_good_time()));
  std::vector<SplitSum> read(memory_.size());
  for (const auto& [g, sum] : sums_) read[plan_.groups()[g].tensor] += sum;
  for (std::uint32_t t = 0; t < memory_.size(); ++t) {
    EXPECT_EQ(weights_->held_sum(t, plan_.tensors()[t], in_good_time()).value(), read[t]) << t;
    if (memory_[t].empty()) continue;
    memory_[t].back() ^= std::byte{1};
    EXPECT_FALSE(weights_->held_sum(t, plan_.tensors()[t], in_good_time()).value() == read[t]) << t;
  }
}

TEST_F(DeviceWeightsTest, DigestsAreOfTheBytesAsHeldAndBatchesMissNoTensor) {
  for (std::uint64_t bucket = 0; bucket < plan_.bucket_count(); ++bucket)
    ASSERT_TRUE(take(bucket, in_good_time()));
  for (const std::uint32_t first : {0U, 3U}) {
    const auto digests = weights_->digests(first);
    ASSERT_TRUE(digests);
    ASSERT_EQ(digests->size(), memory_.size() - first);
    for (std::size_t t = first; t < memory_.size(); ++t)
      EXPECT_EQ((*digests)[t - first], reload::expected_digest(plan_.tensors()[t], arena_));
  }
  memory_[2][1000] ^= std::byte{1};
  EXPECT_NE(weights_->digests(2).value().front(),
            reload::expected_digest(plan_.tensors()[2], arena_));
}

TEST_F(DeviceWeightsTest, ABucketPastItsDeadlineIsNotBegunAndTheNextOneIsTaken) {
  const auto before = memory_;
  const auto late = take(0, TimePoint{0});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message(), HasSubstr("before the copy of bucket 0 began"));
  EXPECT_TRUE(sums_.empty());
  EXPECT_EQ(memory_, before);
  refuse_ = 0;
  EXPECT_EQ(take(0, in_good_time()).error().message(), "refused");
  refuse_.reset();
  for (std::uint64_t bucket = 0; bucket < plan_.bucket_count(); ++bucket)
    ASSERT_TRUE(take(bucket, in_good_time()));
  expect_loaded();
}

TEST_F(DeviceWeightsTest, APatchIsNotWrittenToMemoryThatWasNotCheckedOrPastItsDeadline) {
  std::vector<patch::TensorPart> parts;
  for (const RankTensor& tensor : tensors_)
    parts.push_back(patch::TensorPart::create({.name = tensor.description.name,
                                               .dtype = tensor.description.dtype,
                                               .shape = tensor.description.shape},
                                              {})
                        .value());
  ASSERT_TRUE(weights_->claim_patch());
  const auto late =
      weights_->patch({.layout = nullptr, .parts = parts, .blocks = {}}, nullptr, TimePoint{0});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  EXPECT_TRUE(
      weights_->patch({.layout = nullptr, .parts = parts, .blocks = {}}, nullptr, in_good_time()));
  weights_->release();
  ASSERT_TRUE(weights_->claim_patch());
  const auto unchecked =
      weights_->patch({.layout = nullptr, .parts = parts, .blocks = {}}, nullptr, in_good_time());
  ASSERT_FALSE(unchecked);
  EXPECT_EQ(unchecked.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(unchecked.error().message(), HasSubstr("the destination of tensor embed"));
}

TEST_F(DeviceWeightsTest, HandlesThatCannotBeMappedAreRefusedByName) {
  std::vector<control::BufferHandle> handles(1);
  std::vector<UniqueFd> fds;
  auto taker = DeviceTaker::import(*weights_, handles, fds, 2 * limits::kMiB);
  ASSERT_FALSE(taker);
  EXPECT_THAT(taker.error().message(),
              HasSubstr("received 1 handles of IPC buffers with 0 descriptors, expected 2 with 2"));
  handles.resize(2);
  taker = DeviceTaker::import(*weights_, handles, fds, 2 * limits::kMiB);
  ASSERT_FALSE(taker);
  EXPECT_THAT(taker.error().message(), HasSubstr("with 0 descriptors"));
  for (int i = 0; i < 2; ++i) fds.emplace_back(::memfd_create("buffer", MFD_CLOEXEC));
  taker = DeviceTaker::import(*weights_, handles, fds, 2 * limits::kMiB);
  ASSERT_FALSE(taker);
  EXPECT_THAT(taker.error().message(), HasSubstr("IPC buffer 0: separate host device 0"));
}

}  // namespace
}  // namespace wsync::engine
