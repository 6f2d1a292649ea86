// Versions that are written in place: every way to put a tensor gives the bytes and the digest that
// a copy of the same weights would have.
#include "trainer_side/publish/draft.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/cast.h"
#include "tests/support/bytes.h"

namespace wsync::publish {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> random_bytes(std::uint64_t seed, std::uint64_t size) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  fill_random(random, bytes);
  return bytes;
}

// Floats of many magnitudes, all finite.
std::vector<float> random_floats(std::uint64_t seed, std::uint64_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 30) - 20);
  return values;
}

struct Part {
  std::vector<std::byte> bytes;
  std::optional<ShardRange> range;
};

// The part of a dense tensor.
Part cut(const std::vector<std::byte>& whole, const std::vector<std::uint64_t>& shape,
         std::uint64_t element, const ShardRange& range) {
  Part part{.bytes = {}, .range = range};
  std::uint64_t inner = element;  // bytes of one index of the dimension
  for (std::size_t d = range.dim + 1; d < shape.size(); ++d) inner *= shape[d];
  for (std::uint64_t at = 0; at < whole.size(); at += shape[range.dim] * inner) {
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(at + range.begin * inner);
    part.bytes.insert(part.bytes.end(), first,
                      first + static_cast<std::ptrdiff_t>(range.length * inner));
  }
  return part;
}

class DraftTest : public ::testing::Test {
 protected:
  [[nodiscard]] static SnapshotRequest request(std::uint64_t step = 1) {
    return {.version = {.epoch = 1, .step = step}, .bucket_bytes = limits::kBucketBytesMin};
  }
  std::shared_ptr<Draft> begin(const std::vector<TensorInfo>& infos, unsigned threads = 2) {
    std::vector<DraftTensor> tensors;
    for (const TensorInfo& info : infos) tensors.push_back({.info = info, .range = {}});
    auto draft = Draft::begin(snapshotter_, std::move(tensors), request(), threads);
    EXPECT_TRUE(draft.has_value()) << draft.error().message();
    return *draft;
  }
  static DraftPart part_of(const TensorInfo& info, const Part& part) {
    return {.name = info.name,
            .dtype = info.dtype,
            .shape = info.shape,
            .range = part.range,
            .data = part.bytes.data()};
  }
  // Publishes the draft, and the same weights by a copy. Both must be equal.
  void expect_equal(const std::shared_ptr<Draft>& draft,
                    const std::vector<std::pair<TensorInfo, std::vector<std::byte>>>& weights) {
    const auto sealed = draft->seal();
    ASSERT_TRUE(sealed.has_value()) << sealed.error().message();
    const auto written = snapshotter_->take(*draft->source(), request(7));
    ASSERT_TRUE(written.has_value()) << written.error().message();
    std::vector<MemoryTensor> given;
    for (const auto& [info, bytes] : weights)
      given.push_back({.info = info, .bytes = std::span<const std::byte>(bytes)});
    auto source = MemorySource::create(std::move(given)).value();
    const auto copied = snapshotter_->take(source, request(8));
    ASSERT_TRUE(copied.has_value()) << copied.error().message();
    EXPECT_EQ((*written)->version(), (Version{.epoch = 1, .step = 7}));
    EXPECT_EQ((*written)->digests(), (*copied)->digests());
    for (const auto& [info, bytes] : weights) {
      const auto index = *(*written)->manifest()->find(info.name);
      const auto pieces = (*written)->plan()->tensor_pieces(index);
      if (pieces.empty()) continue;
      const auto found = (*written)->data().subspan(
          (*written)->plan()->arena_offset(pieces.front()), bytes.size());
      EXPECT_TRUE(same_bytes(found, bytes)) << info.name;
    }
    const auto view = ArenaView::open((*written)->share()->get());
    ASSERT_TRUE(view.has_value());
    EXPECT_TRUE(view->is_protected());
    EXPECT_EQ(digests_of_leaves(*(*written)->manifest(), view->leaf_sums()).value(),
              (*written)->digests());
  }

  std::shared_ptr<Snapshotter> snapshotter_ =
      std::make_shared<Snapshotter>(SnapshotterOptions{.arenas = 3, .threads = 2});
};

