// What a message or a tick of the clock costs a coordinator does not depend on how many sidecars it
// has. The cost is the number of members that are looked at (Roster::visits()).
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "shared/base/format.h"
#include "tests/unit/coordinator/coordinator_fleet.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::coordinator {
namespace {

// How many members are looked at for each message of a round of `sidecars`, heartbeats included.
double visits_per_message(unsigned sidecars, CommitPolicy commit) {
  Fleet fleet({.min_sidecars = sidecars, .min_replicas = sidecars, .commit = commit});
  std::vector<std::string> names;
  for (unsigned i = 0; i < sidecars; ++i) names.push_back(fmt::format("s{:04}", i));
  fleet.check_all = false;  // a check looks at all members
  fleet.join_all(names);
  const std::uint64_t before = fleet.coordinator.roster().visits();
  const auto beat = [&](const std::string& name) {
    fleet.from(name, control::Heartbeat{.replicas = Fleet::hello(name).replicas});
    (void)fleet.coordinator.next_wake();
  };
  fleet.publish();
  // The order of the answers is not that of the chain.
  for (const auto& name : names) beat(name);
  for (auto name = names.rbegin(); name != names.rend(); ++name) fleet.accept(*name);
  for (const auto& name : names) beat(name);
  for (auto name = names.rbegin(); name != names.rend(); ++name) fleet.staged(*name);
  for (const auto& name : names) beat(name);
  for (auto name = names.rbegin(); name != names.rend(); ++name) fleet.switched(*name);
  EXPECT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(!fleet.rounds.empty() && fleet.rounds.front().reply.ok);
  const Result<> holds = fleet.coordinator.invariants();
  EXPECT_TRUE(holds.has_value()) << holds.error().message();
  return static_cast<double>(fleet.coordinator.roster().visits() - before) / (7.0 * sidecars);
}

TEST(Coordinator, AMessageCostsTheSameForAnyNumberOfSidecars) {
  for (const CommitPolicy& commit :
       {CommitPolicy{}, CommitPolicy{.rule = CommitRule::kQuorum, .quorum = 1}}) {
    const double few = visits_per_message(10, commit);
    const double many = visits_per_message(320, commit);
    EXPECT_LE(many, 1.1 * few);
    EXPECT_LE(many, 12.0);
  }
}

TEST(Coordinator, AClockTickLooksAtTheMembersThatNeedSomething) {
  Fleet fleet({.min_sidecars = 200});
  std::vector<std::string> names;
  for (unsigned i = 0; i < 200; ++i) names.push_back(fmt::format("s{:04}", i));
  fleet.check_all = false;
  fleet.join_all(names);
  fleet.publish();
  for (const auto& name : names) fleet.accept(name);
  for (const auto& name : names) fleet.staged(name);
  // One of them does not confirm the decision, which is sent to it again.
  for (const auto& name : names)
    if (name != "s0100") fleet.switched(name);
  const std::uint64_t before = fleet.coordinator.roster().visits();
  fleet.wake();
  EXPECT_EQ(fleet.count<control::Decide>("s0100"), 2U);
  EXPECT_LE(fleet.coordinator.roster().visits() - before, 10U);
}

TEST(Coordinator, ForgettingOneLooksAtThatOne) {
  Fleet fleet({.min_sidecars = 200, .forget_after = std::chrono::minutes(10)});
  std::vector<std::string> names;
  for (unsigned i = 0; i < 200; ++i) names.push_back(fmt::format("s{:04}", i));
  fleet.check_all = false;
  fleet.join_all(names);
  for (unsigned i = 0; i < 100; ++i) {
    fleet.now = fleet.now + std::chrono::milliseconds(1);
    fleet.step(PeerLost{.peer = names[i], .reason = "silence"});
  }
  fleet.wake();  // once after the claim, the members that have not connected
  for (unsigned i = 0; i < 100; ++i) {
    const std::uint64_t before = fleet.coordinator.roster().visits();
    fleet.wake();
    EXPECT_EQ(fleet.forgotten.size(), i + 1);
    EXPECT_LE(fleet.coordinator.roster().visits() - before, 12U);
  }
}

}  // namespace
}  // namespace wsync::coordinator
