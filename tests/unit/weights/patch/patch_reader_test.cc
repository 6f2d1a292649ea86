// The strict readers of patches: each rule has an input that breaks it and nothing else, and what
// is accepted is written again alike.
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/patch_file.h"
#include "tests/unit/weights/patch/patch_models.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync::patch {
namespace {

using test::block_bytes;
using test::changed;
using test::Content;
using test::every_dtype;
using test::make_patch;
using test::random_content;
using testing::HasSubstr;

// Small: two tensors of bf16, of which the first has three blocks, the second one.
Manifest two_tensors() {
  return Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {kBlockBytes + 100}},
                           {.name = "b", .dtype = DType::kBF16, .shape = {1000}}})
      .value();
}

void put_u32(Bytes& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(&bytes[at], &value, sizeof value);
}
void put_u64(Bytes& bytes, std::size_t at, std::uint64_t value) {
  std::memcpy(&bytes[at], &value, sizeof value);
}
std::uint64_t get_u64(const Bytes& bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, &bytes[at], sizeof value);
  return value;
}

// Puts the digest at the end of an index right.
void seal(Bytes& index) {
  put_u64(index, 8, index.size());
  const Digest digest = digest_of(std::span(index).first(index.size() - 16));
  put_u64(index, index.size() - 16, digest.low);
  put_u64(index, index.size() - 8, digest.high);
}

constexpr std::size_t kBase = 32;
constexpr std::size_t kTarget = 48;
constexpr std::size_t kModelBytes = 64;
constexpr std::size_t kBlocks = 72;
constexpr std::size_t kTensorCountAt = 96;
constexpr std::size_t kBucketCountAt = 100;
constexpr std::size_t kBucket = kIndexHeadBytes;  // the entry of the first bucket

struct IndexRule {
  const char* name;
  std::function<void(Bytes&)> spoil;
  const char* says;
  bool sealed = true;
};

class PatchIndexRules : public testing::TestWithParam<IndexRule> {
 protected:
  const Manifest manifest_ = two_tensors();
  const Layout layout_{manifest_};
  std::mt19937_64 random_{1};
  const Content base_ = random_content(manifest_, random_);
  const Patch patch_ = make_patch(layout_, base_, changed(layout_, base_, 0.01, random_));
};

TEST_P(PatchIndexRules, AreEnforced) {
  ASSERT_TRUE(Index::parse(patch_.index));
  ASSERT_EQ(patch_.buckets.size(), 1U);
  Bytes index = patch_.index;
  GetParam().spoil(index);
  if (GetParam().sealed) seal(index);
  const auto parsed = Index::parse(index);
  const auto checked = parsed ? parsed->check(layout_) : Result<>(tl::unexpected(parsed.error()));
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message(), HasSubstr(GetParam().says));
}

void swap_digests(Bytes& index) {
  for (std::size_t i = 0; i < 16; ++i) index[kTarget + i] = index[kBase + i];
}

