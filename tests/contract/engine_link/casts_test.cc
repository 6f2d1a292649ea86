// Ranks that hold tensors in another dtype than the version has: the engine library and its C API
// against a sidecar's end with real frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <wsync/engine.h>

#include "tests/contract/engine_link/held_as.h"
#include "tests/contract/engine_link/separate_rank.h"
#include "tests/support/bytes.h"

namespace wsync::engine::test {
namespace {

using control::TakeMode;
using testing::HasSubstr;

void expect_converted(const Model& model, const FakeEngine& engine, const SharedArena& arena,
                      const std::vector<SplitSum>& sums) {
  const auto plan = plan_of(model, engine);
  ASSERT_EQ(sums.size(), plan.tensors().size());
  for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
    const RankTensor& tensor = engine.description.tensors[t];
    EXPECT_TRUE(same_bytes(engine.memory[t], converted(plan.tensors()[t], tensor, arena)))
        << tensor.description.name;
    EXPECT_EQ(sums[t], reload::expected_sum(plan.tensors()[t], arena.data()))
        << "the sidecar would find that it is not " << tensor.description.name;
  }
}

TEST(Casts, OutOfAnArenaWithTheSumsOfTheVersion) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  for (const auto& [from, to] : kCastPairs) {
    Rank rank(model, TakeMode::kPieces, 1, 2);
    hold(rank.engine, from, to);
    rank.attach_unified();
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure,
              "");
    const auto loaded =
        rank.peer.ask<control::Loaded>(control::Load{.version = kFirst, .copy_threads = 2});
    EXPECT_EQ(loaded.failure, "");
    EXPECT_EQ(loaded.bytes, plan_of(model, rank.engine).bytes()) << "bytes of the version";
    expect_converted(model, rank.engine, arena, loaded.sums);
  }
}

TEST(Casts, OutOfTheBuffersOfASeparateDeviceWithTheSumsOfTheVersion) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  for (const auto& [from, to] : kCastPairs) {
    SeparateRank rank(model, TakeMode::kPieces, 1, 2);
    hold(rank.engine, from, to);
    rank.attach(model);
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst)).failure, "");
    rank.peer.send(control::Load{.version = kFirst});
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
      EXPECT_EQ(rank.give(model, arena, bucket).failure, "");
    const auto loaded = rank.peer.expect<control::Loaded>();
    EXPECT_EQ(loaded.failure, "");
    expect_converted(model, rank.engine, arena, loaded.sums);
  }
}

TEST(Casts, VerifyComparesWhatWasWidenedAndNothingElse) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  for (const auto& [from, to] : kCastPairs) {
    Rank rank(model, TakeMode::kPieces);
    hold(rank.engine, from, to);
    rank.attach_unified();
    rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
    rank.switch_to(kFirst);
    auto digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
    if (to != DType::kF32) {
      EXPECT_THAT(digests.failure, HasSubstr("cannot be read back"))
          << "a tensor that has lost bits is called equal";
      EXPECT_TRUE(digests.is_unreadable);
      // The others are still compared: those of this dtype cannot be, all others can.
      for (const control::HeldTensor& held : digests.tensors) {
        const auto of_rank =
            std::ranges::find(rank.engine.description.tensors, held.name,
                              [](const RankTensor& tensor) { return tensor.description.name; });
        EXPECT_NE(of_rank->description.dtype, from) << held.name;
      }
      const auto kept = std::ranges::count_if(
          rank.engine.description.tensors,
          [&](const RankTensor& tensor) { return tensor.description.dtype != from; });
      EXPECT_EQ(static_cast<std::ptrdiff_t>(digests.tensors.size()), kept);
      continue;
    }
    const auto plan = plan_of(model, rank.engine);
    const auto differing = [&] {
      std::vector<std::string> names;
      for (std::size_t t = 0; t < digests.tensors.size(); ++t) {
        EXPECT_EQ(digests.tensors[t].bytes, plan.tensors()[t].shard.bytes());
        if (digests.tensors[t].digest != reload::expected_digest(plan.tensors()[t], arena.data()))
          names.push_back(digests.tensors[t].name);
      }
      return names;
    };
    EXPECT_EQ(digests.tensors.size(), plan.tensors().size());
    EXPECT_THAT(differing(), testing::IsEmpty());
    rank.engine.memory[0][4096] ^= std::byte{1};  // the lowest bit of an F32
    digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
    EXPECT_THAT(differing(), testing::ElementsAre("model.embed_tokens.weight"));
  }
}

TEST(Casts, ACastOfWholeTensorsIsRefusedWhenTheLinkIsCreated) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kAdopt);
  rank.engine.description.tensors[3].held_as = DType::kF32;
  const auto refused = EngineLink::create(rank.engine.description, rank.peer.path(), rank.engine);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("tensor model.layers.0.self_attn.q_proj.weight "
                                                   "is BF16 in the version and F32 in"));
}

// ---- the C API ----

