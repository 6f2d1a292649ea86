// The forward of one rank against the trainer's plain loops on the same weights.
#include "inference_side/reference_engine/generation/model_shard.h"

#include <gmock/gmock.h>

#include "tests/unit/reference_engine/generation/small_model.h"

namespace wsync::engine::generation {
namespace {

using ::testing::ElementsAre;

struct Variant {
  std::string name;
  moe::ModelSpec spec;
  std::uint32_t block_tokens = 4;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
  std::vector<Variant> all{{"grouped", small_spec()}};
  const auto add = [&](const std::string& name, std::uint32_t block_tokens, auto change) {
    all.push_back({name, small_spec(), block_tokens});
    change(all.back().spec);
  };
  add("one_kv_head_large_blocks", 64, [](moe::ModelSpec& spec) { spec.key_value_heads = 1; });
  add("every_head_its_own_tiny_blocks", 1, [](moe::ModelSpec& spec) { spec.key_value_heads = 4; });
  add("tied", 3, [](moe::ModelSpec& spec) { spec.tied_embeddings = true; });
  add("weights_as_they_are", 4, [](moe::ModelSpec& spec) { spec.normalise_top_k = false; });
  add("every_expert", 4, [](moe::ModelSpec& spec) { spec.experts_per_token = spec.experts; });
  add("one_expert_wide_heads", 16, [](moe::ModelSpec& spec) {
    spec.experts_per_token = 1;
    spec.head_dim = 32;
  });
  add("narrowest_heads", 5, [](moe::ModelSpec& spec) { spec.head_dim = 2; });
  return all;
}

class OneRank : public ::testing::TestWithParam<Variant> {
 protected:
  [[nodiscard]] std::vector<float> forward(const Batch& batch) {
    return forward_alone(*shard_, batch, weights_);
  }
  Sequence sequence(std::size_t length, unsigned seed) {
    return {.tokens = model_.tokens(length, seed),
            .blocks = free_.take(length, GetParam().block_tokens)};
  }