INSTANTIATE_TEST_SUITE_P(
    Rules, PatchIndexRules,
    testing::ValuesIn(std::vector<IndexRule>{
        {"magic", [](Bytes& i) { i[0] ^= std::byte{1}; }, "not a patch of wsync"},
        {"version", [](Bytes& i) { put_u32(i, 4, 2); },
         "version 2 of the format; this wsync reads"},
        {"short", [](Bytes& i) { i.resize(50); }, "it ends after 50 bytes", false},
        {"empty", [](Bytes& i) { i.clear(); }, "it ends after 0 bytes", false},
        {"length_too_small", [](Bytes& i) { put_u64(i, 8, 10); }, "its length is 10", false},
        {"length_too_large", [](Bytes& i) { put_u64(i, 8, ~0ULL); }, "its length is 1844", false},
        {"truncated", [](Bytes& i) { i.pop_back(); }, "it says that it has", false},
        {"trailing", [](Bytes& i) { i.push_back({}); }, "it says that it has", false},
        {"damaged", [](Bytes& i) { i[70] ^= std::byte{1}; }, "index of the patch is damaged",
         false},
        {"equal_with_blocks", swap_digests, "it has blocks, but base and target are equal"},
        {"huge_model", [](Bytes& i) { put_u64(i, kModelBytes, 1ULL << 60U); }, "larger than any"},
        {"other_model", [](Bytes& i) { put_u64(i, kModelBytes, 1ULL << 30U); }, "another layout"},
        {"other_layout", [](Bytes& i) { i[16] ^= std::byte{1}; }, "another layout"},
        {"blocks", [](Bytes& i) { put_u64(i, kBlocks, 3); }, "it says that there are 3 blocks"},
        {"elements", [](Bytes& i) { put_u64(i, 80, 3); }, "3 elements"},
        {"body", [](Bytes& i) { put_u64(i, 88, 3); }, "and 3 bytes"},
        {"tensor_count", [](Bytes& i) { put_u32(i, kTensorCountAt, 1); }, "bytes are left over"},
        {"tensor_missing", [](Bytes& i) { put_u32(i, kTensorCountAt, 3); },
         "entry 2 of its tensors"},
        {"bucket_count", [](Bytes& i) { put_u32(i, kBucketCountAt, 9); }, "9 entries do not fit"},
        {"bucket_count_limit", [](Bytes& i) { put_u32(i, kBucketCountAt, ~0U); }, "at most"},
        {"bucket_empty", [](Bytes& i) { put_u32(i, kBucket + 16, 0); }, "number of bucket 0"},
        {"bucket_large", [](Bytes& i) { put_u64(i, kBucket, ~0ULL); }, "number of bucket 0"},
        {"bucket_directory", [](Bytes& i) { put_u32(i, kBucket + 20, ~0U); }, "number of bucket 0"},
        {"bucket_elements", [](Bytes& i) { put_u64(i, kBucket + 8, ~0ULL); }, "number of bucket 0"},
        {"few_elements", [](Bytes& i) { put_u64(i, kBucket + 8, 1); }, "number of bucket 0"},
        {"bucket_order", [](Bytes& i) { put_u32(i, kBucket + 24, 2); }, "not in ascending order"},
        {"one_block", [](Bytes& i) { put_u32(i, kBucket + 16, 1); }, "not in ascending order"},
        {"first_tensor", [](Bytes& i) { i[kBucket + 56] = std::byte{5}; },
         "not those of its tensors"},
        {"last_tensor", [](Bytes& i) { put_u32(i, kBucket + 32, 7); }, "not those of its tensors"},
        {"last_block", [](Bytes& i) { put_u32(i, kBucket + 36, 7); }, "which the model has not"},
        {"tensor_blocks", [](Bytes& i) { i[kBucket + 56 + 1] = std::byte{2}; }, "its buckets 4"},
        {"tensor_no_blocks", [](Bytes& i) { i[kBucket + 56 + 1] = {}; }, "entry 0 of its tensors"},
        {"too_many_blocks",
         [](Bytes& i) {
           i[kBucket + 56 + 1] = std::byte{2};
           i[kBucket + 56 + 3] = std::byte{2};
         },
         "tensor 1 with 2 blocks is not one of the model"},
    }),
    [](const auto& rule) { return std::string(rule.param.name); });

// ---- buckets ----

// The parts of a bucket with one block of tensor `a`, which are put together and sealed.
struct OneBlock {
  std::vector<std::uint64_t> entry;  // varints
  Bytes gaps;
  Bytes values;
  BlockPlace place;
  std::uint64_t elements = 3;
  std::size_t sum_bytes = kSumBytes;
  Bytes more_directory;
  Bytes more_payload;
};

OneBlock good_block() {
  return {.entry = {0, 1, 3, 3},
          .gaps = {std::byte{5}, std::byte{0}, std::byte{7}},
          .values = Bytes(6, std::byte{9}),
          .place = {.tensor = 0, .block = 1},
          .more_directory = {},
          .more_payload = {}};
}

Result<std::vector<BlockView>> parse_block(const Layout& layout, const OneBlock& block) {
  static Bytes bytes;  // the views point into it
  bytes.clear();
  for (const std::uint64_t number : block.entry) put_varint(bytes, number);
  bytes.insert(bytes.end(), block.sum_bytes, std::byte{1});
  bytes.insert(bytes.end(), block.more_directory.begin(), block.more_directory.end());
  const std::size_t directory = bytes.size();
  for (const Bytes* part : {&block.gaps, &block.values, &block.more_payload})
    bytes.insert(bytes.end(), part->begin(), part->end());
  const Link link{.layout = layout.manifest().layout_digest(),
                  .base = {.low = 1},
                  .target = {.low = 2},
                  .model_bytes = layout.manifest().total_bytes()};
  const Index index(link,
                    {{.bytes = bytes.size(),
                      .elements = block.elements,
                      .blocks = 1,
                      .directory_bytes = static_cast<std::uint32_t>(directory),
                      .first = block.place,
                      .last = block.place,
                      .digest = digest_of(bytes)}},
                    {{.tensor = block.place.tensor, .blocks = 1}});
  return parse_bucket(index, layout, 0, bytes);
}

