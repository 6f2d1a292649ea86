// Ranks that have the same memory for several tensors: tied weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/separate_rank.h"

namespace wsync::engine::test {
namespace {

using control::TakeMode;
using testing::HasSubstr;

constexpr std::uint64_t kRows = 1200;

Model tied_model() {
  return Model::of({{.name = "embed", .dtype = DType::kBF16, .shape = {kRows, 512}},
                    {.name = "head", .dtype = DType::kBF16, .shape = {kRows, 512}},
                    {.name = "norm", .dtype = DType::kBF16, .shape = {512}}});
}

std::size_t index_of(const FakeEngine& engine, std::string_view name) {
  const auto& tensors = engine.description.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].description.name == name) return i;
  ADD_FAILURE() << name;
  return 0;
}

// An arena in which both tied tensors have the same values.
SharedArena arena_with_equal_values(const Model& model, const FakeEngine& engine, Version version) {
  auto arena =
      SharedArena::create({.name = "test", .data_bytes = model.plan.arena_bytes(), .threads = 1})
          .value();
  auto lease = arena.try_write_lease({.version_epoch = version.epoch,
                                      .version_step = version.step,
                                      .layout = model.manifest.layout_digest(),
                                      .bucket_bytes = model.plan.bucket_bytes()});
  EXPECT_TRUE(lease);
  std::mt19937_64 random(version.step);
  fill_random(random, lease->data());
  const auto plan = plan_of(model, engine);
  const std::uint64_t bytes = kRows * 512 * 2;
  std::ranges::copy(
      lease->data().subspan(plan.tensors()[index_of(engine, "embed")].arena_offset, bytes),
      lease->data().subspan(plan.tensors()[index_of(engine, "head")].arena_offset, bytes).begin());
  std::move(*lease).complete({.low = version.step, .high = 1});
  return arena;
}

template <class AnyRank>
void tie(AnyRank& rank) {
  auto& tensors = rank.engine.description.tensors;
  tensors[index_of(rank.engine, "head")].destination =
      tensors[index_of(rank.engine, "embed")].destination;
}

TEST(SameMemoryOfARank, DestinationsThatOverlapInPartAreRefusedWhenItAttachesAndResumes) {
  const Model model = tied_model();
  Rank rank(model, TakeMode::kPieces);
  auto& tensors = rank.engine.description.tensors;
  const std::size_t norm = index_of(rank.engine, "norm");
  const auto own = tensors[norm].destination;
  const auto inside = tensors[index_of(rank.engine, "embed")].destination.subspan(100, own.size());
  tensors[norm].destination = inside;
  const auto refused = EngineLink::create(rank.engine.description, rank.peer.path(), rank.engine);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("tensors embed and norm overlap in memory (bytes "
                        "100 to 1124 of embed are bytes 0 to 1024 of "
                        "norm)"));
  tensors[norm].destination = own;
  rank.attach_unified();
  ASSERT_TRUE(rank.link->suspend());
  ASSERT_TRUE(rank.link->move_destination(norm, inside.data()));
  const auto resumed = rank.link->resume();
  ASSERT_FALSE(resumed);
  EXPECT_THAT(resumed.error().message(), HasSubstr("tensors embed and norm overlap in memory"));
  ASSERT_TRUE(rank.link->move_destination(norm, own.data()));
  EXPECT_TRUE(rank.link->resume()) << "it has stayed suspended";
}

TEST(SameMemoryOfARank, TheSameMemoryWithDifferentValuesEndsTheLoad) {
  const Model model = tied_model();
  Rank rank(model, TakeMode::kPieces);
  tie(rank);
  rank.start();
  EXPECT_FALSE(rank.peer.accept().takes_patches);
  rank.peer.welcome_unified();
  const SharedArena different = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(different));
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
              HasSubstr("tensors embed and head have the same memory in this engine, but different "
                        "values in 1.1: give each memory of its own, or take and publish only one "
                        "of them"));
  EXPECT_EQ(rank.link->status().state, control::RankState::kTainted);
  const SharedArena equal = arena_with_equal_values(model, rank.engine, kSecond);
  rank.peer.ask<control::Prepared>(prepare_of(model, kSecond, false), share(equal));
  rank.switch_to(kSecond);
  const auto plan = plan_of(model, rank.engine);
  for (std::size_t t = 0; t < plan.tensors().size(); ++t)
    EXPECT_EQ(tensor_digest(plan.tensors()[t].seed, rank.engine.description.tensors[t].destination),
              reload::expected_digest(plan.tensors()[t], equal.data()));
}

TEST(SameMemoryOfARank, TheSameOutOfTheBuffersOfASeparateDevice) {
  const Model model = tied_model();
  SeparateRank rank(model, TakeMode::kPieces);
  tie(rank);
  rank.attach(model);
  const auto load = [&](Version version, const SharedArena& arena) {
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, version)).failure, "");
    rank.peer.send(control::Load{.version = version});
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
      rank.give(model, arena, bucket);
    return rank.peer.expect<control::Loaded>().failure;
  };
  EXPECT_THAT(load(kFirst, model.arena(kFirst)), HasSubstr("have the same memory in this engine"));
  EXPECT_EQ(load(kSecond, arena_with_equal_values(model, rank.engine, kSecond)), "");
}

}  // namespace
}  // namespace wsync::engine::test
