// Tensors that a rank holds in another dtype than the version has: every way of a piece into its
// memory gives the elements that converting the whole part gives, and the sums of the version.
#include "inference_side/engine_link/destination.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "inference_side/engine_link/arena_copy.h"
#include "inference_side/engine_link/bucket_taker.h"
#include "shared/base/units.h"
#include "shared/weights/cast.h"
#include "shared/weights/content_digest.h"
#include "tests/support/bytes.h"

namespace wsync::engine {
namespace {

using testing::HasSubstr;

constexpr TimePoint kNever{INT64_MAX};

struct Pair {
  DType from;
  DType to;
};
std::string name_of(const testing::TestParamInfo<Pair>& info) {
  return std::string(dtype_name(info.param.from)) + "To" + std::string(dtype_name(info.param.to));
}

// A tensor of several buckets, one of fewer bytes than a part, and parts whose rows begin and end
// within words: the rank takes columns from an odd one on.
class Casting : public testing::TestWithParam<Pair> {
 protected:
  Casting() {
    const auto [from, to] = GetParam();
    const auto manifest =
        Manifest::create({{.name = "big", .dtype = from, .shape = {700, 1031}},
                          {.name = "columns", .dtype = from, .shape = {1201, 999}},
                          {.name = "element", .dtype = from, .shape = {1}},
                          {.name = "norm", .dtype = from, .shape = {1003}},
                          {.name = "rows", .dtype = from, .shape = {1003, 511}}})
            .value();
    buckets_ = BucketPlan::create(manifest, limits::kMiB).value();
    for (const TensorInfo& info : manifest.tensors()) {
      RankTensor tensor;
      tensor.description = {.name = info.name, .dtype = info.dtype, .shape = info.shape};
      tensor.held_as = to;
      tensors_.push_back(std::move(tensor));
    }
    tensors_[1].description.ranges = {{.dim = 1, .begin = 333, .length = 155}};
    tensors_[4].description.ranges = {{.dim = 0, .begin = 7, .length = 995}};
    std::vector<control::EngineTensor> described;
    for (const RankTensor& tensor : tensors_) described.push_back(tensor.description);
    plan_ = reload::LoadPlan::make(manifest, buckets_, described).value();
    EXPECT_GT(plan_.bucket_count(), 3U);
    arena_.resize(plan_.arena_bytes());
    std::mt19937_64 random(5);
    fill_random(random, arena_);
    reload::CopyScratch scratch;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::vector<std::byte> part(plan_.tensors()[t].shard.bytes());
      for (const reload::CopyGroup& group : plan_.groups())
        if (group.tensor == t)
          (void)plan_.execute(group, plan_.bucket_of(arena_, group.bucket), part, scratch);
      memory_.emplace_back(destination_bytes(tensors_[t], part.size()), std::byte{0xee});
      expected_.emplace_back(memory_[t].size());
      cast(from, part, to, expected_[t]);
      tensors_[t].destination = memory_[t];
    }
    for (const reload::CopyGroup& group : plan_.groups())
      sums_.push_back(plan_.sum(group, plan_.bucket_of(arena_, group.bucket)));
  }

  [[nodiscard]] std::function<Result<>(std::size_t, const SplitSum&)> compare_sums() {
    return [this](std::size_t g, const SplitSum& sum) {
      EXPECT_EQ(sum, sums_[g]) << "the sum of group " << g;
      ++told_;
      return Result<>();
    };
  }

