// Destinations that lie in one another, and the sums of what they hold.
#include "inference_side/engine_link/same_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/weight_limits.h"
#include "tests/support/bytes.h"

namespace wsync::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SameMemoryTest : public testing::Test {
 protected:
  RankTensor at(std::string name, std::size_t begin, std::size_t bytes) {
    return {.description = {.name = std::move(name), .dtype = DType::kU8, .shape = {bytes}},
            .destination = std::span(memory_).subspan(begin, bytes),
            .held_as = std::nullopt};
  }
  static std::string why(const std::vector<RankTensor>& tensors) {
    const auto found = find_same_memory(tensors);
    return found ? "" : found.error().message();
  }
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
};

using SameMemory = SameMemoryTest;

TEST_F(SameMemory, NeighboursAndTensorsWithoutBytesAreNoMatterInAnyOrder) {
  const std::vector<RankTensor> tensors = {at("c", 48, 16), at("a", 0, 32), at("empty", 8, 0),
                                           at("b", 32, 16), at("nothing", 8, 0)};
  const auto found = find_same_memory(tensors);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_TRUE(found->empty());
}

TEST_F(SameMemory, AnOverlapInPartIsRefusedByNameAndBytes) {
  EXPECT_THAT(
      why({at("v", 56, 24), at("k", 24, 32), at("q", 0, 32)}),
      HasSubstr("tensors q and k overlap in memory (bytes 24 to 32 of q are bytes 0 to 8 of "
                "k): each needs memory of its own"));
  EXPECT_THAT(why({at("q", 0, 32), at("head", 0, 8)}),
              HasSubstr("tensors head and q overlap in memory (bytes 0 to 8 of head are bytes 0 to "
                        "8 of q)"));
  EXPECT_THAT(why({at("q", 0, 32), at("tail", 24, 8)}), HasSubstr("bytes 24 to 32 of q"));
  EXPECT_THAT(why({at("q", 0, 32), at("middle", 8, 8)}), HasSubstr("bytes 8 to 16 of q"));
  EXPECT_THAT(why({at("q", 0, 32), at("also_q", 0, 32), at("k", 31, 4)}),
              HasSubstr("tensors also_q and k overlap"));
  EXPECT_EQ(why({at("q", 0, 32), at("k", 32, 32)}), "");
}

TEST_F(SameMemory, TiedTensorsAreFound) {
  const std::vector<RankTensor> tensors = {at("head", 0, 32), at("w", 32, 32), at("embed", 0, 32),
                                           at("x", 64, 8),    at("y", 64, 8),  at("third", 0, 32)};
  EXPECT_THAT(find_same_memory(tensors).value(),
              ElementsAre(ElementsAre(0, 2, 5), ElementsAre(3, 4)));
}

TEST_F(SameMemory, TiedTensorsMustBeAlike) {
  auto first = at("a", 0, 32), second = at("b", 0, 32);
  second.description.dtype = DType::kF32;
  second.description.shape = {2, 4};
  EXPECT_EQ(why({first, second}), "") << "whole tensors of one size";
  second.description.shape = {4, 4};
  second.description.ranges = {{.dim = 0, .begin = 0, .length = 2}};
  EXPECT_THAT(why({first, second}),
              HasSubstr("tensors a and b have the same memory, but they are different ranges, or "
                        "ranges of different shapes: give each memory of its own, or take only one "
                        "of them"));
  first.description = second.description;
  first.description.name = "a";
  EXPECT_EQ(why({first, second}), "");
  first.description.ranges = {{.dim = 0, .begin = 2, .length = 2}};
  EXPECT_THAT(why({first, second}), HasSubstr("different ranges"));
  first = at("a", 0, 32), second = at("b", 0, 32);
  for (RankTensor* tensor : {&first, &second}) {
    tensor->description.dtype = DType::kBF16;
    tensor->description.shape = {8};
    tensor->held_as = DType::kF32;
  }
  EXPECT_THAT(why({first, second}),
              HasSubstr("which is not possible for tensors that are converted"));
}

TEST_F(SameMemory, TheSumOfAPartIsThatOfItsGroups) {
  const auto manifest =
      Manifest::create({{.name = "w", .dtype = DType::kU8, .shape = {40, 77}}}).value();
  const auto buckets = BucketPlan::create(manifest, limits::kBucketBytesMin).value();
  std::vector<std::byte> arena(buckets.arena_bytes());
  std::mt19937_64 random(3);
  fill_random(random, arena);
  for (const auto& range : std::vector<std::vector<control::DimRange>>{
           {}, {{.dim = 0, .begin = 3, .length = 9}}, {{.dim = 1, .begin = 5, .length = 33}}}) {
    control::EngineTensor tensor{.name = "w", .dtype = DType::kU8, .shape = {40, 77}};
    tensor.ranges = range;
    const auto plan = reload::LoadPlan::make(manifest, buckets, std::vector{tensor}).value();
    std::vector<std::byte> held(plan.bytes());
    reload::CopyScratch scratch;
    SplitSum read;
    for (const reload::CopyGroup& group : plan.groups())
      read += plan.execute(group, plan.bucket_of(arena, group.bucket), held, scratch);
    EXPECT_EQ(held_sum(plan.tensors()[0], held), read);
    held.back() ^= std::byte{1};
    EXPECT_FALSE(held_sum(plan.tensors()[0], held) == read);
  }
}

}  // namespace
}  // namespace wsync::engine