  const SmallModel model_{GetParam().spec};
  HeldWeights weights_{model_};
  std::unique_ptr<ModelShard> shard_ =
      make_shard(options_of(GetParam().spec, GetParam().block_tokens), model_.manifest);
  FreeBlocks free_{5};
};
INSTANTIATE_TEST_SUITE_P(Variants, OneRank, ::testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param.name; });

TEST_P(OneRank, APromptHasTheLogitsOfPlainLoops) {
  const std::vector<Token> tokens = model_.tokens(9);
  const training::Buffer expected = model_.logits(tokens);
  // Each beginning of it, as a sequence of its own.
  Batch batch;
  for (std::size_t length = 1; length <= tokens.size(); ++length) {
    Sequence prefix{.tokens = tokens, .blocks = free_.take(length, GetParam().block_tokens)};
    batch.slices.push_back(prefix.next(length));
  }
  expect_near(forward(batch), expected.matrix().values(), "prefixes");
}

TEST_P(OneRank, DecodingTokenByTokenIsTheSame) {
  Sequence sequence = this->sequence(30, 8);
  const training::Buffer expected = model_.logits(sequence.tokens);
  expect_near(forward({.slices = {sequence.next(7)}}), expected.matrix().row(6), "prompt");
  while (!sequence.done()) {
    const std::uint32_t position = sequence.computed;
    expect_near(forward({.slices = {sequence.next(1)}}), expected.matrix().row(position),
                "position " + std::to_string(position));
  }
}

// Prompts come in pieces of random lengths beside others that decode; slices change their places
// from step to step, and some steps leave a sequence out.
TEST_P(OneRank, PiecesBesideDecodingSequencesAreTheSame) {
  std::vector<Sequence> sequences;
  std::vector<training::Buffer> expected;
  for (const unsigned seed : {11U, 12U, 13U, 14U}) {
    sequences.push_back(sequence(8 + seed, seed));
    expected.push_back(model_.logits(sequences.back().tokens));
  }
  std::mt19937 random(17);
  std::vector<std::size_t> order{0, 1, 2, 3};
  while (!std::ranges::all_of(sequences, &Sequence::done)) {
    std::shuffle(order.begin(), order.end(), random);
    Batch batch;
    std::vector<std::span<const float>> rows;
    for (const std::size_t i : order) {
      Sequence& sequence = sequences[i];
      const std::size_t left = sequence.tokens.size() - sequence.computed;
      const std::size_t count = std::min<std::size_t>(left, i % 2 == 0 ? 1 : random() % 6);
      if (count == 0) continue;
      const bool wants_logits = random() % 3 != 0;
      batch.slices.push_back(sequence.next(count, wants_logits));
      if (wants_logits) rows.push_back(expected[i].matrix().row(sequence.computed - 1));
    }
    const std::vector<float> logits = forward(batch);
    ASSERT_EQ(logits.size(), rows.size() * GetParam().spec.vocabulary);
    for (std::size_t i = 0; i < rows.size(); ++i)
      expect_near(std::span(logits).subspan(i * rows[i].size(), rows[i].size()), rows[i], "piece");
  }
}

// The bits of its logits do not say whether a sequence was alone, nor how its prompt was cut.
TEST_P(OneRank, LogitsHaveTheSameBitsWhateverElseIsInTheBatch) {
  constexpr std::size_t kPrompt = 23;
  const std::vector<Token> tokens = model_.tokens(kPrompt + 3, 21);
  const auto decode = [&](Sequence& sequence, const auto& others) {
    std::vector<std::vector<float>> rows;
    while (!sequence.done()) {
      Batch batch{.slices = {sequence.next(1)}};
      for (const SequenceSlice& other : others()) batch.slices.push_back(other);
      std::vector<float> logits = forward(batch);
      logits.resize(GetParam().spec.vocabulary);
      rows.push_back(std::move(logits));
    }
    return rows;
  };
  const auto nobody = [] { return std::vector<SequenceSlice>(); };
  Sequence whole{.tokens = tokens, .blocks = free_.take(tokens.size(), GetParam().block_tokens)};
  static_cast<void>(forward({.slices = {whole.next(kPrompt, false)}}));
  const auto expected = decode(whole, nobody);
  Sequence by_token{.tokens = tokens, .blocks = whole.blocks};
  while (by_token.computed < kPrompt)
    static_cast<void>(forward({.slices = {by_token.next(1, false)}}));
  EXPECT_EQ(decode(by_token, nobody), expected);
  std::vector<Sequence> crowd;
  for (unsigned seed = 0; seed < 5; ++seed) crowd.push_back(sequence(15, 40 + seed));
  Sequence in_crowd{.tokens = tokens, .blocks = whole.blocks};
  for (const std::size_t piece : {std::size_t{9}, std::size_t{1}, kPrompt - 10})
    static_cast<void>(forward({.slices = {crowd[0].next(2, false), in_crowd.next(piece, false)}}));
  const auto beside = [&] {
    std::vector<SequenceSlice> slices;
    for (Sequence& other : crowd) slices.push_back(other.next(1 + slices.size()));
    return slices;
  };
  EXPECT_EQ(decode(in_crowd, beside), expected);
}

class Shard : public ::testing::Test {
 protected:
  const SmallModel model_{small_spec()};
  HeldWeights weights_{model_};
  std::unique_ptr<ModelShard> shard_ = make_shard(options_of(model_.spec), model_.manifest);
};

TEST_F(Shard, BlocksThatOthersHaveUsedAreAsNew) {
  const std::vector<std::uint32_t> blocks{9, 2, 40};
  for (const unsigned seed : {1U, 2U, 3U}) {
    Sequence sequence{.tokens = model_.tokens(12 - seed, seed), .blocks = blocks};
    const training::Buffer expected = model_.logits(sequence.tokens);
    const std::size_t last = sequence.tokens.size() - 1;
    expect_near(forward_alone(*shard_, {.slices = {sequence.next(last + 1)}}, weights_),
                expected.matrix().row(last), "sequence " + std::to_string(seed));
  }
}

TEST_F(Shard, APrefixIsSharedAlsoInTheStepThatComputesIt) {
  Sequence first{.tokens = model_.tokens(10), .blocks = {5, 6, 7}};
  Sequence second{.tokens = first.tokens, .blocks = {5, 6, 20}};
  second.tokens[8] = (second.tokens[8] + 1) % model_.spec.vocabulary;
  second.computed = 8;  // two blocks are the first one's
  const training::Buffer of_first = model_.logits(first.tokens);
  const training::Buffer of_second = model_.logits(second.tokens);
  const std::vector<float> logits =
      forward_alone(*shard_, {.slices = {second.next(2), first.next(10)}}, weights_);
  const std::size_t vocabulary = model_.spec.vocabulary;
  ASSERT_EQ(logits.size(), 2 * vocabulary);
  expect_near(std::span(logits).first(vocabulary), of_second.matrix().row(9), "second");
  expect_near(std::span(logits).last(vocabulary), of_first.matrix().row(9), "first");
}

TEST_F(Shard, WeightsAreReadAnewInEveryStep) {
  const SmallModel other(model_.spec, 2);
  Sequence sequence{.tokens = model_.tokens(6), .blocks = {1, 2}};
  const SequenceSlice slice = sequence.next(6);
  const std::vector<float> before = forward_alone(*shard_, {.slices = {slice}}, weights_);
  weights_.take(other);
  const std::vector<float> after = forward_alone(*shard_, {.slices = {slice}}, weights_);
  expect_near(after, other.logits(sequence.tokens).matrix().row(5), "other weights");
  EXPECT_GT(std::abs(before[0] - after[0]), 1e-2);
}

TEST_F(Shard, EveryLayerIsVisitedInItsOrder) {
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4};  // embeddings, two layers, norm, head
  ASSERT_EQ(model_.manifest.layer_count(), all.size());
  EXPECT_TRUE(forward_alone(*shard_, {}, weights_).empty());
  EXPECT_EQ(weights_.visits, all);
  Sequence sequence{.tokens = model_.tokens(6), .blocks = {1, 2}};
  for (const bool wants_logits : {false, true}) {
    weights_.visits.clear();
    const auto logits =
        forward_alone(*shard_, {.slices = {sequence.next(3, wants_logits)}}, weights_);
    EXPECT_EQ(logits.size(), wants_logits ? model_.spec.vocabulary : 0U);
    EXPECT_EQ(weights_.visits, all);
    EXPECT_TRUE(weights_.between_layers());
  }
}