  BucketPlan buckets_;
  reload::LoadPlan plan_;
  std::vector<RankTensor> tensors_;
  std::vector<std::byte> arena_;
  std::vector<SplitSum> sums_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<std::byte>> expected_;
  std::size_t told_ = 0;
};
INSTANTIATE_TEST_SUITE_P(
    All, Casting,
    testing::Values(Pair{DType::kBF16, DType::kF32}, Pair{DType::kF16, DType::kF32},
                    Pair{DType::kF32, DType::kBF16}, Pair{DType::kF32, DType::kF16},
                    Pair{DType::kF16, DType::kBF16}, Pair{DType::kBF16, DType::kF16}),
    name_of);

TEST_P(Casting, OutOfAnArenaByAnyNumberOfThreads) {
  for (const unsigned helpers : {0U, 3U}) {
    for (auto& memory : memory_) std::ranges::fill(memory, std::byte{0xee});
    ThreadPool pool(std::max(helpers, 1U));
    std::vector<Destination> destinations;
    for (const RankTensor& tensor : tensors_) destinations.push_back(Destination::of(tensor));
    ArenaCopy copy(plan_, arena_, std::move(destinations));
    told_ = 0;
    ASSERT_TRUE(copy.run(helpers == 0 ? nullptr : &pool, kNever, compare_sums()));
    EXPECT_EQ(told_, plan_.groups().size());
    EXPECT_EQ(memory_, expected_);
  }
}

TEST_P(Casting, OutOfTheBuffersOfASeparateDevice) {
  // Two buffers, as a sidecar has them, each filled anew for every second bucket.
  std::vector<std::vector<std::byte>> buffers(2, std::vector<std::byte>(limits::kMiB));
  HostTaker taker({buffers[0], buffers[1]});
  for (std::uint32_t bucket = 0; bucket < plan_.bucket_count(); ++bucket) {
    std::ranges::copy(plan_.bucket_of(arena_, bucket), buffers[bucket % 2].begin());
    ASSERT_TRUE(taker.take(
        bucket % 2, {.plan = &plan_,
                     .bucket = bucket,
                     .deadline = kNever,
                     .destination = [&](std::uint32_t t) { return Destination::of(tensors_[t]); },
                     .on_group = compare_sums()}));
  }
  EXPECT_EQ(told_, plan_.groups().size());
  EXPECT_EQ(memory_, expected_);
}

// Only of what was widened can be said what it was.
TEST_P(Casting, TheDigestIsThatOfTheVersionOrNone) {
  const auto [from, to] = GetParam();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    std::ranges::copy(expected_[t], memory_[t].begin());
    const auto digest = held_digest(tensors_[t]);
    if (to != DType::kF32) {
      ASSERT_FALSE(digest) << "a tensor that has lost bits looks like one that can be compared";
      EXPECT_EQ(digest.error().code(), ErrorCode::kRefused);
      EXPECT_THAT(digest.error().message(),
                  HasSubstr("tensor " + tensors_[t].description.name + " cannot be read back"));
      continue;
    }
    const Digest expected = reload::expected_digest(plan_.tensors()[t], arena_);
    EXPECT_EQ(digest.value(), expected) << tensors_[t].description.name;
    // The lowest bit of an element, which is none of the version: rounding would hide it.
    memory_[t][memory_[t].size() / 8 * 4] ^= std::byte{1};
    EXPECT_NE(held_digest(tensors_[t]).value(), expected) << "a changed bit is not seen";
  }
}

TEST(CheckCast, NamesTheTensorAndWhatIsPossible) {
  RankTensor tensor;
  tensor.description = {.name = "norm", .dtype = DType::kBF16, .shape = {8}};
  const auto refusal = [&](DType from, std::optional<DType> to,
                           control::TakeMode take = control::TakeMode::kPieces,
                           bool on_gpu = false) {
    tensor.description.dtype = from;
    tensor.held_as = to;
    const auto checked = check_cast(tensor, take, on_gpu);
    return checked ? std::string() : checked.error().message();
  };
  EXPECT_EQ(refusal(DType::kBF16, std::nullopt, control::TakeMode::kPieces, true), "");
  EXPECT_EQ(refusal(DType::kI64, DType::kI64, control::TakeMode::kAdopt), "");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF32), "");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF32, control::TakeMode::kWhole),
            "tensor norm is BF16 in the version and F32 in the engine's memory, which is possible "
            "only for a rank that takes pieces");
  std::array<float, 3> memory{};
  const auto bytes = std::as_writable_bytes(std::span(memory));
  tensor.destination = bytes.subspan(2, 8);
  EXPECT_EQ(refusal(DType::kF32, DType::kBF16, control::TakeMode::kPieces, true), "");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF32), "") << "the host converts to any address";
  EXPECT_THAT(refusal(DType::kBF16, DType::kF32, control::TakeMode::kPieces, true),
              HasSubstr("is no multiple of an element's 4 bytes, which a GPU needs"));
  tensor.destination = bytes.first(8);
  EXPECT_EQ(refusal(DType::kBF16, DType::kF32, control::TakeMode::kPieces, true), "");
  for (const auto& [from, to] : {Pair{DType::kF8E4M3, DType::kF32}, Pair{DType::kF32, DType::kI32},
                                 Pair{DType::kF32, DType::kF8E4M3}, Pair{DType::kF64, DType::kF32}})
    EXPECT_THAT(refusal(from, to), HasSubstr("only F32, F16 and BF16 can be converted"));
}

}  // namespace
}  // namespace wsync::engine
