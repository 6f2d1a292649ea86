// Dtypes, layer order, manifest and bucket plan.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/layer_order.h"
#include "shared/weights/manifest.h"

namespace wsync {
namespace {

TensorInfo tensor(std::string name, std::vector<std::uint64_t> shape, DType dtype = DType::kBF16) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

std::vector<std::string> names_of(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const TensorInfo& t : manifest.tensors()) names.push_back(t.name);
  return names;
}

Manifest manifest_of(const std::vector<std::string>& names) {
  std::vector<TensorInfo> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back(tensor(name, {2}));
  return Manifest::create(std::move(tensors)).value();
}

TEST(DType, EveryNameParsesBackToItsDType) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_FALSE(parse_dtype("bf16"));
  EXPECT_FALSE(parse_dtype(""));
}

TEST(DType, ByteSizes) {
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(tensor_byte_size(DType::kF4, Shape{3, 2}).value(), 3U);
  EXPECT_EQ(tensor_byte_size(DType::kF6E2M3, Shape{4}).value(), 3U);
  EXPECT_EQ(tensor_byte_size(DType::kC64, Shape{}).value(), 8U);
  EXPECT_EQ(tensor_byte_size(DType::kF32, Shape{5, 0}).value(), 0U);
  EXPECT_FALSE(tensor_byte_size(DType::kF4, Shape{3}));
  EXPECT_FALSE(tensor_byte_size(DType::kF6E3M2, Shape{2}));
  EXPECT_FALSE(tensor_byte_size(DType::kU8, Shape{1ULL << 32U, 1ULL << 32U}));
  EXPECT_FALSE(tensor_byte_size(DType::kU64, Shape{1ULL << 60U}));
  // As the reference reader: an overflow before a zero dimension is still an overflow.
  EXPECT_FALSE(tensor_byte_size(DType::kU8, Shape{1ULL << 63U, 2, 0}));
}

TEST(LayerOrder, NumbersCompareAsNumbers) {
  EXPECT_TRUE(natural_compare("h.2.w", "h.10.w") < 0);
  EXPECT_TRUE(natural_compare("h.9", "h.99999999999999999999999") < 0);
  EXPECT_TRUE(natural_compare("h.1", "h.1.a") < 0);
  EXPECT_TRUE(natural_compare("a1", "ab") < 0);
  EXPECT_TRUE(natural_compare("h.007", "h.7") == 0);
  EXPECT_TRUE(natural_compare("h.0", "h.00") == 0);
}

TEST(Manifest, OrdersByLayerWithEmbeddingsFirstAndHeadLast) {
  const std::vector<std::string> expected{
      "model.embed_tokens.weight",
      "model.layers.0.input_layernorm.weight",
      "model.layers.2.mlp.experts.1.down_proj.weight",
      "model.layers.2.mlp.experts.1.up_proj.weight",
      "model.layers.2.mlp.experts.9.up_proj.weight",
      "model.layers.2.mlp.experts.10.down_proj.weight",
      "model.layers.2.mlp.gate.weight",
      "model.layers.2.self_attn.q_proj.weight",
      "model.layers.10.embed_tokens.weight",
      "mtp.layers.0.norm.weight",
      "model.norm.weight",
      "lm_head.weight",
  };
  std::vector<std::string> shuffled = expected;
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    const Manifest manifest = manifest_of(shuffled);
    EXPECT_EQ(names_of(manifest), expected);
    EXPECT_EQ(manifest.layout_digest(), manifest_of(expected).layout_digest());
  }
  const Manifest manifest = manifest_of(expected);
  const std::vector<std::uint32_t> layers{0, 1, 2, 2, 2, 2, 2, 2, 3, 4, 5, 6};
  for (std::size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(manifest.layer(i), layers[i]) << i;
  EXPECT_EQ(manifest.layer_count(), 7U);
}

TEST(Manifest, KnowsTheNamesOfOtherFamilies) {
  EXPECT_EQ(names_of(manifest_of({"transformer.ln_f.weight", "transformer.h.11.attn.weight",
                                  "transformer.h.2.ln_1.bias", "lm_head.weight",
                                  "transformer.wpe.weight", "transformer.wte.weight"})),
            (std::vector<std::string>{"transformer.wpe.weight", "transformer.wte.weight",
                                      "transformer.h.2.ln_1.bias", "transformer.h.11.attn.weight",
                                      "transformer.ln_f.weight", "lm_head.weight"}));
  EXPECT_EQ(names_of(manifest_of({"embed_out.weight", "gpt_neox.embed_in.weight",
                                  "gpt_neox.layers.1.mlp.weight", "scale"})),
            (std::vector<std::string>{"gpt_neox.embed_in.weight", "scale",
                                      "gpt_neox.layers.1.mlp.weight", "embed_out.weight"}));
}