struct BlockRule {
  const char* name;
  std::function<void(OneBlock&)> spoil;
  const char* says;
};

class PatchBlockRules : public testing::TestWithParam<BlockRule> {};

TEST_P(PatchBlockRules, AreEnforced) {
  const Manifest manifest = two_tensors();
  const Layout layout(manifest);
  OneBlock block = good_block();
  const auto good = parse_block(layout, block);
  ASSERT_TRUE(good) << good.error().message();
  GetParam().spoil(block);
  const auto parsed = parse_block(layout, block);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(parsed.error().message(), HasSubstr("bucket 1 of 1 of the patch: "));
  EXPECT_THAT(parsed.error().message(), HasSubstr(GetParam().says));
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

INSTANTIATE_TEST_SUITE_P(
    Rules, PatchBlockRules,
    testing::ValuesIn(std::vector<BlockRule>{
        {"no_such_tensor", [](OneBlock& b) { b.entry[0] = 2; }, "no block 1 of tensor 2"},
        {"huge_tensor", [](OneBlock& b) { b.entry[0] = 1ULL << 40U; }, "number of its tensor"},
        {"no_such_block", [](OneBlock& b) { b.entry[1] = 3; }, "no block 3 of tensor 0"},
        {"huge_block", [](OneBlock& b) { b.entry[1] = ~0ULL; }, "its number in the tensor"},
        {"other_block", [](OneBlock& b) { b.entry[1] = 0; }, "is not that of the index"},
        {"other_tensor",
         [](OneBlock& b) {
           b.entry[0] = 1;
           b.entry[1] = 0;
         },
         "the index has no such block here"},
        {"too_many_elements", [](OneBlock& b) { b.entry[2] = 131073; }, "number of its elements"},
        {"gap_bytes_huge", [](OneBlock& b) { b.entry[3] = ~0ULL; }, "length of its gaps"},
        {"sparse_not_smaller", [](OneBlock& b) { b.entry[3] = kBlockBytes - 6; }, "not be larger"},
        {"no_sums", [](OneBlock& b) { b.sum_bytes = 31; }, "ends within its sums"},
        {"directory_left", [](OneBlock& b) { b.more_directory = {std::byte{0}}; },
         "1 bytes of its"},
        {"payload_left", [](OneBlock& b) { b.more_payload = {std::byte{0}}; }, "and 1 bytes of"},
        {"payload_short", [](OneBlock& b) { b.values.pop_back(); }, "it needs 9 bytes, 8 are left"},
        {"dense_short", [](OneBlock& b) { b.entry = {0, 1, 0}; }, "it needs 262144 bytes"},
        {"other_count", [](OneBlock& b) { b.elements = 4; }, "is not that of the index"},
        {"gap_long", [](OneBlock& b) { b.gaps = bytes_of({0x85, 0, 0}); }, "a gap between"},
        {"gap_ends", [](OneBlock& b) { b.gaps = bytes_of({5, 0, 0x87}); }, "a gap between"},
        {"gap_missing", [](OneBlock& b) { b.gaps = bytes_of({5, 0x80, 1}); }, "a gap between"},
        {"gap_huge",
         [](OneBlock& b) {
           b.entry[3] = 12;
           b.gaps = bytes_of({5, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 127});
         },
         "a gap between"},
        {"position_outside",
         [](OneBlock& b) {
           b.entry[3] = 5;
           b.gaps = bytes_of({5, 0, 0xF9, 0xFF, 7});
         },
         "position 131072 is behind its last element, 131071"},
        {"gap_left",
         [](OneBlock& b) {
           b.entry[3] = 4;
           b.gaps = bytes_of({5, 0, 7, 0});
         },
         "1 bytes are left over after its positions"},
        {"position_outside_of_a_short_block",
         [](OneBlock& b) {
           b.entry[1] = b.place.block = 2;
           b.gaps = bytes_of({5, 0, 99});
         },
         "position 106 is behind its last element, 99"},
    }),
    [](const auto& rule) { return std::string(rule.param.name); });

TEST(PatchBuckets, TheLastPositionIsAllowed) {
  const Manifest manifest = two_tensors();
  const Layout layout(manifest);
  OneBlock block = good_block();
  block.entry[3] = 5;
  block.gaps = bytes_of({5, 0, 0xF8, 0xFF, 7});
  const auto parsed = parse_block(layout, block);
  ASSERT_TRUE(parsed) << parsed.error().message();
  std::vector<std::uint32_t> positions(parsed->front().elements);
  ASSERT_TRUE(read_positions(parsed->front(), kBlockBytes / 2, positions));
  EXPECT_EQ(positions, (std::vector<std::uint32_t>{5, 6, 131071}));
}

// Gaps of every length, also longer ones than a block can have, and ones that end with nothing.
Bytes random_gaps(std::mt19937_64& random, std::size_t count) {
  Bytes gaps;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t gap = random() >> (44 + random() % 20);
    for (; gap >= 0x80; gap >>= 7U) gaps.push_back(std::byte((gap & 0x7fU) | 0x80U));
    gaps.push_back(std::byte(gap));
  }
  for (std::size_t changes = random() % 3; changes > 0 && !gaps.empty(); --changes) {
    std::byte& byte = gaps[random() % gaps.size()];
    byte = random() % 2 == 0 ? byte ^ std::byte{0x80} : std::byte(random() % 256);
    if (random() % 3 == 0) gaps.pop_back();
  }
  return gaps;
}