// Whole tensors, rows, columns, by pointer, in any order, by several threads.
TEST_F(DraftTest, HasTheBytesAndTheDigestOfACopy) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::vector<TensorInfo> infos = {
        {"a.big", DType::kBF16, {1500 + random() % 200, 1024}},
        {"b.odd", DType::kF32, {77, 1 + random() % 40, 13}},
        {"c.bytes", DType::kU8, {limits::kMiB + random() % 9}},
        {"d.none", DType::kF32, {0, 4}},
        {"e.scalar", DType::kF64, {}},
        {"f.fp4", DType::kF4, {16, 32}},
        {"g.columns", DType::kF16, {40, 900}},
    };
    std::vector<std::pair<TensorInfo, std::vector<std::byte>>> weights;
    std::vector<std::pair<std::size_t, Part>> parts;
    const auto draft = begin(infos, 1 + static_cast<unsigned>(random() % 3));
    for (std::size_t t = 0; t < infos.size(); ++t) {
      const TensorInfo& info = infos[t];
      weights.emplace_back(info, random_bytes(seed * 100 + t, *info.byte_size()));
      const auto& bytes = weights.back().second;
      const std::uint64_t way = random() % 3;
      const bool may_be_cut = !info.shape.empty() && !bytes.empty() && dtype_bits(info.dtype) >= 8;
      if (way == 0 && !bytes.empty()) {
        const auto memory = draft->pointer(info.name);
        ASSERT_TRUE(memory.has_value()) << memory.error().message();
        std::memcpy(memory->data(), bytes.data(), bytes.size());
      } else if (way == 1 || !may_be_cut) {
        parts.emplace_back(t, Part{.bytes = bytes, .range = {}});
      } else {
        const auto dim = static_cast<std::uint32_t>(random() % info.shape.size());
        for (std::uint64_t at = 0; at < info.shape[dim];) {
          const std::uint64_t n =
              std::min(info.shape[dim] - at, 1 + random() % (info.shape[dim] / 2 + 1));
          parts.emplace_back(t, cut(bytes, info.shape, dtype_bits(info.dtype) / 8,
                                    {.dim = dim, .begin = at, .length = n}));
          at += n;
        }
      }
    }
    std::ranges::shuffle(parts, random);
    {
      std::atomic<std::size_t> next = 0;
      const auto put_all = [&] {
        for (std::size_t i = next++; i < parts.size(); i = next++) {
          const auto put = draft->put(part_of(infos[parts[i].first], parts[i].second));
          EXPECT_TRUE(put.has_value()) << put.error().message();
        }
      };
      const std::jthread other(put_all);
      put_all();
    }
    expect_equal(draft, weights);
  }
}

// Whole tensors, rows and columns in one call, with tensors that are larger than a leaf.
TEST_F(DraftTest, SeveralPartsAtOnceAreAsPutOneByOne) {
  const std::vector<TensorInfo> infos = {
      {"a.big", DType::kBF16, {1500, 1024}}, {"b.small", DType::kF32, {7, 13}},
      {"c.none", DType::kF32, {0, 4}},       {"d.fp4", DType::kF4, {16, 32}},
      {"e.columns", DType::kF16, {40, 900}}, {"f.converted", DType::kBF16, {700, 1000}},
  };
  std::vector<std::pair<TensorInfo, std::vector<std::byte>>> weights;
  std::vector<Part> kept;
  std::vector<DraftPart> parts;
  kept.reserve(2 * infos.size());
  const auto masters = random_floats(3, 700 * 1000);
  for (std::size_t t = 0; t < infos.size(); ++t) {
    const TensorInfo& info = infos[t];
    weights.emplace_back(info, random_bytes(t, *info.byte_size()));
    auto& bytes = weights.back().second;
    if (info.name == "f.converted") {
      cast(DType::kF32, std::as_bytes(std::span(masters)), info.dtype, bytes, 1.0F);
      parts.push_back({.name = info.name,
                       .dtype = DType::kF32,
                       .shape = info.shape,
                       .data = reinterpret_cast<const std::byte*>(masters.data())});
    } else if (info.name == "a.big" || info.name == "e.columns") {
      const std::uint32_t dim = info.name == "a.big" ? 0 : 1;
      for (const auto& [begin, length] :
           {std::pair<std::uint64_t, std::uint64_t>{0, 333}, {333, info.shape[dim] - 333}}) {
        kept.push_back(cut(bytes, info.shape, 2, {.dim = dim, .begin = begin, .length = length}));
        parts.push_back(part_of(info, kept.back()));
      }
    } else {
      kept.push_back({.bytes = bytes, .range = {}});
      parts.push_back(part_of(info, kept.back()));
    }
  }
  for (const unsigned threads : {1U, 3U}) {
    const auto draft = begin(infos, threads);
    std::size_t failed = 99;
    const auto put = draft->put_all(parts, failed);
    ASSERT_TRUE(put.has_value()) << put.error().message();
    expect_equal(draft, weights);
  }
}