TEST(Manifest, LayoutDigestSeesNamesDtypesAndShapes) {
  const auto digest = [](TensorInfo t) {
    return Manifest::create({std::move(t)}).value().layout_digest();
  };
  const Digest base = digest(tensor("a", {2, 3}));
  EXPECT_EQ(base, digest(tensor("a", {2, 3})));
  EXPECT_NE(base, digest(tensor("b", {2, 3})));
  EXPECT_NE(base, digest(tensor("a", {3, 2})));
  EXPECT_NE(base, digest(tensor("a", {6})));
  EXPECT_NE(base, digest(tensor("a", {2, 3}, DType::kF16)));
  EXPECT_NE(base, Manifest().layout_digest());
  EXPECT_EQ(Manifest::create({}).value().layout_digest(), Manifest().layout_digest());
}

TEST(Manifest, FindsByName) {
  const Manifest manifest = manifest_of({"b", "a", "lm_head", "c.10.x", "c.9.x"});
  for (std::uint32_t i = 0; i < manifest.size(); ++i)
    EXPECT_EQ(manifest.find(manifest.tensor(i).name), i);
  EXPECT_EQ(manifest.find("c.1.x"), std::nullopt);
  EXPECT_EQ(manifest.find(""), std::nullopt);
  EXPECT_EQ(Manifest().find("a"), std::nullopt);
}

TEST(Manifest, RefusesWhatPassesALimit) {
  const auto error = [](std::vector<TensorInfo> tensors) {
    const auto manifest = Manifest::create(std::move(tensors));
    return manifest ? std::string("accepted") : manifest.error().message();
  };
  EXPECT_EQ(error({tensor("x", {1}), tensor("x", {1})}),
            "tensor 'x' is given twice; names must differ");
  EXPECT_THAT(error({tensor("", {1})}), testing::HasSubstr("empty name"));
  EXPECT_THAT(error({tensor(std::string(limits::kTensorNameBytes + 1, 'n'), {1})}),
              testing::HasSubstr("1025 bytes"));
  EXPECT_THAT(error({tensor("x", std::vector<std::uint64_t>(limits::kTensorRank + 1, 1))}),
              testing::HasSubstr("'x' has 9 dimensions"));
  EXPECT_THAT(error({tensor("x", {1ULL << 43U}), tensor("y", {1})}), testing::HasSubstr("'y "));
  EXPECT_THAT(error({tensor("x", {1}, DType::kF4)}), testing::HasSubstr("tensor 'x'"));
}

TEST(Manifest, EncodesAndDecodes) {
  const Manifest manifest =
      Manifest::create({tensor("lm_head.weight", {}), tensor("h.10.w", {3, 0}, DType::kF64),
                        tensor("h.9.w", {4}, DType::kF4)})
          .value();
  ByteWriter writer;
  manifest.encode(writer);
  ByteReader reader(writer.buffer());
  const auto decoded = Manifest::decode(reader);
  ASSERT_TRUE(decoded) << decoded.error().message();
  ASSERT_TRUE(reader.finish("manifest"));
  EXPECT_EQ(*decoded, manifest);
  EXPECT_EQ(decoded->layout_digest(), manifest.layout_digest());
  EXPECT_EQ(decoded->total_bytes(), 4U);

  for (std::size_t cut = 0; cut < writer.size(); ++cut) {
    ByteReader truncated(std::span(writer.buffer()).first(cut));
    EXPECT_FALSE(Manifest::decode(truncated)) << cut;
  }
}

TEST(Manifest, DecodeRefusesAnotherOrder) {
  ByteWriter writer;
  writer.put(std::uint32_t{2});
  for (const std::string_view name : {"h.10.w", "h.9.w"}) {
    writer.put_string(name);
    writer.put(DType::kU8);
    writer.put(std::uint8_t{0});
  }
  ByteReader reader(writer.buffer());
  const auto decoded = Manifest::decode(reader);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().message(),
            "manifest: tensor 0 is 'h.10.w', layer order has 'h.9.w' there");
}

Manifest random_manifest(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  std::vector<TensorInfo> tensors(below(40));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::uint64_t bytes = 0;
    switch (below(5)) {
      case 0:
        bytes = below(2);
        break;
      case 1:
        bytes = below(5000);
        break;
      case 2:
        bytes = below(4) * limits::kLeafBytes;
        break;
      case 3:
        bytes = below(12) * limits::kLeafBytes + below(3) - below(2);
        break;
      default:
        bytes = below(9 * limits::kLeafBytes);
        break;
    }
    if (bytes > limits::kGiB) bytes = 0;  // 0 - 1 above
    tensors[i] = tensor("model.layers." + std::to_string(below(9)) + ".w" + std::to_string(i),
                        {bytes}, DType::kU8);
  }
  return Manifest::create(std::move(tensors)).value();
}

