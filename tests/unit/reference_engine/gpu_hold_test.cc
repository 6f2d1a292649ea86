// A rank's tensors in the memory of a device. On a host device with memory of its own, which copies
// as a GPU does.
#include "inference_side/reference_engine/gpu_hold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference_side/reference_engine/held_model.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/checkpoint_dir.h"
#include "tests/support/bytes.h"
#include "tests/support/versions.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync::engine::reference {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<device::Device> device_with_memory() {
  return device::make_device({.kind = DeviceKind::kSeparate}).value();
}

TEST(GpuPacking, TensorsLieWholeInAsFewAllocationsAsTheirOrderAllows) {
  const std::vector<std::uint64_t> sizes = {1000, 0, 24, 3000, 1, 4096, 4097 - 1};
  const GpuPacking packing = pack_tensors(sizes, 4096);
  EXPECT_THAT(packing.allocations, ElementsAre(1024 + 24, 3072 + 1, 4096, 4096));
  EXPECT_EQ(packing.bytes(), 1048U + 3073U + 2 * 4096U);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> places;
  for (const auto& place : packing.places) places.emplace_back(place.allocation, place.offset);
  using Place = std::pair<std::uint32_t, std::uint64_t>;
  EXPECT_THAT(places, ElementsAre(Place{0, 0}, Place{0, 0}, Place{0, 1024}, Place{1, 0},
                                  Place{1, 3072}, Place{2, 0}, Place{3, 0}));
  EXPECT_TRUE(pack_tensors({}, 4096).allocations.empty());
}

TEST(GpuHold, BytesComeBackAsTheyWereWritten) {
  const auto device = device_with_memory();
  const std::vector<control::EngineTensor> tensors(3);
  const std::vector<std::uint64_t> sizes = {1000, 0, 70};
  const auto hold = GpuHold::create(*device, tensors, sizes, 4).value();
  EXPECT_TRUE(hold->range(1).empty());
  EXPECT_EQ(hold->range(2).size(), 70U);
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(hold->write(0, 0, bytes));
  ASSERT_TRUE(hold->write(2, 10, std::span(bytes).first(60)));
  ASSERT_TRUE(hold->write(1, 0, {}));
  std::vector<std::byte> out(500);
  ASSERT_TRUE(hold->read(0, 300, out));
  EXPECT_TRUE(same_bytes(out, std::span(bytes).subspan(300, 500)));
  const std::vector<GpuHold::Sample> samples = {{.tensor = 2, .offset = 13, .bytes = 5},
                                                {.tensor = 0, .offset = 936, .bytes = 64}};
  const auto read = hold->sample(samples);
  ASSERT_TRUE(read);
  EXPECT_TRUE(same_bytes(read->first(5), std::span(bytes).subspan(3, 5)));
  EXPECT_TRUE(same_bytes(read->subspan(64, 64), std::span(bytes).subspan(936, 64)));
  EXPECT_TRUE(hold->sample({}).value().empty());
}

TEST(GpuHold, WhatDoesNotFitIsRefusedBeforeAnythingIsAllocated) {
  const auto device = device_with_memory();
  std::vector<control::EngineTensor> tensors(2);
  tensors[1].name = "model.experts";
  std::vector<std::uint64_t> sizes = {10, limits::kBucketBytesMax + 1};
  const auto large = GpuHold::create(*device, tensors, sizes, 1);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(large.error().message(), AllOf(HasSubstr("tensor model.experts"),
                                             HasSubstr(std::to_string(limits::kBucketBytesMax))));
  const std::uint64_t free = device->memory_info().value().total_bytes;
  tensors.resize(free / limits::kBucketBytesMax + 1);
  sizes.assign(tensors.size(), limits::kBucketBytesMax);
  const auto many = GpuHold::create(*device, tensors, sizes, 1);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(many.error().message(),
              AllOf(HasSubstr(std::to_string(tensors.size() * limits::kBucketBytesMax)),
                    HasSubstr("are free"), HasSubstr("--world-size")));
}