TEST_F(DraftTest, AfterAnErrorNoneOfSeveralPartsCountsAsPut) {
  const std::vector<TensorInfo> infos = {{"a", DType::kU8, {4}}, {"b", DType::kU8, {4}}};
  const auto draft = begin(infos);
  const auto bytes = random_bytes(1, 4);
  const DraftPart a{.name = "a", .dtype = DType::kU8, .shape = {4}, .data = bytes.data()};
  DraftPart b{.name = "b", .dtype = DType::kU8, .shape = {4}, .data = bytes.data()};
  const auto why = [&](const DraftPart& second) {
    std::size_t failed = 99;
    const auto put = draft->put_all(std::vector<DraftPart>{a, second}, failed);
    EXPECT_FALSE(put.has_value());
    EXPECT_EQ(failed, 1U);
    return put.has_value() ? std::string() : put.error().message();
  };
  EXPECT_THAT(why(a), HasSubstr("tensor a: [0, 4) of dimension 0 was put already"));
  b.shape = {5};
  EXPECT_THAT(why(b), HasSubstr("tensor b: its shape is"));
  b.shape = {4};
  b.scales = ComputedScales{};
  EXPECT_THAT(why(b), HasSubstr("tensor b: a part with scales is put alone"));
  b.scales = {};
  std::size_t failed = 99;
  const auto put = draft->put_all(std::vector<DraftPart>{b, a}, failed);
  EXPECT_TRUE(put.has_value()) << put.error().message();
  expect_equal(draft, {{infos[0], bytes}, {infos[1], bytes}});
}

TEST_F(DraftTest, PartsAreConvertedWhileTheyArePut) {
  const std::vector<TensorInfo> infos = {{"half", DType::kBF16, {700, 1000}},
                                         {"byte", DType::kF8E4M3, {300, 70}},
                                         {"wide", DType::kF32, {50, 3}}};
  const auto draft = begin(infos);
  std::vector<std::pair<TensorInfo, std::vector<std::byte>>> weights;
  const std::vector<float> scale = {0.125F};
  for (const TensorInfo& info : infos) {
    const std::uint64_t count = info.shape[0] * info.shape[1];
    const auto masters = random_floats(count, count);
    std::vector<std::byte> expected(*info.byte_size());
    const bool is_scaled = info.name == "byte";
    cast(DType::kF32, std::as_bytes(std::span(masters)), info.dtype, expected,
         is_scaled ? scale[0] : 1.0F);
    DraftPart part{.name = info.name, .dtype = DType::kF32, .shape = info.shape};
    if (is_scaled) part.scales = GivenScales{scale};
    // Two parts of rows: the second begins inside a leaf, and at no word for some.
    for (const auto& [begin, length] :
         {std::pair(std::uint64_t{0}, info.shape[0] / 3),
          std::pair(info.shape[0] / 3, info.shape[0] - info.shape[0] / 3)}) {
      part.range = ShardRange{.dim = 0, .begin = begin, .length = length};
      part.data = reinterpret_cast<const std::byte*>(masters.data() + begin * info.shape[1]);
      const auto put = draft->put(part);
      ASSERT_TRUE(put.has_value()) << put.error().message();
    }
    weights.emplace_back(info, std::move(expected));
  }
  expect_equal(draft, weights);
}