// Everything that must hold of any plan.
void check_plan(const Manifest& manifest, std::uint64_t bucket_bytes) {
  const BucketPlan plan = BucketPlan::create(manifest, bucket_bytes).value();
  std::uint64_t arena_end = 0;
  std::pair<std::uint32_t, std::uint64_t> next{0, 0};  // consecutive bytes in manifest order
  std::size_t pieces = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t b = 0; b < plan.bucket_count(); ++b) {
    ASSERT_FALSE(plan.bucket(b).empty());
    ASSERT_LE(plan.bucket_size(b), bucket_bytes);
    ASSERT_LE(plan.bucket_size(b), plan.largest_bucket());
    ASSERT_EQ(plan.bucket_offset(b) % limits::kPieceAlignBytes, 0U);
    ASSERT_GE(plan.bucket_offset(b), arena_end);
    arena_end = plan.bucket_offset(b) + plan.bucket_size(b);
    std::uint64_t buffer_end = 0;
    for (const Piece& piece : plan.bucket(b)) {
      ASSERT_EQ(piece.bucket, b);
      ASSERT_GT(piece.bytes, 0U);
      ASSERT_EQ(piece.buffer_offset % limits::kPieceAlignBytes, 0U);
      ASSERT_GE(piece.buffer_offset, buffer_end);
      buffer_end = piece.buffer_offset + piece.bytes;
      ASSERT_EQ(piece.tensor_offset % limits::kLeafBytes, 0U);
      const std::uint64_t end = piece.tensor_offset + piece.bytes;
      ASSERT_TRUE(end == manifest.byte_size(piece.tensor) || end % limits::kLeafBytes == 0);
      while (next.second == manifest.byte_size(next.first)) next = {next.first + 1, 0};
      ASSERT_EQ(next, std::pair(piece.tensor, piece.tensor_offset));
      next.second = end;
      ASSERT_EQ(plan.arena_offset(piece), plan.bucket_offset(b) + piece.buffer_offset);
      const bool large = manifest.byte_size(piece.tensor) >= limits::kPageAlignedTensorBytes;
      if (large) {
        ASSERT_EQ(plan.arena_offset(piece) % limits::kPageAlignBytes, 0U);
      }
      ++pieces;
      bytes += piece.bytes;
    }
    ASSERT_EQ(buffer_end, plan.bucket_size(b));
  }
  ASSERT_LE(arena_end, plan.arena_bytes());
  ASSERT_EQ(pieces, plan.pieces().size());
  ASSERT_EQ(bytes, manifest.total_bytes()) << "every byte once: they are consecutive";
  std::size_t of_tensors = 0;
  for (std::uint32_t t = 0; t < manifest.size(); ++t) of_tensors += plan.tensor_pieces(t).size();
  ASSERT_EQ(of_tensors, pieces);
}

TEST(BucketPlan, HoldsForRandomManifests) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Manifest manifest = random_manifest(random);
    for (const std::uint64_t bytes : {limits::kBucketBytesMin, limits::kBucketBytesMin + 256,
                                      3 * limits::kMiB - 512, 64 * limits::kMiB})
      ASSERT_NO_FATAL_FAILURE(check_plan(manifest, bytes));
  }
}

TEST(BucketPlan, FillsBucketsUpToALeaf) {
  const Manifest manifest = Manifest::create({tensor("a.0", {100}, DType::kU8),
                                              tensor("a.1", {5 * limits::kMiB}, DType::kU8)})
                                .value();
  const BucketPlan plan = BucketPlan::create(manifest, 2 * limits::kMiB).value();
  ASSERT_EQ(plan.bucket_count(), 3U);
  EXPECT_EQ(plan.bucket_size(0), limits::kPageAlignBytes + limits::kMiB);
  EXPECT_EQ(plan.bucket_size(1), 2 * limits::kMiB);
  EXPECT_EQ(plan.bucket_size(2), 2 * limits::kMiB);
  EXPECT_EQ(plan.tensor_pieces(1).size(), 3U);
  EXPECT_EQ(plan.bucket_offset(1), limits::kPageAlignBytes + limits::kMiB);
}

// Versions that were staged with other buckets are mapped by the same engine.
TEST(BucketPlan, TensorsLieTheSameWhateverTheBuckets) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const Manifest manifest = random_manifest(random);
    const BucketPlan one = BucketPlan::create(manifest, limits::kBucketBytesMin).value();
    const BucketPlan other = BucketPlan::create(manifest, 5 * limits::kMiB).value();
    ASSERT_EQ(one.arena_bytes(), other.arena_bytes());
    for (const Piece& piece : other.pieces()) {
      // The piece of the other plan in which the same byte of the tensor is.
      const auto pieces = one.tensor_pieces(piece.tensor);
      const auto same = std::ranges::find_if(pieces, [&](const Piece& p) {
        return p.tensor_offset <= piece.tensor_offset &&
               piece.tensor_offset < p.tensor_offset + p.bytes;
      });
      ASSERT_NE(same, pieces.end());
      ASSERT_EQ(one.arena_offset(*same) + piece.tensor_offset - same->tensor_offset,
                other.arena_offset(piece))
          << "seed " << seed;
    }
  }
}

TEST(BucketPlan, RefusesUnusableBucketSizes) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, limits::kBucketBytesMin - 256,
                                    limits::kBucketBytesMin + 1, limits::kBucketBytesMax + 256})
    EXPECT_FALSE(BucketPlan::create(Manifest(), bytes)) << bytes;
  const BucketPlan empty = BucketPlan::create(Manifest(), limits::kBucketBytesMin).value();
  EXPECT_EQ(empty.bucket_count(), 0U);
  EXPECT_EQ(empty.arena_bytes(), 0U);
}

}  // namespace
}  // namespace wsync
