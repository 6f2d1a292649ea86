// What the ranks of a replica have loaded against what was staged: every way to divide a tensor,
// nothing read twice, and every wrong byte found with its tensor and its rank.
#include "inference_side/reload/sum_check.h"

#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/weight_limits.h"
#include "tests/support/bytes.h"

namespace wsync::reload {
namespace {

using control::DimRange;
using control::EngineTensor;
using testing::HasSubstr;

// A staged version, and the memory of the ranks of a replica that has loaded it.
class SumCheckTest : public testing::Test {
 protected:
  struct Rank {
    std::vector<EngineTensor> tensors;
    LoadPlan plan;
    std::vector<std::vector<std::byte>> memory;  // of each tensor
    std::vector<SplitSum> sums;
  };

  void stage(std::vector<TensorInfo> infos, std::uint64_t seed = 1) {
    manifest_ = Manifest::create(std::move(infos)).value();
    plan_ = BucketPlan::create(manifest_, limits::kBucketBytesMin).value();
    arena_.resize(plan_.arena_bytes());
    std::mt19937_64 random(seed);
    fill_random(random, arena_);
    ContentDigester digester(manifest_);
    for (const Piece& piece : plan_.pieces())
      ASSERT_TRUE(digester.add(piece.tensor, piece.tensor_offset,
                               std::span(arena_).subspan(plan_.arena_offset(piece), piece.bytes)));
    digests_ = digester.finish().value();
    ranks_.clear();
  }
  // Takes `ranges` of the named tensors.
  Rank& add_rank(const std::vector<std::pair<std::string, std::vector<DimRange>>>& parts) {
    Rank rank;
    for (const auto& [name, ranges] : parts) {
      const TensorInfo& info = manifest_.tensor(manifest_.find(name).value());
      rank.tensors.push_back(
          {.name = name, .dtype = info.dtype, .shape = info.shape, .ranges = ranges});
    }
    rank.plan = LoadPlan::make(manifest_, plan_, rank.tensors).value();
    ranks_.push_back(std::move(rank));
    return ranks_.back();
  }
  // Every rank copies its parts. Rank `other` finds them in a changed arena.
  void load(std::optional<std::size_t> other = {}, std::span<const std::byte> changed = {}) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      const LoadPlan& plan = rank.plan;
      rank.memory.clear();
      for (const LoadTensor& tensor : plan.tensors())
        rank.memory.emplace_back(tensor.shard.bytes());
      rank.sums.assign(plan.tensors().size(), {});
      CopyScratch scratch;
      for (const CopyGroup& group : plan.groups())
        rank.sums[group.tensor] +=
            plan.execute(group, plan.bucket_of(other == r ? changed : arena_, group.bucket),
                         rank.memory[group.tensor], scratch);
    }
  }
  [[nodiscard]] SumCheck check() const {
    std::vector<LoadedRank> loaded;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      loaded.push_back({.rank = static_cast<std::uint32_t>(r),
                        .tensors = ranks_[r].plan.tensors(),
                        .ranges = ranks_[r].tensors,
                        .sums = ranks_[r].sums});
    return check_sums({.manifest = &manifest_, .digests = &digests_, .arena = arena_}, loaded);
  }
  [[nodiscard]] std::size_t arena_offset(const std::string& name) const {
    return plan_.arena_offset(plan_.tensor_pieces(manifest_.find(name).value()).front());
  }
  void expect_equal(std::uint64_t read_bytes = 0) const {
    const SumCheck found = check();
    EXPECT_FALSE(found.mismatch) << found.mismatch->why;
    EXPECT_EQ(found.read_bytes, read_bytes);
  }

  Manifest manifest_;
  BucketPlan plan_;
  ContentDigests digests_;
  std::vector<std::byte> arena_;
  std::vector<Rank> ranks_;
};

TensorInfo tensor_of(std::string name, std::vector<std::uint64_t> shape,
                     DType dtype = DType::kBF16) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

std::vector<DimRange> range(std::uint32_t dim, std::uint64_t begin, std::uint64_t length) {
  return {{.dim = dim, .begin = begin, .length = length}};
}

TEST_F(SumCheckTest, WholeTensorsRowsAndColumnsAreComparedWithoutReadingThem) {
  stage({tensor_of("norm", {1000}), tensor_of("rows", {1536, 1024}),
         tensor_of("columns", {1536, 1024}), tensor_of("kv", {512, 256})});
  for (std::uint64_t r = 0; r < 4; ++r)
    add_rank({{"norm", {}},
              {"rows", range(0, 384 * r, 384)},
              {"columns", range(1, 256 * r, 256)},
              {"kv", range(0, 256 * (r / 2), 256)}});  // each half on two ranks
  load();
  expect_equal();
}