// Against plain loops over the definition.
TEST_F(DraftTest, EachBlockIsDividedByItsOwnScale) {
  for (const auto& shape :
       {std::vector<std::uint64_t>{300, 260}, {128, 128}, {1, 1}, {3, 130, 200}}) {
    const TensorInfo info{"layers.0.w.weight", DType::kF8E4M3, shape};
    const TensorInfo scales = scale_info(info).value();
    EXPECT_EQ(scales.name, "layers.0.w.weight_scale_inv");
    const std::size_t last = shape.size() - 1;
    const std::uint64_t rows = shape[last - 1];
    const std::uint64_t columns = shape[last];
    const std::uint64_t matrices = shape.size() == 3 ? shape[0] : 1;
    auto masters = random_floats(rows, matrices * rows * columns);
    std::fill_n(masters.begin(), std::min<std::size_t>(masters.size(), 5), 0.0F);
    std::vector<std::byte> expected(masters.size());
    std::vector<float> expected_scales(*scales.byte_size() / sizeof(float));
    const std::uint64_t column_blocks = (columns + 127) / 128;
    const std::uint64_t row_blocks = (rows + 127) / 128;
    const auto block_of = [&](std::size_t i) {
      const std::uint64_t row = i / columns % rows;
      return (i / columns / rows * row_blocks + row / 128) * column_blocks + i % columns / 128;
    };
    for (std::size_t i = 0; i < masters.size(); ++i)
      expected_scales[block_of(i)] =
          std::max(expected_scales[block_of(i)], std::fabs(masters[i]) / kF8E4M3Max);
    for (float& scale : expected_scales)
      if (scale == 0) scale = 1;
    for (std::size_t i = 0; i < masters.size(); ++i)
      cast(DType::kF32, std::as_bytes(std::span(masters).subspan(i, 1)), DType::kF8E4M3,
           std::span(expected).subspan(i, 1), expected_scales[block_of(i)]);
    std::vector<std::byte> scale_bytes(*scales.byte_size());
    std::memcpy(scale_bytes.data(), expected_scales.data(), scale_bytes.size());

    const auto draft = begin({info, scales});
    DraftPart part{.name = info.name,
                   .dtype = DType::kF32,
                   .shape = shape,
                   .data = reinterpret_cast<const std::byte*>(masters.data()),
                   .scales = ComputedScales{}};
    if (shape.size() == 2 && rows > 128) {  // in two parts, at a block
      part.range = ShardRange{.dim = 0, .begin = 0, .length = 128};
      ASSERT_TRUE(draft->put(part).has_value());
      part.range = ShardRange{.dim = 0, .begin = 128, .length = rows - 128};
      part.data = reinterpret_cast<const std::byte*>(masters.data() + 128 * columns);
    }
    const auto put = draft->put(part);
    ASSERT_TRUE(put.has_value()) << put.error().message();
    expect_equal(draft, {{info, expected}, {scales, scale_bytes}});

    // With the same scales given, the tensor is the same.
    const auto given = begin({info});
    part.range = {};
    part.data = reinterpret_cast<const std::byte*>(masters.data());
    part.scales = GivenScales{expected_scales};
    ASSERT_TRUE(given->put(part).has_value());
    expect_equal(given, {{info, expected}});
  }
}

TEST_F(DraftTest, AColumnShardHasTheScalesOfItsBlocks) {
  const TensorInfo info{"w", DType::kF8E4M3, {200, 512}};
  const TensorInfo scales = scale_info(info).value();
  const ShardRange columns{.dim = 1, .begin = 256, .length = 256};
  const auto draft =
      Draft::begin(snapshotter_,
                   {{.info = info, .range = columns},
                    {.info = scales, .range = ShardRange{.dim = 1, .begin = 2, .length = 2}}},
                   request(), 2)
          .value();
  const auto masters = random_floats(3, 200 * 256);
  const auto put = draft->put({.name = "w",
                               .dtype = DType::kF32,
                               .shape = info.shape,
                               .data = reinterpret_cast<const std::byte*>(masters.data()),
                               .scales = ComputedScales{}});
  ASSERT_TRUE(put.has_value()) << put.error().message();
  ASSERT_TRUE(draft->seal().has_value());
  const auto tensors = draft->rank_tensors();
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].range, columns);
  EXPECT_EQ(std::get<0>(tensors[0].bytes).size(), masters.size());
  float largest = 0;
  for (std::size_t row = 0; row < 128; ++row)
    for (std::size_t column = 0; column < 128; ++column)
      largest = std::max(largest, std::fabs(masters[row * 256 + column]));
  float found = 0;
  std::memcpy(&found, std::get<0>(tensors[1].bytes).data(), sizeof found);
  EXPECT_EQ(found, largest / kF8E4M3Max);
}

