// One reading of a rank's weights: its sums are those of a load, also when patches are written in
// the middle of it.
#include "inference_side/engine_link/scrub_pass.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "inference_side/reload/load_plan.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "tests/support/bytes.h"
#include "tests/support/versions.h"

namespace wsync::engine {
namespace {

constexpr TimePoint kBegin{1'000};
constexpr TimePoint kLater{2'000};

// One tensor, the part of it that a rank holds, and what the part's bytes are.
class Part {
 public:
  Part(TensorInfo info, std::vector<control::DimRange> ranges, std::uint64_t seed)
      : info_(std::move(info)),
        ranges_(std::move(ranges)),
        manifest_(Manifest::create({info_}).value()),
        layout_(manifest_),
        plan_(BucketPlan::create(manifest_, limits::kBucketBytesMin).value()),
        load_(reload::LoadPlan::make(manifest_, plan_, std::vector{tensor()}).value()),
        random_(seed),
        whole_(load_.tensors()[0].shard.tensor_bytes()),
        own_(load_.tensors()[0].shard.bytes()) {
    fill_random(random_, whole_);
    for (std::uint64_t at = 0; at < own_.size();) {
      const auto run = load_.tensors()[0].shard.run_at(at);
      std::memcpy(own_.data() + at, whole_.data() + run.offset, run.bytes);
      at += run.bytes;
    }
  }
  [[nodiscard]] control::EngineTensor tensor() const {
    return {.name = info_.name, .dtype = info_.dtype, .shape = info_.shape, .ranges = ranges_};
  }
  [[nodiscard]] ScrubPass pass(const Version& version = kV1) const {
    const reload::LoadTensor& loaded = load_.tensors()[0];
    return {7, version, {{.seed = loaded.seed, .shard = loaded.shard, .memory = own_}}, kBegin};
  }
  [[nodiscard]] SplitSum expected() const {
    std::vector<std::byte> arena(load_.arena_bytes());
    std::memcpy(arena.data() + load_.tensors()[0].arena_offset, whole_.data(), whole_.size());
    return reload::expected_sum(load_.tensors()[0], arena);
  }
  // Another version, in which about one of `every` bytes differs, by a patch. `pass`: what is going
  // on.
  void patch(std::size_t every, ScrubPass& pass) {
    std::vector<std::byte> next = whole_;
    const std::size_t element = dtype_bits(info_.dtype) / 8;
    for (std::size_t at = random_() % every; at < next.size(); at += 1 + random_() % (2 * every))
      next[at] ^= std::byte{1};
    std::vector<patch::PartRange> ranges;
    for (const auto& range : ranges_)
      ranges.push_back({.dim = range.dim, .begin = range.begin, .length = range.length});
    const auto part = patch::TensorPart::create(info_, ranges).value();
    const std::uint64_t read = pass.read_blocks()[0];
    patch::BlockMaker maker;
    patch::BlockApplier applier(layout_);
    std::vector<SplitSum> before(1);
    std::vector<SplitSum> after(1);
    for (std::uint32_t b = 0; b < layout_.block_count(0); ++b) {
      const patch::BlockPlace place{.tensor = 0, .block = b};
      const auto at = patch::Layout::offset(place);
      const auto bytes = layout_.block_bytes(place);
      const auto block = maker.make(layout_, place, std::span(whole_).subspan(at, bytes),
                                    std::span(next).subspan(at, bytes));
      if (!block) continue;
      const auto sums = applier.apply_to_part(block->view(), part, own_);
      if (b >= read) continue;
      before[0] += sums.before;
      after[0] += sums.after;
    }
    ASSERT_GE(element, 1U);
    whole_ = std::move(next);
    pass.change(before, after, kLater);
    pass.set_version(kV2);
  }
  [[nodiscard]] std::vector<std::byte>& own() { return own_; }

 private:
  TensorInfo info_;
  std::vector<control::DimRange> ranges_;
  Manifest manifest_;
  patch::Layout layout_;
  BucketPlan plan_;
  reload::LoadPlan load_;
  std::mt19937_64 random_;
  std::vector<std::byte> whole_;
  std::vector<std::byte> own_;
};

std::size_t read_all(ScrubPass& pass) {
  std::size_t blocks = 0;
  for (; !pass.complete(); ++blocks) pass.read_block();
  return blocks;
}

struct Case {
  TensorInfo info;
  std::vector<control::DimRange> ranges;
};
// Whole, rows, columns, boxes; at words and within them; parts that lack the first or the last
// blocks; nothing at all.
std::vector<Case> cases() {
  return {
      {{.name = "whole", .dtype = DType::kU8, .shape = {1'000'003}}, {}},
      {{.name = "rows", .dtype = DType::kBF16, .shape = {1'000, 501}},
       {{.dim = 0, .begin = 700, .length = 300}}},
      {{.name = "first", .dtype = DType::kBF16, .shape = {1'000, 501}},
       {{.dim = 0, .begin = 0, .length = 3}}},
      {{.name = "columns", .dtype = DType::kF32, .shape = {600, 512}},
       {{.dim = 1, .begin = 128, .length = 128}}},
      {{.name = "cut", .dtype = DType::kU8, .shape = {9'001, 101}},
       {{.dim = 1, .begin = 13, .length = 50}}},
      {{.name = "box", .dtype = DType::kBF16, .shape = {50, 60, 131}},
       {{.dim = 0, .begin = 10, .length = 30}, {.dim = 2, .begin = 3, .length = 64}}},
      {{.name = "one", .dtype = DType::kU8, .shape = {5}}, {}},
      {{.name = "none", .dtype = DType::kF32, .shape = {100, 8}},
       {{.dim = 0, .begin = 4, .length = 0}}},
  };
}

TEST(ScrubPass, SumsAreThoseOfALoad) {
  std::uint64_t seed = 0;
  for (const Case& each : cases()) {
    const Part part(each.info, each.ranges, ++seed);
    ScrubPass pass = part.pass();
    EXPECT_EQ(pass.number(), 7U);
    read_all(pass);
    EXPECT_EQ(pass.sums(), std::vector{part.expected()}) << each.info.name;
    EXPECT_EQ(pass.version(), kV1);
  }
}

TEST(ScrubPass, OneBitChangesThem) {
  for (const Case& each : cases()) {
    Part part(each.info, each.ranges, 3);
    if (part.own().empty()) continue;
    for (const std::size_t at : {std::size_t{0}, part.own().size() / 2, part.own().size() - 1}) {
      part.own()[at] ^= std::byte{4};
      ScrubPass pass = part.pass();
      read_all(pass);
      EXPECT_NE(pass.sums(), std::vector{part.expected()}) << each.info.name << " " << at;
      part.own()[at] ^= std::byte{4};
    }
  }
}

TEST(ScrubPass, PatchesInTheMiddleAndAfterItAreAccountedFor) {
  std::uint64_t seed = 0;
  for (const Case& each : cases()) {
    if (each.info.name == "none" || each.info.name == "one") continue;
    for (int stop = 0; stop < 5; ++stop) {
      Part part(each.info, each.ranges, ++seed);
      ScrubPass pass = part.pass();
      for (int block = 0; block < stop; ++block) pass.read_block();
      part.patch(300, pass);
      pass.read_block();
      part.patch(3, pass);
      read_all(pass);
      EXPECT_EQ(pass.sums(), std::vector{part.expected()}) << each.info.name << " " << stop;
      part.patch(50, pass);
      EXPECT_TRUE(pass.complete());
      EXPECT_EQ(pass.sums(), std::vector{part.expected()}) << each.info.name << " " << stop;
      EXPECT_EQ(pass.version(), kV2);
      EXPECT_EQ(pass.begin(), kBegin);
    }
  }
}

// What was damaged before it was read, or after that and then patched over, is no matter of the
// pass: the sums before the patch are compared in the switch. What a patch does not touch is.
TEST(ScrubPass, DamageThatPatchesDoNotTouchStaysVisible) {
  Part part({.name = "whole", .dtype = DType::kU8, .shape = {1'000'003}}, {}, 5);
  ScrubPass pass = part.pass();
  pass.read_block();
  part.own()[999'999] ^= std::byte{1};
  part.patch(100'000, pass);
  read_all(pass);
  EXPECT_NE(pass.sums(), std::vector{part.expected()});
}

// Two rows of one byte lie in one word.
TEST(ScrubPass, BeginsAnewWhereSumsOfPatchesCannotBeAdded) {
  Part part({.name = "narrow", .dtype = DType::kU8, .shape = {300'000, 3}},
            {{.dim = 1, .begin = 1, .length = 1}}, 5);
  ScrubPass pass = part.pass();
  pass.read_block();
  part.patch(100, pass);
  EXPECT_FALSE(pass.complete());
  EXPECT_EQ(pass.read_blocks(), std::vector<std::uint64_t>{0});
  EXPECT_EQ(pass.begin(), kLater);
  read_all(pass);
  EXPECT_EQ(pass.sums(), std::vector{part.expected()});
}

TEST(ScrubPass, BlocksWithoutAPartOfTheRankCostNothing) {
  const Part part({.name = "rows", .dtype = DType::kU8, .shape = {8, 4U << 20U}},
                  {{.dim = 0, .begin = 7, .length = 1}}, 1);
  ScrubPass pass = part.pass();
  EXPECT_EQ(pass.read_blocks(), std::vector<std::uint64_t>{7 * 16});
  EXPECT_EQ(read_all(pass), 16U);
  EXPECT_EQ(pass.read_blocks(), std::vector<std::uint64_t>{8 * 16});
}

TEST(ScrubPass, ARankWithoutTensorsIsReadAtOnce) {
  ScrubPass pass(1, kV1, {}, kBegin);
  EXPECT_TRUE(pass.complete());
  pass.read_block();
  EXPECT_TRUE(pass.sums().empty());
}

}  // namespace
}  // namespace wsync::engine