class HeldOnADevice : public testing::Test {
 protected:
  HeldOnADevice() {
    const Manifest manifest =
        Manifest::create(
            {{.name = "model.embed_tokens.weight", .dtype = DType::kBF16, .shape = {5000, 600}},
             {.name = "model.layers.0.o_proj.weight", .dtype = DType::kU8, .shape = {30, 50}},
             {.name = "model.layers.0.norm.weight", .dtype = DType::kU8, .shape = {7}},
             {.name = "model.layers.1.empty", .dtype = DType::kU8, .shape = {0}}})
            .value();
    EXPECT_TRUE(write_checkpoint_directory(directory_ / "ck", manifest, test::fill_content));
    checkpoint_.emplace(CheckpointDirectory::open(directory_ / "ck").value());
  }
  [[nodiscard]] std::unique_ptr<HeldModel> model(device::Device* gpu) const {
    return HeldModel::create(checkpoint_->manifest(), 1, 2, false, gpu).value();
  }
  test::TemporaryDirectory directory_;
  std::optional<CheckpointDirectory> checkpoint_;
};

TEST_F(HeldOnADevice, StepsReadTheSameThereAsInHostMemory) {
  const auto device = device_with_memory();
  const auto here = model(nullptr);
  const auto there = model(device.get());
  EXPECT_EQ(here->gpu_bytes(), 0U);
  EXPECT_GE(there->gpu_bytes(), there->bytes());
  ASSERT_TRUE(here->read_checkpoint(*checkpoint_));
  ASSERT_TRUE(there->read_checkpoint(*checkpoint_));
  for (std::size_t t = 0; t < here->tensors().size(); ++t) {
    std::vector<std::byte> out(there->memory(t).size());
    ASSERT_TRUE(there->copy_out(t, 0, out));
    EXPECT_TRUE(same_bytes(out, here->memory(t))) << here->tensors()[t].name;
  }
  std::string saw;
  for (std::uint64_t step = 0; step < 20; ++step) {
    const auto reading = there->read({}, step, saw);
    ASSERT_TRUE(reading);
    EXPECT_EQ(*reading, here->read({}, step, saw).value());
    EXPECT_FALSE(reading->torn) << saw;
  }
}

TEST_F(HeldOnADevice, AStepNoticesALayerOfAnotherVersion) {
  const auto device = device_with_memory();
  const auto held = model(device.get());
  ASSERT_TRUE(held->read_checkpoint(*checkpoint_));
  held->begin_load();
  std::string saw;
  EXPECT_TRUE(held->read({}, 1, saw)->torn);
  EXPECT_THAT(saw, HasSubstr("had version none"));
  for (const auto& layer : std::vector<std::vector<std::uint32_t>>{{0}, {1, 2}, {3}}) {
    std::vector<LayerTensor> tensors;
    for (const std::uint32_t t : layer) tensors.push_back({.tensor = t, .bytes = held->memory(t)});
    EXPECT_TRUE(held->take_layer(kV1, tensors));
  }
  held->commit(kV1);
  saw.clear();
  EXPECT_FALSE(held->read(kV1, 1, saw)->torn) << saw;
  EXPECT_TRUE(held->read({}, 1, saw)->torn);
}

TEST_F(HeldOnADevice, WholeTensorsAreCopiedThereAndMayThenBeFreed) {
  const auto device = device_with_memory();
  const auto here = model(nullptr);
  const auto held = model(device.get());
  ASSERT_TRUE(here->read_checkpoint(*checkpoint_));
  held->begin_load();
  for (const auto& layer : std::vector<std::vector<std::uint32_t>>{{0}, {1, 2}, {3}}) {
    std::vector<std::vector<std::byte>> whole;
    std::vector<LayerTensor> tensors;
    for (const std::uint32_t t : layer) {
      whole.emplace_back(here->memory(t).begin(), here->memory(t).end());
      tensors.push_back({.tensor = t, .bytes = whole.back()});
    }
    EXPECT_TRUE(held->take_layer(kV1, tensors));
    for (auto& bytes : whole) std::ranges::fill(bytes, std::byte{0x5a});
  }
  held->commit(kV1);
  for (std::size_t t = 0; t < here->tensors().size(); ++t) {
    std::vector<std::byte> out(here->memory(t).size());
    ASSERT_TRUE(held->copy_out(t, 0, out));
    EXPECT_TRUE(same_bytes(out, here->memory(t))) << here->tensors()[t].name;
  }
  std::string saw;
  EXPECT_FALSE(held->read(kV1, 1, saw)->torn) << saw;
}

}  // namespace
}  // namespace wsync::engine::reference