TEST_F(DraftTest, WhatDoesNotFitIsRefusedByName) {
  const TensorInfo info{"w", DType::kBF16, {20, 10}};
  const TensorInfo byte{"q", DType::kF8E4M3, {300, 200}};
  const auto draft = begin({info, byte});
  const std::vector<std::byte> bytes(300 * 200 * 4);
  const auto why = [&](DraftPart part) {
    if (part.shape.empty()) part.shape = part.name == "q" ? byte.shape : info.shape;
    part.data = bytes.data();
    const auto put = draft->put(part);
    return put ? std::string("put") : put.error().message();
  };
  const auto range = [](std::uint32_t dim, std::uint64_t begin, std::uint64_t length) {
    return ShardRange{.dim = dim, .begin = begin, .length = length};
  };
  EXPECT_EQ(why({.name = "x"}), "tensor x: the version has no tensor of this name");
  EXPECT_EQ(why({.name = "w", .shape = {10, 20}}),
            "tensor w: its shape is [10, 20], but [20, 10] was described");
  EXPECT_EQ(why({.name = "w", .dtype = DType::kI32}), "tensor w: I32 cannot be converted to BF16");
  EXPECT_THAT(why({.name = "w", .range = range(0, 15, 6)}),
              HasSubstr("[15, 21) of dimension 0 lies outside of its shape [20, 10]"));
  EXPECT_THAT(why({.name = "w", .range = range(2, 0, 1)}), HasSubstr("dimension 2"));
  EXPECT_THAT(why({.name = "w", .scales = ComputedScales{}}),
              HasSubstr("scales belong to a conversion to F8_E4M3, not from BF16 to BF16"));
  const std::vector<float> scales = {1, 2, 3};
  EXPECT_THAT(why({.name = "q", .dtype = DType::kF32, .scales = GivenScales{scales}}),
              HasSubstr("3 scales are given, expected 1, or 6 for blocks of 128 x 128"));
  EXPECT_THAT(why({.name = "q",
                   .dtype = DType::kF32,
                   .range = range(0, 100, 200),
                   .scales = ComputedScales{}}),
              HasSubstr("[100, 300) of dimension 0 cuts a block of 128 that has one scale"));
  EXPECT_THAT(why({.name = "q", .dtype = DType::kF32, .scales = ComputedScales{}}),
              HasSubstr("the scales of tensor q: tensor q_scale_inv: the version has no tensor"));
  const std::vector<float> zero = {0};
  EXPECT_THAT(why({.name = "q", .dtype = DType::kF32, .scales = GivenScales{zero}}),
              HasSubstr("tensor q: its scale is 0, expected a positive number"));

  EXPECT_EQ(why({.name = "w", .range = range(0, 0, 12)}), "put");
  EXPECT_EQ(why({.name = "w", .range = range(0, 11, 2)}),
            "tensor w: [0, 12) of dimension 0 was put already");
  EXPECT_THAT(why({.name = "w", .range = range(1, 0, 5)}),
              HasSubstr("a part of dimension 1 was put after one of dimension 0"));
  EXPECT_THAT(why({.name = "w"}), HasSubstr("was put already"));
  EXPECT_THAT(draft->pointer("w").error().message(), HasSubstr("a part of it was put"));
  EXPECT_THAT(draft->pointer("y").error().message(), HasSubstr("no tensor of this name"));
  EXPECT_TRUE(draft->pointer("q").has_value());
  EXPECT_THAT(why({.name = "q", .dtype = DType::kF8E4M3}),
              HasSubstr("it is written through its pointer"));

  EXPECT_EQ(draft->seal().error().message(),
            "1 of 2 tensors were not put completely: w (12 of 20 along dimension 0)");
  EXPECT_EQ(why({.name = "w", .range = range(0, 12, 8)}), "put") << "the draft is as before";
  EXPECT_TRUE(draft->seal().has_value());
  EXPECT_EQ(why({.name = "w"}), "tensor w: the version has been ended");
  EXPECT_THAT(draft->pointer("q").error().message(), HasSubstr("has been ended"));
  EXPECT_THAT(draft->seal().error().message(), HasSubstr("ended already"));
}

