// Where the tensors of a load are put together: never two at one place at the same time, and in
// memory of a few layers.
#include "inference_side/engine_link/layer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>

#include "shared/base/weight_limits.h"

namespace wsync::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Placed {
  Manifest manifest;
  reload::LoadPlan plan;
  std::vector<std::vector<std::uint32_t>> layers;
};

constexpr std::uint64_t kBucket = 4 * limits::kLeafBytes;
constexpr std::uint64_t kLimit = std::uint64_t{1} << 40U;

// Layers of the sizes, each of two tensors.
Placed layers_of(const std::vector<std::uint64_t>& sizes) {
  std::vector<TensorInfo> infos;
  Placed placed;
  for (std::size_t l = 0; l < sizes.size(); ++l) {
    const std::string prefix = "model.layers." + std::to_string(100 + l) + ".";
    for (const char* name : {"a", "b"})
      infos.push_back({.name = prefix + name, .dtype = DType::kU8, .shape = {sizes[l] / 2}});
  }
  placed.manifest = Manifest::create(std::move(infos)).value();
  const auto buckets = BucketPlan::create(placed.manifest, kBucket).value();
  placed.plan =
      reload::LoadPlan::make(placed.manifest, buckets, reload::whole_tensors(placed.manifest))
          .value();
  placed.layers.resize(sizes.size());
  for (std::uint32_t t = 0; t < placed.manifest.size(); ++t)
    placed.layers[placed.manifest.layer(t)].push_back(t);
  return placed;
}

// What a load writes and passes on, bucket by bucket. Returns false if a tensor was overwritten
// before its layer was passed on, or lies outside of its allocation.
bool survives(const Placed& model, const LayerPlaces& placed) {
  // By allocation and offset: the tensor that lies there, and where it ends.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::uint32_t, std::uint64_t>> held;
  std::vector<std::uint64_t> left;
  for (const auto& tensor : model.plan.tensors()) left.push_back(tensor.shard.bytes());
  std::size_t next = 0;
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket) {
    for (std::size_t g = model.plan.first_group(bucket); g < model.plan.first_group(bucket + 1);
         ++g) {
      const reload::CopyGroup& group = model.plan.groups()[g];
      const auto& place = placed.places[group.tensor];
      const std::uint64_t end = place.offset + model.plan.tensors()[group.tensor].shard.bytes();
      if (end > placed.allocations[place.allocation]) return false;
      for (const auto& [at, tensor] : held)
        if (tensor.first != group.tensor && at.first == place.allocation && at.second < end &&
            place.offset < tensor.second)
          return false;
      held[{place.allocation, place.offset}] = {group.tensor, end};
      left[group.tensor] -= group.bytes;
    }
    const auto is_whole = [&](std::uint32_t t) { return left[t] == 0; };
    for (; next < model.layers.size() && std::ranges::all_of(model.layers[next], is_whole); ++next)
      std::erase_if(held, [&](const auto& entry) {
        return std::ranges::count(model.layers[next], entry.second.first) != 0;
      });
  }
  return next == model.layers.size() && held.empty();
}

TEST(PlaceLayers, NoTensorIsOverwrittenBeforeItsLayerIsPassedOn) {
  for (const auto& sizes : std::vector<std::vector<std::uint64_t>>{
           {100, 200, 300},                                           // all in one bucket
           std::vector<std::uint64_t>(5, 3 * kBucket + kBucket / 2),  // two in one bucket
           {3 * kBucket, 3 * kBucket, 3 * kBucket, 100},              // each in several
           {kBucket / 3, kBucket / 3, kBucket / 3, kBucket / 3, kBucket / 3, kBucket / 3},
           {kBucket - 1000, 2000, kBucket - 1000, 2000, 5 * kBucket},
           {5 * kBucket, 100, 100, 7 * kBucket, 100, 0, 100, 2 * kBucket + 2},
           {kBucket, kBucket, kBucket, kBucket},
           {}}) {
    const Placed model = layers_of(sizes);
    for (const bool keeps_all : {false, true}) {
      const auto placed = place_layers(model.plan, model.layers, kLimit, keeps_all);
      EXPECT_TRUE(survives(model, placed)) << testing::PrintToString(sizes) << keeps_all;
    }
  }
}

TEST(PlaceLayers, TheMemoryIsThatOfTwoLayersOrOfAll) {
  const std::uint64_t layer = 4 * kBucket + 512;
  const Placed model = layers_of(std::vector<std::uint64_t>(12, layer));
  const auto bytes = [](const LayerPlaces& placed) {
    std::uint64_t sum = 0;
    for (const std::uint64_t size : placed.allocations) sum += size;
    return sum;
  };
  const auto whole = place_layers(model.plan, model.layers, kLimit, false);
  EXPECT_EQ(whole.allocations.size(), 2U);
  EXPECT_LE(bytes(whole), 2 * (layer + 512));
  const auto all = place_layers(model.plan, model.layers, kLimit, true);
  EXPECT_EQ(all.allocations.size(), 1U);
  EXPECT_GE(bytes(all), 12 * layer);
  EXPECT_GE(all.gpu_bytes(), bytes(all));
  EXPECT_EQ(all.gpu_bytes() % device::kGpuBlockBytes, 0U);
}

TEST(PlaceLayers, NoAllocationIsLargerThanTheLimit) {
  const std::uint64_t layer = 4 * kBucket;
  const Placed model = layers_of(std::vector<std::uint64_t>(5, layer));
  for (const bool keeps_all : {false, true}) {
    const auto placed = place_layers(model.plan, model.layers, layer / 2 + 100, keeps_all);
    EXPECT_TRUE(survives(model, placed));
    for (const std::uint64_t bytes : placed.allocations) EXPECT_LE(bytes, layer / 2 + 100);
    EXPECT_EQ(placed.allocations.size(), keeps_all ? 10U : 4U);
  }
}

TEST(LayerMemory, WhatDoesNotFitIsSaidWithItsBytes) {
  const auto device = device::make_device({.kind = DeviceKind::kSeparate}).value();
  const auto free = device->memory_info().value();
  const LayerPlaces places{.places = {{}}, .allocations = {free.total_bytes * 2}};
  const auto memory = LayerMemory::allocate(*device, places);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(memory.error().message(),
              AllOf(HasSubstr("need " + std::to_string(places.gpu_bytes()) + " bytes"),
                    HasSubstr(" are free; leave more memory free")));
}

}  // namespace
}  // namespace wsync::engine
