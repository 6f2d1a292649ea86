// Engines that hold tensors on a GPU in another dtype than the version has. Over the emulated
// driver (tests/emulated_cuda).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/gpu_rank.h"
#include "tests/contract/engine_link/held_as.h"
#include "tests/support/bytes.h"

namespace wsync::engine::test {
namespace {

using testing::HasSubstr;

struct CastingRank : GpuRank {
  CastingRank(const Model& from, const CastPair& pair, std::uint32_t rank, std::uint32_t world)
      : GpuRank(from, rank, world) {
    hold(engine, pair.from, pair.to);
    place_weights();
  }
  [[nodiscard]] device::Region region(std::size_t tensor) const {
    const auto destination = engine.description.tensors[tensor].destination;
    return {.memory = weights.get(),
            .offset = static_cast<std::uint64_t>(destination.data() - weights->address()),
            .bytes = destination.size()};
  }
  void finish(device::Stream& stream) const {
    const auto event = device->create_event().value();
    ASSERT_TRUE(stream.record(*event));
    ASSERT_TRUE(event->wait(soon()));
  }
  void expect_converted(const SharedArena& arena) const {
    const auto plan = plan_of(model, engine);
    const auto stream = device->create_stream(device::StreamRole::kReload).value();
    for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
      const RankTensor& tensor = engine.description.tensors[t];
      std::vector<std::byte> held(tensor.destination.size());
      ASSERT_TRUE(stream->copy_to_host(held, region(t)));
      ASSERT_NO_FATAL_FAILURE(finish(*stream));
      EXPECT_TRUE(same_bytes(held, converted(plan.tensors()[t], tensor, arena)))
          << tensor.description.name;
    }
  }
};

TEST(CastsOnGpu, TwoVersionsWithTheSumsOfTheVersion) {
  const Model model = with_odd_rows();
  GpuSidecar sidecar(model.plan.largest_bucket());
  for (const CastPair& pair : kCastPairs)
    for (const std::uint32_t r : {0U, 1U}) {
      CastingRank rank(model, pair, r, 2);
      rank.start();
      (void)rank.peer.accept();
      rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
      for (const Version version : {kFirst, kSecond}) {
        const SharedArena arena = model.arena(version);
        rank.load(sidecar, arena, version);  // compares the sums
        rank.commit(version);
        rank.expect_converted(arena);
      }
    }
}

TEST(CastsOnGpu, VerifyComparesWhatWasWidenedAndNothingElse) {
  const Model model = with_odd_rows();
  GpuSidecar sidecar(model.plan.largest_bucket());
  const SharedArena arena = model.arena(kFirst);
  for (const CastPair& pair : kCastPairs) {
    CastingRank rank(model, pair, 0, 1);
    rank.start();
    (void)rank.peer.accept();
    rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
    rank.load(sidecar, arena, kFirst);
    rank.commit(kFirst);
    auto digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
    const bool is_exact = pair.to == DType::kF32;
    EXPECT_EQ(digests.is_unreadable, !is_exact);
    if (!is_exact) {
      EXPECT_THAT(digests.failure, HasSubstr("cannot be read back"));
      EXPECT_FALSE(digests.tensors.empty()) << "the others are compared";
    }
    const auto plan = plan_of(model, rank.engine);
    const auto differing = [&] {
      std::vector<std::string> names;
      for (const control::HeldTensor& held : digests.tensors)
        for (std::size_t t = 0; t < plan.tensors().size(); ++t)
          if (rank.engine.description.tensors[t].description.name == held.name &&
              held.digest != reload::expected_digest(plan.tensors()[t], arena.data()))
            names.push_back(held.name);
      return names;
    };
    EXPECT_THAT(differing(), testing::IsEmpty());
    if (!is_exact) continue;
    EXPECT_EQ(digests.tensors.size(), plan.tensors().size());
    // The lowest bit of an F32, which no BF16 sets.
    const auto stream = rank.device->create_stream(device::StreamRole::kReload).value();
    device::Region first = rank.region(0);
    first.bytes = 4;
    std::vector<std::byte> bytes(4);
    ASSERT_TRUE(stream->copy_to_host(bytes, first));
    ASSERT_NO_FATAL_FAILURE(rank.finish(*stream));
    bytes[0] ^= std::byte{1};
    ASSERT_TRUE(stream->copy_to_device(first, bytes));
    ASSERT_NO_FATAL_FAILURE(rank.finish(*stream));
    digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
    EXPECT_THAT(differing(),
                testing::ElementsAre(rank.engine.description.tensors[0].description.name));
  }
}

}  // namespace
}  // namespace wsync::engine::test