TEST(PatchPositions, TheQuickCheckAgreesWithTheCarefulReader) {
  std::mt19937_64 random(29);
  std::size_t good = 0;
  std::size_t refused = 0;
  for (unsigned i = 0; i < 200'000; ++i) {
    const std::size_t count = 1 + random() % 24;
    const Bytes gaps = random_gaps(random, count);
    std::vector<std::uint32_t> positions(random() % 8 == 0 ? 1 + random() % 24 : count);
    const BlockView block{.elements = static_cast<std::uint32_t>(positions.size()), .gaps = gaps};
    std::uint64_t elements = random() % (kBlockBytes + 1);
    const auto first = read_positions(block, kBlockBytes, positions);
    // The last position is one of the block, or the first one behind it.
    if (first && random() % 2 == 0) elements = positions.back() + random() % 2;
    if (elements == 0) continue;
    const auto careful = read_positions(block, elements, positions);
    const auto quick = check_positions(block, elements);
    ASSERT_EQ(quick.has_value(), careful.has_value()) << "case " << i;
    if (!quick) {
      ASSERT_EQ(quick.error().message(), careful.error().message());
    }
    ++(quick ? good : refused);
  }
  EXPECT_GT(good, 10'000U);
  EXPECT_GT(refused, 10'000U);
}

TEST(PatchBuckets, EachIsReadByItselfAndADamagedOneIsNamed) {
  const Manifest manifest = every_dtype();
  const Layout layout(manifest);
  std::mt19937_64 random(1);
  const Content base = random_content(manifest, random);
  const Content target = changed(layout, base, 0.9, random);  // dense: more than one bucket
  const Patch patch = make_patch(layout, base, target);
  ASSERT_GE(patch.buckets.size(), 2U);
  const auto index = Index::parse(patch.index).value();
  EXPECT_EQ(index.encode(), patch.index);
  Content content = base;
  BlockApplier applier(layout);
  for (std::size_t i = patch.buckets.size(); i-- > 0;) {
    EXPECT_LE(patch.buckets[i].size(), limits::kMiB);
    const auto blocks = parse_bucket(index, layout, i, patch.buckets[i]);
    ASSERT_TRUE(blocks) << blocks.error().message();
    for (const BlockView& block : *blocks)
      ASSERT_TRUE(applier.apply(block, block_bytes(layout, content, block.place)));
  }
  EXPECT_TRUE(content == target);
  Bytes damaged = patch.buckets[1];
  damaged[damaged.size() / 2] ^= std::byte{1};
  const auto refused = parse_bucket(index, layout, 1, damaged);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(refused.error().message(), HasSubstr("bucket 2 of "));
  damaged.pop_back();
  EXPECT_THAT(parse_bucket(index, layout, 1, damaged).error().message(), HasSubstr("bytes, found"));
  const Patch fewer{.index = patch.index, .buckets = {patch.buckets.front()}};
  EXPECT_THAT(PatchReader::open(layout, fewer).error().message(), HasSubstr("found 1"));
}

// ---- varints ----

TEST(PatchVarints, AreAsShortAsPossible) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t value = random() >> random() % 64;
    Bytes bytes;
    put_varint(bytes, value);
    EXPECT_EQ(bytes.size(), varint_bytes(value));
    std::span<const std::byte> rest(bytes);
    EXPECT_EQ(take_varint(rest, ~0ULL), value);
    EXPECT_TRUE(rest.empty());
    rest = bytes;
    EXPECT_EQ(take_varint(rest, value - 1), value == 0 ? std::optional(value) : std::nullopt);
    rest = std::span<const std::byte>(bytes).first(bytes.size() - 1);
    EXPECT_EQ(take_varint(rest, ~0ULL), std::nullopt);
    bytes.back() |= std::byte{0x80};
    bytes.push_back({});
    rest = bytes;
    EXPECT_EQ(take_varint(rest, ~0ULL), std::nullopt) << "one byte longer than it has to be";
  }
  const Bytes over = bytes_of({255, 255, 255, 255, 255, 255, 255, 255, 255, 2});
  std::span<const std::byte> rest(over);
  EXPECT_EQ(take_varint(rest, ~0ULL), std::nullopt) << "more than 64 bits";
}