struct CEngine {
  explicit CEngine(const std::string& path, wsync_take take = WSYNC_TAKE_PIECES,
                   wsync_device weights_on = WSYNC_DEVICE_HOST) {
    wsync_engine_options options{};
    options.socket_path = path.c_str();
    options.replica = "r0";
    options.world_size = 1;
    options.leader = 1;
    options.take = take;
    options.weights_on = weights_on;
    options.user = this;
    options.callbacks.pause = [](void*, const wsync_pause*) { return 0; };
    options.callbacks.resume = [](void*) { return 0; };
    options.callbacks.commit = [](void*, wsync_version) { return 0; };
    options.callbacks.load_layer = [](void* user, wsync_version, std::uint32_t,
                                      const wsync_layer_tensor* tensors, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i)
        static_cast<CEngine*>(user)->layers.emplace_back(tensors[i].data, tensors[i].bytes);
      return 0;
    };
    engine = wsync_engine_create(&options);
  }
  ~CEngine() { wsync_engine_destroy(engine); }
  // Empty: it was taken.
  std::string add(const char* dtype, const char* destination_dtype, void* destination) {
    const std::uint64_t shape[2] = {512, 64};
    wsync_tensor tensor{};
    tensor.name = "model.w";
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.shape_count = 2;
    tensor.destination = destination;
    tensor.destination_dtype = destination_dtype;
    return wsync_engine_add_tensor(engine, &tensor) == 0 ? "" : wsync_engine_error(engine);
  }
  wsync_engine* engine = nullptr;
  std::vector<std::pair<const void*, std::uint64_t>> layers;
};

TEST(CastsCApi, ABf16TensorInF32Memory) {
  const Model model = Model::of({{.name = "model.w", .dtype = DType::kBF16, .shape = {512, 64}}});
  SidecarPeer peer;
  CEngine c(peer.path());
  std::vector<float> weights(512 * 64 + 1, 7);
  ASSERT_EQ(c.add("BF16", "F32", weights.data()), "");
  ASSERT_EQ(wsync_engine_attach(c.engine), 0) << wsync_engine_error(c.engine);
  ASSERT_EQ(wsync_engine_start(c.engine), 0);
  const auto hello = peer.accept();
  ASSERT_EQ(hello.tensors.size(), 1U);
  EXPECT_EQ(hello.tensors[0].dtype, DType::kBF16) << "the sidecar compares with the version";
  peer.welcome_unified();
  const SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = kFirst}).bytes, 512U * 64 * 2);
  EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  for (std::size_t i = 0; i < 512 * 64; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &weights[i], sizeof bits);
    std::uint16_t half = 0;
    std::memcpy(&half, arena.data().data() + 2 * i, sizeof half);
    ASSERT_EQ(bits, std::uint32_t{half} << 16U) << i;
  }
  EXPECT_EQ(weights.back(), 7) << "written behind its end";
  EXPECT_THAT(c.layers, testing::ElementsAre(testing::Pair(static_cast<const void*>(weights.data()),
                                                           512U * 64 * 4)));
  wsync_tensor_info info{};
  ASSERT_EQ(wsync_engine_tensor_info(c.engine, {.epoch = 1, .step = 1}, 0, &info), 0);
  EXPECT_STREQ(info.dtype, "BF16");
  EXPECT_EQ(info.bytes, 512U * 64 * 2);
}

TEST(CastsCApi, WhatIsNotPossibleIsRefusedWithTheTensor) {
  std::vector<float> memory(512 * 64);
  const std::string path = "/nowhere/engine.sock";
  CEngine pieces(path);
  EXPECT_EQ(pieces.add("BF16", "bf16", memory.data()),
            "tensor model.w: destination_dtype bf16 is unknown; use the names of safetensors");
  for (const auto& [from, to] : {std::pair{"F8_E4M3", "F32"}, {"BF16", "I32"}, {"I32", "F32"}})
    EXPECT_THAT(pieces.add(from, to, memory.data()),
                HasSubstr(std::string("tensor model.w is ") + from + " in the version and " + to +
                          " in the engine's memory, but only F32, F16 and BF16 can be"));
  EXPECT_EQ(pieces.add("I32", "I32", memory.data()), "");  // no conversion
  CEngine adopting(path, WSYNC_TAKE_ADOPT);
  EXPECT_THAT(adopting.add("BF16", "F32", nullptr),
              HasSubstr("possible only for a rank that takes pieces"));
  CEngine on_gpu(path, WSYNC_TAKE_PIECES, WSYNC_DEVICE_CUDA);
  EXPECT_THAT(on_gpu.add("BF16", "F32", reinterpret_cast<std::byte*>(memory.data()) + 2),
              testing::AllOf(HasSubstr("tensor model.w is BF16 in the version and F32 in"),
                             HasSubstr("is no multiple of an element's 4 bytes")));
  EXPECT_EQ(on_gpu.add("BF16", "F32", memory.data()), "");
}

}  // namespace
}  // namespace wsync::engine::test