TEST_F(DraftTest, AValueThatIsNoNumberNamesItsBlockAndNothingCountsAsPut) {
  const TensorInfo info{"w", DType::kF8E4M3, {256, 256}};
  const auto draft = begin({info, scale_info(info).value()});
  auto masters = random_floats(3, 256 * 256);
  masters[200 * 256 + 5] = INFINITY;
  masters[250 * 256 + 255] = NAN;
  DraftPart part{.name = "w",
                 .dtype = DType::kF32,
                 .shape = info.shape,
                 .data = reinterpret_cast<const std::byte*>(masters.data()),
                 .scales = ComputedScales{}};
  EXPECT_EQ(draft->put(part).error().message(),
            "tensor w: block 0 of row 1 of blocks has a value that is not finite");
  masters[200 * 256 + 5] = 1;
  EXPECT_THAT(draft->put(part).error().message(), HasSubstr("block 1 of row 1"));
  EXPECT_THAT(draft->seal().error().message(), HasSubstr("2 of 2 tensors"));
  masters[250 * 256 + 255] = 1;
  EXPECT_TRUE(draft->put(part).has_value());
  EXPECT_TRUE(draft->seal().has_value());
}

TEST_F(DraftTest, ItsArenaIsNobodyElsesUntilItIsGivenUp) {
  snapshotter_ = std::make_shared<Snapshotter>(SnapshotterOptions{.arenas = 1});
  const TensorInfo info{"w", DType::kBF16, {2000, 1000}};
  auto draft = begin({info});
  const auto weights = random_bytes(1, *info.byte_size());
  auto source =
      MemorySource::create({{.info = info, .bytes = std::span<const std::byte>(weights)}}).value();
  const auto refused = snapshotter_->take(source, request());
  ASSERT_FALSE(refused.has_value()) << "a draft and a snapshot are written into one arena";
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  snapshotter_->release_unused();
  EXPECT_GT(snapshotter_->arena_bytes(), 0U);
  const auto second = Draft::begin(snapshotter_, {{.info = info, .range = {}}}, request(), 1);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  draft.reset();
  EXPECT_TRUE(snapshotter_->take(source, request()).has_value());
}

// Its version may be sent while the rest is summed, unless all sums are known.
TEST_F(DraftTest, ReportsItsBucketsWhileItIsSummed) {
  for (const bool is_put : {false, true}) {
    const TensorInfo info{"w", DType::kU8, {5 * limits::kMiB + 7}};
    const auto draft = begin({info});
    const auto weights = random_bytes(1, *info.byte_size());
    if (is_put)
      ASSERT_TRUE(draft->put(part_of(info, {.bytes = weights, .range = {}})).has_value());
    else
      std::ranges::copy(weights, draft->pointer("w").value().begin());
    ASSERT_TRUE(draft->seal().has_value());
    SnapshotRequest wanted = request(is_put ? 2 : 1);
    std::mutex mutex;
    std::optional<CopiedSnapshot> copied;
    std::map<std::uint64_t, Digest> found;
    wanted.on_copy = [&](const CopiedSnapshot& snapshot) { copied = snapshot; };
    wanted.on_bucket = [&](std::uint64_t bucket, const std::vector<WordSum>& sums) {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(found.emplace(bucket, bucket_digest(sums)).second) << "once";
    };
    const auto taken = snapshotter_->take(*draft->source(), wanted);
    ASSERT_TRUE(taken.has_value()) << taken.error().message();
    EXPECT_EQ(copied.has_value(), !is_put);
    if (!copied) continue;
    EXPECT_EQ(copied->data.data(), (*taken)->data().data());
    ASSERT_EQ(found.size(), (*taken)->plan()->bucket_count());
    for (const auto& [bucket, digest] : found)
      EXPECT_EQ(digest, bucket_digest(std::span((*taken)->digests().leaves)
                                          .subspan((*taken)->leaves()->first(bucket),
                                                   (*taken)->leaves()->bucket(bucket).size())));
  }
}

TEST_F(DraftTest, HasOneSource) {
  const TensorInfo info{"w", DType::kU8, {100}};
  const auto draft = begin({info});
  ASSERT_TRUE(draft->pointer("w").has_value());
  ASSERT_TRUE(draft->seal().has_value());
  EXPECT_TRUE(snapshotter_->take(*draft->source(), request()).has_value());
  const auto again = snapshotter_->take(*draft->source(), request(2));
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace wsync::publish
