// Shards, load plans and layout checks: properties over random manifests, and the sentences of
// refusals.
#include "inference_side/reload/load_plan.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "inference_side/reload/layout_check.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"
#include "tests/support/bytes.h"
#include "tests/unit/reload/random_model.h"

namespace wsync::reload {
namespace {

using control::DimRange;
using control::EngineTensor;
using control::ProblemKind;
using testing::HasSubstr;

// The shard's bytes element by element, in row-major order: slow, and right by construction.
std::vector<std::byte> reference_shard(const TensorInfo& tensor,
                                       const std::vector<DimRange>& ranges,
                                       std::span<const std::byte> bytes) {
  const std::size_t element = dtype_bits(tensor.dtype) / 8;
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < bytes.size() / element; ++i) {
    std::size_t rest = i;
    bool inside = true;
    for (std::size_t d = tensor.shape.size(); d-- > 0;) {
      const std::uint64_t at = rest % tensor.shape[d];
      rest /= tensor.shape[d];
      for (const DimRange& range : ranges)
        if (range.dim == d && (at < range.begin || at >= range.begin + range.length))
          inside = false;
    }
    if (inside)
      out.insert(out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i * element),
                 bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * element));
  }
  return out;
}

TEST(LoadPlan, LoadsEveryShardExactlyAndSumsWhatItReads) {
  int with_edges = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model = random_model(seed);
    const auto plan = LoadPlan::make(model.manifest, model.plan, model.tensors);
    ASSERT_TRUE(plan) << plan.error().message();
    std::vector<std::vector<std::byte>> held;
    for (const LoadTensor& tensor : plan->tensors()) held.emplace_back(tensor.shard.bytes());
    std::vector<SplitSum> sums(plan->tensors().size());
    CopyScratch scratch;
    LoadCoverage coverage(*plan);
    std::vector<std::size_t> order(plan->groups().size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, std::mt19937_64(seed));
    for (const std::size_t i : order) {
      EXPECT_FALSE(coverage.complete());
      const CopyGroup& group = plan->groups()[i];
      const auto bucket = plan->bucket_of(model.arena, group.bucket);
      const SplitSum sum = plan->execute(group, bucket, held[group.tensor], scratch);
      EXPECT_EQ(plan->sum(group, bucket), sum);
      sums[group.tensor] += sum;
      coverage.mark(i);
    }
    EXPECT_TRUE(coverage.check());
    EXPECT_EQ(coverage.bytes(), plan->bytes());
    for (std::size_t t = 0; t < held.size(); ++t) {
      const LoadTensor& tensor = plan->tensors()[t];
      const TensorInfo& source = model.manifest.tensor(tensor.manifest_index);
      const auto whole =
          std::span(model.arena).subspan(tensor.arena_offset, tensor.shard.tensor_bytes());
      EXPECT_EQ(held[t], reference_shard(source, model.tensors[t].ranges, whole))
          << describe(source);
      EXPECT_EQ(expected_digest(tensor, model.arena), tensor_digest(tensor.seed, held[t]));
      EXPECT_EQ(sums[t], expected_sum(tensor, model.arena)) << describe(source);
      EXPECT_EQ(sums[t].edges, expected_edges(tensor, model.arena)) << describe(source);
      with_edges += sums[t].edges == WordSum{} ? 0 : 1;
    }
  }
  EXPECT_GT(with_edges, 20);
}

// The edges of a rank's part come from the words that its ranges cut, and from no others.
TEST(LoadPlan, OnlyWordsThatAreCutAreReadForTheEdges) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model = random_model(seed);
    const auto plan = LoadPlan::make(model.manifest, model.plan, model.tensors).value();
    for (const LoadTensor& tensor : plan.tensors()) {
      std::vector<std::uint64_t> words;
      add_cut_words(tensor, words);
      std::vector<std::byte> other(model.arena.size(), std::byte{0x5a});
      for (const std::uint64_t word : words) {
        const std::uint64_t at = word * kSumWordBytes;
        const std::uint64_t bytes = std::min(kSumWordBytes, tensor.shard.tensor_bytes() - at);
        const auto from = std::span(model.arena).subspan(tensor.arena_offset + at, bytes);
        std::ranges::copy(from, std::span(other).subspan(tensor.arena_offset + at).begin());
      }
      EXPECT_EQ(expected_edges(tensor, other), expected_edges(tensor, model.arena));
    }
  }
}