// Columns of 3, 5, 1 and 4 bytes: words that belong to two and to three ranks.
TEST_F(SumCheckTest, RangesMayCutWords) {
  stage({tensor_of("odd", {999, 13}, DType::kU8), tensor_of("half", {77, 1001}),
         tensor_of("end", {3, 5}, DType::kU8)});
  constexpr std::array<std::array<std::uint64_t, 2>, 4> kOdd = {{{0, 3}, {3, 5}, {8, 1}, {9, 4}}};
  for (std::size_t r = 0; r < 4; ++r)
    add_rank({{"odd", range(1, kOdd[r][0], kOdd[r][1])},
              {"half", range(1, 250 * r, r == 3 ? 251 : 250)},
              {"end", range(0, std::min<std::uint64_t>(r, 3), r == 3 ? 0 : 1)}});
  load();
  expect_equal();
}

// Stacked experts: divided by expert, and each of them by columns or by rows.
TEST_F(SumCheckTest, BlocksMayBeDividedInSeveralDimensions) {
  stage({tensor_of("down", {8, 64, 30}), tensor_of("up", {8, 60, 32}),
         tensor_of("odd", {4, 7, 9}, DType::kU8)});
  for (std::uint64_t ep = 0; ep < 2; ++ep)
    for (std::uint64_t tp = 0; tp < 2; ++tp)
      add_rank(
          {{"down",
            {{.dim = 0, .begin = 4 * ep, .length = 4}, {.dim = 2, .begin = 15 * tp, .length = 15}}},
           {"up",
            {{.dim = 0, .begin = 4 * ep, .length = 4}, {.dim = 1, .begin = 30 * tp, .length = 30}}},
           {"odd",
            {{.dim = 1, .begin = 3 * ep, .length = ep == 0 ? 3U : 4U},
             {.dim = 2, .begin = 5 * tp, .length = tp == 0 ? 5U : 4U}}}});
  load();
  expect_equal();
}

TEST_F(SumCheckTest, ElementsSmallerThanAByteAndTensorsWithoutOne) {
  stage({tensor_of("f4", {64, 90}, DType::kF4), tensor_of("none", {0, 5}),
         tensor_of("end", {1, 6}, DType::kF4)});
  for (std::uint64_t r = 0; r < 2; ++r)
    add_rank({{"f4", range(1, 46 * r, r == 0 ? 46 : 44)},
              {"none", r == 0 ? range(1, 0, 2) : range(0, 0, 0)},
              {"end", range(1, 2 * r, r == 0 ? 2 : 4)}});
  load();
  expect_equal();
}