TEST(TiedShard, VisitsTheEmbeddingsAgainAndReadsNoHeadBesideThem) {
  moe::ModelSpec spec = small_spec();
  spec.tied_embeddings = true;
  for (const bool has_head : {false, true}) {
    SmallModel model(spec);
    const std::vector<Token> tokens = model.tokens(5);
    const training::Buffer expected = model.logits(tokens);
    if (has_head) {
      std::vector<moe::Parameter> parameters = moe::all_parameters(spec);
      parameters.push_back(moe::head_of(spec));
      training::ParameterSet weights(parameters);
      std::ranges::copy(model.weights.all(), weights.all().begin());
      std::ranges::fill(weights.values(moe::kHead), 7.0F);
      model.weights = std::move(weights);
      model.manifest = manifest_of(parameters);
    }
    HeldWeights held(model);
    const auto shard = make_shard(options_of(spec), model.manifest);
    Sequence sequence{.tokens = tokens, .blocks = {0, 1}};
    expect_near(forward_alone(*shard, {.slices = {sequence.next(5)}}, held),
                expected.matrix().row(4), "tied");
    if (has_head)
      EXPECT_THAT(held.visits, ElementsAre(0, 1, 2, 3, 4, 0));
    else
      EXPECT_THAT(held.visits, ElementsAre(0, 1, 2, 3, 0));
    held.visits.clear();
    EXPECT_TRUE(forward_alone(*shard, {}, held).empty());
    EXPECT_EQ(held.visits.size(), model.manifest.layer_count());
  }
}

TEST_F(Shard, TellsItsLimitsAndItsMemory) {
  const BatchLimits limits = shard_->limits();
  EXPECT_EQ(limits.vocabulary, 44U);
  EXPECT_EQ(limits.max_positions, 40U);
  EXPECT_EQ(limits.blocks, kBlocks);
  EXPECT_EQ(limits.block_tokens, 4U);
  EXPECT_EQ(limits.tokens, 256U);
  ShardOptions options = options_of(model_.spec);
  // Keys and values of 2 layers, 2 heads of 10, 4 tokens, float32.
  EXPECT_EQ(block_bytes(options, model_.manifest).value(), 2U * 2 * 2 * 10 * 4 * 4);
  EXPECT_EQ(shard_->cache_bytes(), kBlocks * block_bytes(options, model_.manifest).value());
  options.world_size = 2;
  EXPECT_EQ(block_bytes(options, model_.manifest).value(), 1U * 2 * 2 * 10 * 4 * 4);
}

// The last position of a sequence that fills every block.
TEST_F(Shard, PositionsEndWithTheBlocksOrTheModel) {
  ShardOptions options = options_of(model_.spec);
  options.blocks = 3;
  const auto shard = make_shard(options, model_.manifest);
  Sequence sequence{.tokens = model_.tokens(12), .blocks = {2, 0, 1}};
  const training::Buffer expected = model_.logits(sequence.tokens);
  expect_near(forward_alone(*shard, {.slices = {sequence.next(12)}}, weights_),
              expected.matrix().row(11), "all blocks");
  Sequence longest{.tokens = model_.tokens(40), .blocks = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}};
  const training::Buffer of_longest = model_.logits(longest.tokens);
  expect_near(forward_alone(*shard_, {.slices = {longest.next(40)}}, weights_),
              of_longest.matrix().row(39), "all positions");
}

}  // namespace
}  // namespace wsync::engine::generation