TEST(LoadPlan, RowsOfAGroupSayTheSameAsItsExecution) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model = random_model(seed);
    const auto plan = LoadPlan::make(model.manifest, model.plan, model.tensors).value();
    std::vector<std::vector<std::byte>> executed;
    std::vector<std::vector<std::byte>> copied;
    for (const LoadTensor& tensor : plan.tensors()) {
      executed.emplace_back(tensor.shard.bytes());
      copied.emplace_back(tensor.shard.bytes());
    }
    CopyScratch scratch;
    for (std::size_t i = 0; i < plan.groups().size(); ++i) {
      const CopyGroup& group = plan.groups()[i];
      const auto bucket = plan.bucket_of(model.arena, group.bucket);
      const LoadTensor& tensor = plan.tensors()[group.tensor];
      const SplitSum expected = plan.execute(group, bucket, executed[group.tensor], scratch);
      SplitSum sum;
      std::uint64_t at = group.begin;
      for (const GroupRows& piece : plan.rows(group)) {
        ASSERT_EQ(piece.to, at) << "rows are consecutive in the rank's tensor";
        ASSERT_GT(piece.bytes(), 0U);
        for (std::uint64_t row = 0; row < piece.rows; ++row) {
          const auto bytes = bucket.subspan(piece.from + row * piece.stride, piece.row_bytes);
          std::ranges::copy(bytes, copied[group.tensor].begin() + static_cast<std::ptrdiff_t>(at) +
                                       static_cast<std::ptrdiff_t>(row * piece.row_bytes));
          sum += split_sum(bytes, {.seed = tensor.seed,
                                   .position = piece.position + row * piece.stride,
                                   .tensor_bytes = tensor.shard.tensor_bytes()});
        }
        at += piece.bytes();
      }
      ASSERT_EQ(at, group.begin + group.bytes);
      EXPECT_EQ(sum, expected);
    }
    EXPECT_EQ(copied, executed);
  }
}

TEST(LoadPlan, AColumnRangeIsFewPiecesHoweverManyRowsItHas) {
  const Manifest manifest =
      Manifest::create({info("a.w", {3000, 1000}), info("b.experts", {4, 6, 8, 10})}).value();
  const auto buckets = BucketPlan::create(manifest, limits::kBucketBytesMin).value();
  const std::vector<EngineTensor> tensors = {
      wanted(manifest.tensor(0), {{.dim = 1, .begin = 8, .length = 104}}),
      wanted(manifest.tensor(1),
             {{.dim = 1, .begin = 1, .length = 3}, {.dim = 3, .begin = 2, .length = 4}})};
  ASSERT_EQ(manifest.tensor(0).name, "a.w");
  const auto plan = LoadPlan::make(manifest, buckets, tensors).value();
  ASSERT_GT(plan.groups().size(), 2U) << "a tensor lies in several buckets";
  for (const CopyGroup& group : plan.groups()) {
    const auto rows = plan.rows(group);
    if (group.tensor == 0)
      EXPECT_LE(rows.size(), 3U);  // the part of a row at each end, and all between
    else
      EXPECT_EQ(rows.size(), 4U);  // of an expert 24 rows, 20 bytes apart
    for (const GroupRows& piece : rows)
      EXPECT_EQ(piece.stride, piece.rows == 1 ? 0 : (group.tensor == 0 ? 2000U : 20U));
  }
}

TEST(LoadPlan, ASkippedGroupIsAHoleThatIsNamed) {
  const RandomModel model = random_model(3);
  const auto plan = LoadPlan::make(model.manifest, model.plan, model.tensors).value();
  ASSERT_GE(plan.groups().size(), 2U);
  LoadCoverage coverage(plan);
  for (std::size_t i = 0; i + 1 < plan.groups().size(); ++i) {
    coverage.mark(i);
    coverage.mark(i);  // a repetition does not count twice
  }
  EXPECT_FALSE(coverage.complete());
  const auto missing = coverage.check();
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message(), HasSubstr("1 of"));
}

