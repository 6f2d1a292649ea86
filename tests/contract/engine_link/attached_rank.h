// Rank: a fake engine, its link, and the sidecar's end of it.
#pragma once

#include <gtest/gtest.h>
#include <memory>

#include "inference_side/engine_link/engine_link.h"
#include "tests/contract/engine_link/sidecar_peer.h"

namespace wsync::engine::test {

struct Rank {
  Rank(const Model& model, control::TakeMode take, std::uint32_t rank = 0, std::uint32_t world = 1)
      : engine(model, take, rank, world) {
    peer.envelope.rank = rank;
  }
  void start() {
    link = EngineLink::create(engine.description, peer.path(), engine).value();
    engine.on_pause = [this]() -> Result<> {
      link->report_paused(7);
      return {};
    };
    EXPECT_TRUE(link->start().has_value());
  }
  void attach_unified() {
    start();
    peer.accept();
    peer.welcome_unified();
  }
  // Load and Commit of a version that is prepared.
  void switch_to(Version version) {
    EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = version}).failure, "");
    EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = version}).failure, "");
  }
  SidecarPeer peer;
  FakeEngine engine;
  std::unique_ptr<EngineLink> link;  // destroyed first
};

inline void expect_holds(const Model& model, const FakeEngine& engine, const SharedArena& arena) {
  const auto plan = plan_of(model, engine);
  for (std::size_t t = 0; t < plan.tensors().size(); ++t)
    EXPECT_EQ(tensor_digest(plan.tensors()[t].seed, engine.held(t)),
              reload::expected_digest(plan.tensors()[t], arena.data()))
        << engine.description.tensors[t].description.name;
}

}  // namespace wsync::engine::test