// ---- files ----

class PatchFiles : public testing::Test {
 protected:
  const Manifest manifest_ = two_tensors();
  const Layout layout_{manifest_};
  std::mt19937_64 random_{1};
  const Content base_ = random_content(manifest_, random_);
  const Patch patch_ = make_patch(layout_, base_, changed(layout_, base_, 0.01, random_));
  wsync::test::TemporaryDirectory directory_;
  Bytes file_bytes() const {
    Bytes bytes = patch_file_head(manifest_, patch_);
    for (const Bytes& bucket : patch_.buckets)
      bytes.insert(bytes.end(), bucket.begin(), bucket.end());
    return bytes;
  }
  static std::string said(const Bytes& bytes) {
    const auto parsed = PatchFile::parse(bytes);
    return parsed ? "accepted" : parsed.error().message();
  }
};

TEST_F(PatchFiles, AreReadAsTheyWereWritten) {
  const std::string path = directory_ / "p.wsp";
  const auto written = write_patch_file(path, manifest_, patch_);
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(directory_.names(), std::vector<std::string>{"p.wsp"});
  const auto file = PatchFile::open(path);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->bytes(), *written);
  EXPECT_EQ(file->manifest(), manifest_);
  EXPECT_EQ(file->patch().index().encode(), patch_.index);
  EXPECT_EQ(file->patch().blocks().size(), 4U);
}

TEST_F(PatchFiles, SayWhatIsWrong) {
  Bytes bytes = file_bytes();
  EXPECT_EQ(said(bytes), "accepted");
  for (std::size_t size = 0; size < bytes.size(); size += size < 600 ? 1 : 1009) {
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<long>(size));
    const auto parsed = PatchFile::parse(part);
    ASSERT_FALSE(parsed) << size;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidInput) << size;
  }
  const auto spoilt = [&](std::size_t at) {
    Bytes other = bytes;
    other[at] ^= std::byte{1};
    return said(other);
  };
  EXPECT_THAT(spoilt(0), HasSubstr("this is not a patch"));
  EXPECT_THAT(spoilt(8), HasSubstr("version 0 of the format of patch files"));
  EXPECT_THAT(spoilt(12), HasSubstr("expected 0"));
  EXPECT_THAT(spoilt(40), HasSubstr("the manifest of the patch is damaged"));
  EXPECT_THAT(spoilt(50), HasSubstr("the manifest of the patch is damaged"));
  EXPECT_THAT(spoilt(48 + get_u64(bytes, 16) + 40), HasSubstr("the index of the patch is damaged"));
  EXPECT_THAT(spoilt(bytes.size() - 1), HasSubstr("bucket 1 of 1 of the patch is damaged"));
  bytes.push_back({});
  EXPECT_THAT(said(bytes), HasSubstr("has bytes behind its end"));
}

TEST_F(PatchFiles, SayWhatCannotBeOpened) {
  const auto none = PatchFile::open(directory_ / "none");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(PatchFile::open(directory_.path()).error().message(), HasSubstr("it is not a file"));
  wsync::test::write_file(directory_ / "text", "some text");
  const auto text = PatchFile::open(directory_ / "text");
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().message(), HasSubstr(directory_ / "text" + ": this is not a patch"));
}

TEST_F(PatchFiles, AStoppedWriterLeavesNothing) {
  const auto written =
      write_patch_file(directory_ / "p.wsp", manifest_, patch_, [] { return true; });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(directory_.names().empty());
}

}  // namespace
}  // namespace wsync::patch