TEST(LoadPlan, AnyChangedByteChangesItsSum) {
  RandomModel model = random_model(5);
  const auto plan = LoadPlan::make(model.manifest, model.plan, model.tensors).value();
  std::mt19937_64 random(9);
  for (int i = 0; i < 200; ++i) {
    const CopyGroup& group = plan.groups()[random() % plan.groups().size()];
    const LoadTensor& tensor = plan.tensors()[group.tensor];
    const auto bucket = plan.bucket_of(model.arena, group.bucket);
    const SplitSum before = plan.sum(group, bucket);
    const auto at =
        tensor.arena_offset + tensor.shard.run_at(group.begin + random() % group.bytes).offset;
    model.arena[at] ^= std::byte{0x10};
    EXPECT_NE(plan.sum(group, bucket), before);
    model.arena[at] ^= std::byte{0x10};
    EXPECT_EQ(plan.sum(group, bucket), before);
  }
}

TEST(Shard, ColumnRangesOfHugeMatricesStaySmall) {
  const std::vector<std::uint64_t> shape{1U << 20U, 4, 4096};
  const std::vector<DimRange> ranges{{.dim = 2, .begin = 1024, .length = 1024}};
  const auto shard = Shard::make(16, shape, ranges).value();
  EXPECT_EQ(shard.run_count(), 4U << 20U);
  EXPECT_EQ(shard.run_bytes(), 2048U);
  EXPECT_EQ(shard.run_at(2048 * 5 + 7).offset, 5U * 8192 + 2048 + 7);
  EXPECT_EQ(shard.run_at(2048 * 5 + 7).bytes, 2041U);
  EXPECT_EQ(shard.bytes_before(8192), 2048U);
  EXPECT_EQ(shard.bytes_before(shard.tensor_bytes()), shard.bytes());
}

TEST(Shard, CutsInsideAByteAreRefused) {
  const std::vector<std::uint64_t> shape{4, 6};
  const auto odd =
      Shard::make(4, shape, std::vector<DimRange>{{.dim = 1, .begin = 1, .length = 2}});
  ASSERT_FALSE(odd);
  EXPECT_THAT(odd.error().message(), HasSubstr("inside a byte"));
  EXPECT_EQ(
      Shard::make(4, shape, std::vector<DimRange>{{.dim = 1, .begin = 2, .length = 2}})->bytes(),
      4U);
  EXPECT_EQ(
      Shard::make(4, shape, std::vector<DimRange>{{.dim = 0, .begin = 1, .length = 2}})->bytes(),
      6U);
}

TEST(LayoutCheck, NamesEachProblemAndTheNearestName) {
  const auto q = info("model.layers.0.self_attn.q_proj.weight", {8, 8});
  const auto k = info("model.layers.0.self_attn.k_proj.weight", {8, 4});
  const auto v = info("model.layers.0.self_attn.v_proj.weight", {8, 4});
  const auto norm = info("model.norm.weight", {8});
  const auto manifest = Manifest::create({q, k, v, norm}).value();
  auto misspelt = wanted(q);
  misspelt.name = "model.layers.0.self_attn.q_prj.weight";
  auto other_dtype = wanted(k);
  other_dtype.dtype = DType::kF32;
  auto other_shape = wanted(v);
  other_shape.shape = {4, 8};
  const auto bad_range = wanted(norm, {{.dim = 0, .begin = 4, .length = 8}});
  const std::vector<EngineTensor> tensors{misspelt,  other_dtype, other_shape,
                                          bad_range, wanted(q),   wanted(q)};
  const auto problems = check_layout(manifest, tensors);
  ASSERT_EQ(problems.size(), 5U);
  EXPECT_EQ(problems[0].kind, ProblemKind::kMissing);
  EXPECT_EQ(problems[0].nearest, "") << "the engine takes each published name as it is";
  EXPECT_EQ(problems[0].expected, "BF16 [8, 8]");
  EXPECT_EQ(problems[0].found, "");
  EXPECT_EQ(problems[1].kind, ProblemKind::kDtype);
  EXPECT_THAT(problems[1].detail, HasSubstr("expects F32, but the published tensor has BF16"));
  EXPECT_EQ(problems[1].expected, "F32 [8, 4]");
  EXPECT_EQ(problems[1].found, "BF16 [8, 4]");
  EXPECT_EQ(problems[2].kind, ProblemKind::kShape);
  EXPECT_THAT(problems[2].detail, HasSubstr("expects [4, 8], but the published tensor has [8, 4]"));
  EXPECT_EQ(problems[2].expected, "BF16 [4, 8]");
  EXPECT_EQ(problems[2].found, "BF16 [8, 4]");
  EXPECT_EQ(problems[3].kind, ProblemKind::kRange);
  EXPECT_EQ(problems[4].kind, ProblemKind::kOther);
  for (const auto& tensor : {misspelt, other_dtype, other_shape, bad_range})
    EXPECT_FALSE(LoadPlan::make(manifest,
                                BucketPlan::create(manifest, limits::kBucketBytesMin).value(),
                                std::vector<EngineTensor>{tensor}))
        << tensor.name;
}