// Chunks of rows that do not begin at words, with rows shorter than a word.
TEST_F(SumCheckTest, ManyChunksOfShortRows) {
  stage({tensor_of("w", {300'000, 7}, DType::kU8), tensor_of("row", {1, 3'000'001}, DType::kU8)});
  for (std::uint64_t r = 0; r < 2; ++r)
    add_rank({{"w", range(1, 3 * r, r == 0 ? 3 : 4)},
              {"row", range(1, 1'000'003 * r, r == 0 ? 1'000'003 : 1'999'998)}});
  load();
  expect_equal();
}

TEST_F(SumCheckTest, PartsThatOverlapOrLackARankAreComparedWithWhatIsStaged) {
  stage({tensor_of("w", {100, 64}), tensor_of("block", {64, 64})});
  for (std::uint64_t r = 0; r < 2; ++r)
    add_rank({{"w", range(0, 40 * r, 60)},
              {"block",
               {{.dim = 0, .begin = 32 * r, .length = 32}, {.dim = 1, .begin = 0, .length = 48}}}});
  load();
  const std::uint64_t w = 2 * 60 * 64 * 2 + 100 * 64 * 2;
  const std::uint64_t block = 2 * 32 * 48 * 2 + 64 * 64 * 2;
  expect_equal(w + block);
}

TEST_F(SumCheckTest, AWrongByteIsFoundWithItsTensorAndItsRank) {
  stage({tensor_of("norm", {1000}), tensor_of("rows", {64, 1024}),
         tensor_of("columns", {999, 13}, DType::kU8)});
  constexpr std::array<std::array<std::uint64_t, 2>, 3> kRows = {{{0, 22}, {22, 22}, {44, 20}}};
  constexpr std::array<std::array<std::uint64_t, 2>, 3> kColumns = {{{0, 3}, {3, 5}, {8, 5}}};
  for (std::size_t r = 0; r < 3; ++r)
    add_rank({{"norm", {}},
              {"rows", range(0, kRows[r][0], kRows[r][1])},
              {"columns", range(1, kColumns[r][0], kColumns[r][1])}});
  std::mt19937_64 random(3);
  for (const char* name : {"norm", "rows", "columns"}) {
    const std::uint64_t bytes = manifest_.byte_size(manifest_.find(name).value());
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t at = arena_offset(name) + random() % bytes;
      auto changed = arena_;
      changed[at] ^= std::byte{1};
      const std::size_t rank = random() % 3;
      load(rank, changed);
      const auto clean = ranks_[rank].memory;
      load();
      const bool holds_it = ranks_[rank].memory != clean;
      load(rank, changed);
      const auto found = check().mismatch;
      ASSERT_EQ(found.has_value(), holds_it) << name << " byte " << at;
      if (!found) continue;
      EXPECT_EQ(found->tensor, name);
      EXPECT_EQ(found->rank, rank);
      EXPECT_THAT(found->why, HasSubstr("rank " + std::to_string(rank) + " has loaded are not"));
    }
  }
}

// What all ranks have copied is what is staged, and that is not the version.
TEST_F(SumCheckTest, StagedBytesThatAreNotTheVersionAreNoRanksFault) {
  stage({tensor_of("norm", {1000}), tensor_of("columns", {999, 13}, DType::kU8)});
  for (std::uint64_t r = 0; r < 2; ++r)
    add_rank({{"norm", {}}, {"columns", range(1, r == 0 ? 0 : 6, r == 0 ? 6 : 7)}});
  for (const char* name : {"norm", "columns"}) {
    arena_[arena_offset(name) + 6] ^= std::byte{1};
    load();
    const auto found = check().mismatch;
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->tensor, name);
    EXPECT_FALSE(found->rank);
    EXPECT_THAT(found->why, HasSubstr("the staged bytes are not those of the version"));
    arena_[arena_offset(name) + 6] ^= std::byte{1};
  }
}

TEST_F(SumCheckTest, ExpertsOfOneShapeThatAreLoadedAsTheyAre) {
  stage({tensor_of("experts.0.w", {64, 64}), tensor_of("experts.1.w", {64, 64})});
  add_rank({{"experts.0.w", {}}, {"experts.1.w", {}}});
  load();
  expect_equal();
}

TEST_F(SumCheckTest, ExpertsThatAreTakenForEachOtherAndBlocksThatAreSwappedAreFound) {
  stage({tensor_of("experts.0.w", {64, 64}), tensor_of("experts.1.w", {64, 64})});
  add_rank({{"experts.0.w", {}}, {"experts.1.w", {}}});
  const auto bytes = manifest_.byte_size(0);
  auto changed = arena_;
  std::swap_ranges(
      changed.begin() + static_cast<std::ptrdiff_t>(arena_offset("experts.0.w")),
      changed.begin() + static_cast<std::ptrdiff_t>(arena_offset("experts.0.w") + bytes),
      changed.begin() + static_cast<std::ptrdiff_t>(arena_offset("experts.1.w")));
  load(0, changed);
  EXPECT_TRUE(check().mismatch);
  changed = arena_;
  std::swap_ranges(changed.begin(), changed.begin() + kSumBlockBytes,
                   changed.begin() + kSumBlockBytes);
  load(0, changed);
  EXPECT_TRUE(check().mismatch);
}

TEST_F(SumCheckTest, RandomDivisionsOfRandomTensors) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  constexpr std::array kTypes{DType::kU8, DType::kBF16, DType::kF32, DType::kF64};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<TensorInfo> infos;
    for (std::uint64_t i = 0; i < 6; ++i) {
      std::vector<std::uint64_t> shape(1 + below(3));
      for (auto& size : shape) size = 1 + below(below(4) == 0 ? 700 : 20);
      infos.push_back(tensor_of("t" + std::to_string(i), shape, kTypes[below(kTypes.size())]));
    }
    stage(infos, seed);
    const std::uint64_t world = 1 + below(4);
    std::vector<std::vector<std::pair<std::string, std::vector<DimRange>>>> parts(world);
    for (const TensorInfo& tensor : infos) {
      const auto dim = static_cast<std::uint32_t>(below(tensor.shape.size() + 1));
      std::uint64_t begin = 0;
      for (std::uint64_t r = 0; r < world; ++r) {
        if (dim == tensor.shape.size()) {
          parts[r].emplace_back(tensor.name, std::vector<DimRange>());
          continue;
        }
        const std::uint64_t left = tensor.shape[dim] - begin;
        const std::uint64_t length = r + 1 == world ? left : below(left + 1);
        parts[r].emplace_back(tensor.name, range(dim, begin, length));
        begin += length;
      }
    }
    for (const auto& part : parts) add_rank(part);
    load();
    expect_equal();
    const std::uint64_t at = below(arena_.size());
    const bool is_in_a_tensor = std::ranges::any_of(plan_.pieces(), [&](const Piece& piece) {
      return at >= plan_.arena_offset(piece) && at < plan_.arena_offset(piece) + piece.bytes;
    });
    arena_[at] ^= std::byte{0x80};
    load();
    EXPECT_EQ(check().mismatch.has_value(), is_in_a_tensor);
  }
}

}  // namespace
}  // namespace wsync::reload