TEST(LayoutCheck, ANameWithAnotherPrefixIsNearIfNoneIsNearer) {
  const auto nearest = [](std::string_view name, std::vector<std::string_view> candidates) {
    return nearest_name(name, candidates);
  };
  EXPECT_EQ(nearest("a", {"model.b", "model.a"}), "model.a");
  EXPECT_EQ(nearest("module.model.a", {"b", "a"}), "a");
  EXPECT_EQ(nearest("weight", {"language_model.weight", "weigth"}), "weigth");
  EXPECT_EQ(nearest("a", {"modela", "long.name", ""}), "");
}

TEST(LayoutCheck, TheNearestNameIsNoneThatBothSidesHave) {
  const auto one = info("layers.1.mlp.weight", {8});
  const auto two = info("layers.2.mlp.weight", {8});
  const auto other = info("layers.3.mlp.fc.weight", {8});
  const auto manifest = Manifest::create({one, two, other}).value();
  auto three = wanted(other);
  three.name = "layers.3.mlp.weight";  // one letter from the first two
  const std::vector<EngineTensor> tensors{wanted(one), three, wanted(two)};
  const auto problems = check_layout(manifest, tensors);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].tensor, three.name);
  EXPECT_EQ(problems[0].nearest, other.name);
  const auto uncovered =
      check_replica_coverage(manifest, std::vector<std::span<const EngineTensor>>{tensors});
  ASSERT_EQ(uncovered.size(), 1U);
  EXPECT_EQ(uncovered[0].tensor, other.name);
  EXPECT_EQ(uncovered[0].nearest, three.name);
  // A name of which nothing is left is near to nothing.
  const std::vector<EngineTensor> all{wanted(one), three, wanted(two), wanted(other)};
  EXPECT_EQ(check_layout(manifest, all).at(0).nearest, "");
}

TEST(LayoutCheck, CoverageIsTheUnionOfTheRanks) {
  const auto a = info("a", {8, 6});
  const auto b = info("b", {6});
  const auto manifest = Manifest::create({a, b}).value();
  const std::vector<EngineTensor> left{wanted(a, {{.dim = 1, .begin = 0, .length = 3}}), wanted(b)};
  const std::vector<EngineTensor> right{wanted(a, {{.dim = 1, .begin = 3, .length = 3}}),
                                        wanted(b)};
  const std::vector<EngineTensor> short_right{wanted(a, {{.dim = 1, .begin = 3, .length = 2}})};
  const std::vector<EngineTensor> quarter{
      wanted(a, {{.dim = 0, .begin = 0, .length = 7}, {.dim = 1, .begin = 5, .length = 1}})};
  using Ranks = std::vector<std::span<const EngineTensor>>;
  EXPECT_TRUE(check_replica_coverage(manifest, Ranks{left, right}).empty());
  const auto half = check_replica_coverage(manifest, Ranks{left});
  ASSERT_EQ(half.size(), 1U);
  EXPECT_EQ(half[0].kind, ProblemKind::kRange);
  EXPECT_THAT(half[0].detail, HasSubstr("[0, 8)[3, 6)"));
  const auto corner = check_replica_coverage(manifest, Ranks{left, short_right, quarter});
  ASSERT_EQ(corner.size(), 1U);
  EXPECT_THAT(corner[0].detail, HasSubstr("[7, 8)[5, 6)"));
  const auto extra = check_replica_coverage(manifest, Ranks{short_right, quarter});
  EXPECT_TRUE(std::ranges::any_of(
      extra, [](const auto& p) { return p.kind == ProblemKind::kExtra && p.tensor == "b"; }));
}

}  // namespace
}  // namespace wsync::reload
