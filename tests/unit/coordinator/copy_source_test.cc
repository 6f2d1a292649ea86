// Sidecars that come later take a version from others that hold it.
#include "trainer_side/coordinator/copy_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using control::Announce;
using control::Decide;
using control::RelayReady;
using control::RelayVersion;
using control::Stage;
using control::Staged;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const Version kFirst{1, 1};

// Each sidecar is on a host of its own, unless a test says otherwise.
class LateSidecar : public testing::Test {
 protected:
  static CoordinatorOptions options() { return {.publisher_attaches = true}; }
  static control::Hello hello(const std::string& name, std::vector<Version> staged = {}) {
    control::Hello hello = Fleet::hello(name, std::move(staged));
    hello.boot_id = "host of " + name;
    return hello;
  }
  static std::string address_of(const std::string& name) {
    return control::find_transport(hello(name).transports, "tcp")->address;
  }
  // The source of the last Stage to this sidecar, or nothing.
  std::string source(const std::string& name) {
    const auto stage = fleet.last<Stage>(name);
    return stage ? stage->second.source : std::string();
  }
  LateSidecar() : fleet(options()) { fleet.coordinator.serve_by({}); }
  void attach() {
    fleet.step(
        PublisherAttached{.transports = {{"memfd", "/run/host.sock"}, {"tcp", "tcp://127.0.0.1:1"}},
                          .secret = std::nullopt,
                          .boot_id = "boot",
                          .process = 1});
  }
  void lose() { fleet.step(PublisherLost{.reason = "the trainer is gone"}); }
  // These serve 1.1, which they have received as a copy of the trainer or have mapped.
  void serve(const std::vector<std::string>& names, bool is_mapped = false) {
    attach();
    for (const std::string& name : names) {
      control::Hello said = hello(name);
      if (is_mapped) said.boot_id = "boot";
      fleet.join(name, said);
      fleet.from(name, said);
    }
    fleet.full_round(names);
    ASSERT_EQ(fleet.coordinator.target(), kFirst);
    for (const std::string& name : names) {
      control::Heartbeat beat{.sequence = 1, .target = kFirst, .staged = {kFirst}};
      beat.replicas = hello(name).replicas;
      fleet.from(name, beat);
    }
  }
  static RelayReady ready(std::string failure = {}) {
    const PublishRequested snapshot = Fleet::snapshot(1, kFirst);
    return {.version = kFirst,
            .layout_digest = snapshot.layout_digest,
            .layout = snapshot.layout,
            .content_digest = snapshot.content_digest,
            .bucket_bytes = snapshot.bucket_bytes,
            .arena_bytes = snapshot.arena_bytes,
            .failure = std::move(failure)};
  }
  // Sidecar a, which serves 1.1, and then c, which holds nothing, join the next coordinator.
  void join_next(Fleet& next) {
    const control::Fence before = fleet.coordinator.fence();
    control::Hello said = hello("a", {kFirst});
    said.target = kFirst;
    said.decision = {.fence = before, .number = 1};
    said.target_content = Fleet::snapshot(1, kFirst).content_digest;
    next.from_fence("a", before, said);
    next.from("a", said);
    next.join("c", hello("c"));
  }
  void join(const std::string& name) { fleet.join(name, hello(name)); }
  void lose_source(const std::string& name) {
    const auto announce = fleet.last<Announce>(name);
    fleet.from(name,
               Staged{.version = kFirst, .failure = "the source hung up", .source_lost = true},
               announce->first.round);
  }

  Fleet fleet;
};

TEST_F(LateSidecar, TakesTheTargetOfOneThatHasReceivedItWhenTheTrainerIsGone) {
  serve({"a"});
  lose();
  join("c");
  ASSERT_EQ(fleet.count<Announce>("c"), 1U);
  fleet.accept("c");
  EXPECT_EQ(fleet.count<RelayVersion>("a"), 0U) << "what came as a copy is passed on anyway";
  EXPECT_EQ(source("c"), address_of("a"));
  fleet.staged("c");
  EXPECT_EQ(fleet.last<Decide>("c")->second.target, kFirst);
}

TEST_F(LateSidecar, OneThatHasMappedTheVersionIsAskedToPassItOn) {
  serve({"a"}, true);
  lose();
  join("c");
  fleet.accept("c");
  ASSERT_EQ(fleet.count<RelayVersion>("a"), 1U);
  EXPECT_EQ(fleet.last<RelayVersion>("a")->second.version, kFirst);
  EXPECT_FALSE(fleet.last<RelayVersion>("a")->second.with_layout);
  EXPECT_EQ(fleet.count<Stage>("c"), 0U) << "it may not be offered yet";
  fleet.from("a", ready());
  EXPECT_EQ(source("c"), address_of("a"));
  // The next one need not ask.
  fleet.staged("c");
  join("d");
  fleet.accept("d");
  EXPECT_EQ(fleet.count<RelayVersion>("a"), 1U);
  EXPECT_THAT(source("d"), testing::AnyOf(address_of("a"), address_of("c")));
}

// It was asked for the version before. Its loss does not begin the transfer of the next one.
TEST_F(LateSidecar, WhoIsAnnouncedTheNextVersionWaitsForNoRelayOfTheOneBefore) {
  serve({"a", "b", "d"}, true);
  fleet.join("c", hello("c"));
  fleet.accept("c");
  const std::string asked = fleet.count<RelayVersion>("a") == 1   ? "a"
                            : fleet.count<RelayVersion>("b") == 1 ? "b"
                                                                  : "d";
  ASSERT_EQ(fleet.count<RelayVersion>(asked), 1U);
  fleet.publish(2);
  ASSERT_EQ(fleet.last<Announce>("c")->second.version, (Version{1, 2}));
  fleet.accept("c");
  fleet.step(PeerLost{.peer = asked});
  EXPECT_EQ(fleet.count<Stage>("c"), 0U) << "others have not accepted it";
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing);
}

TEST_F(LateSidecar, ACoordinatorThatKnowsNothingOfTheTargetAsksWhoHoldsIt) {
  serve({"a"});
  Fleet next({.record = fleet.record});  // of a trainer that has just started
  join_next(next);
  ASSERT_EQ(next.coordinator.target(), kFirst);
  ASSERT_EQ(next.count<RelayVersion>("a"), 1U);
  EXPECT_TRUE(next.last<RelayVersion>("a")->second.with_layout);
  EXPECT_EQ(next.count<Announce>("c"), 0U);
  next.from("a", ready());
  ASSERT_EQ(next.count<Announce>("c"), 1U);
  const Announce announce = next.last<Announce>("c")->second;
  EXPECT_EQ(announce.version, kFirst);
  EXPECT_EQ(announce.content_digest, ready().content_digest);
  EXPECT_EQ(announce.layout, ready().layout);
  next.accept("c");
  EXPECT_EQ(next.last<Stage>("c")->second.source, address_of("a"));
  EXPECT_FALSE(next.coordinator.holds(kFirst)) << "the trainer has no such version";
}

TEST_F(LateSidecar, OtherBytesUnderTheNameOfTheTargetGoToNobody) {
  serve({"a"});
  Fleet next({.record = fleet.record});
  join_next(next);
  RelayReady other = ready();
  other.content_digest = {9, 9};
  next.from("a", other);
  EXPECT_EQ(next.count<Announce>("c"), 0U);
  ASSERT_THAT(next.incidents, testing::Not(IsEmpty()));
  EXPECT_THAT(next.incidents.back(), HasSubstr("no other sidecar gets it from there"));
}

TEST_F(LateSidecar, TheTrainerSendsNothingThatAnotherSidecarCanSend) {
  serve({"a", "b"});
  join("c");
  fleet.accept("c");
  EXPECT_THAT(source("c"), testing::AnyOf(address_of("a"), address_of("b")));
}

TEST_F(LateSidecar, OnTheTrainersHostItMapsTheTrainersMemory) {
  serve({"a", "b"});
  control::Hello near = hello("c");
  near.boot_id = "boot";
  fleet.join("c", near);
  fleet.accept("c");
  EXPECT_EQ(source("c"), "/run/host.sock");
}

TEST_F(LateSidecar, EachTakesTheVersionFromWhomTheFewestFetch) {
  serve({"a", "b"});
  lose();
  for (const char* name : {"c", "d"}) {
    join(name);
    fleet.accept(name);
  }
  EXPECT_NE(source("c"), source("d"));
  // Those that are still receiving pass on what they have to those that came after them.
  for (const char* name : {"e", "f"}) {
    join(name);
    fleet.accept(name);
  }
  const std::set<std::string> sources = {source("c"), source("d"), source("e"), source("f")};
  EXPECT_THAT(sources, SizeIs(4));
}

TEST_F(LateSidecar, NoneWaitsForOneThatWaitsForIt) {
  serve({"a"});
  lose();
  for (const char* name : {"c", "d"}) {
    join(name);
    fleet.accept(name);
  }
  ASSERT_EQ(source("c"), address_of("a"));
  ASSERT_EQ(source("d"), address_of("c"));
  // c has lost its source, and d, which reads from c, has nothing that c lacks.
  lose_source("c");
  EXPECT_EQ(source("c"), address_of("a"));
}

TEST_F(LateSidecar, TheOnlySourceIsTriedAgainAndWhatHasArrivedIsKept) {
  serve({"a"});
  lose();
  join("c");
  fleet.accept("c");
  lose_source("c");
  EXPECT_EQ(fleet.count<Stage>("c"), 2U) << "from there, without another Announce";
  EXPECT_EQ(fleet.count<Announce>("c"), 1U);
  for (int i = 0; i < 10; ++i) lose_source("c");
  EXPECT_EQ(fleet.count<Stage>("c"), 8U) << "not for ever";
}

TEST_F(LateSidecar, OneOnItsOwnHostIsPreferred) {
  serve({"a", "b"});
  lose();
  for (const char* name : {"c", "d", "e"}) {
    control::Hello said = hello(name);
    said.boot_id = "host of b";
    fleet.join(name, said);
    fleet.accept(name);
    EXPECT_NE(source(name), address_of("a")) << name;
  }
}

TEST_F(LateSidecar, AnotherSourceIsNamedWhenOneIsLost) {
  serve({"a", "b"});
  lose();
  join("c");
  fleet.accept("c");
  const std::string first = source("c") == address_of("a") ? "a" : "b";
  const std::string second = first == "a" ? "b" : "a";
  fleet.step(PeerLost{.peer = first, .reason = "silent"});
  EXPECT_EQ(source("c"), address_of(second));
  fleet.staged("c");
  EXPECT_EQ(fleet.count<Decide>("c"), 1U);
}

TEST_F(LateSidecar, AnotherOneIsAskedWhenOneRefusesOrIsLost) {
  serve({"a", "b"}, true);
  lose();
  join("c");
  fleet.accept("c");
  const std::string first = fleet.count<RelayVersion>("a") == 1 ? "a" : "b";
  const std::string second = first == "a" ? "b" : "a";
  ASSERT_EQ(fleet.count<RelayVersion>(second), 0U);
  fleet.from(first, ready("it is being changed"));
  ASSERT_EQ(fleet.count<RelayVersion>(second), 1U);
  fleet.step(PeerLost{.peer = second, .reason = "silent"});
  // Nobody is left: the delivery fails, and is tried again.
  EXPECT_EQ(fleet.count<Stage>("c"), 0U);
  fleet.from(first, ready());
  EXPECT_EQ(fleet.count<Stage>("c"), 0U) << "an answer that is not awaited any more";
}

TEST_F(LateSidecar, OneThatDoesNotAnswerIsNotAwaitedForEver) {
  serve({"a", "b"}, true);
  lose();
  join("c");
  fleet.accept("c");
  const std::string first = fleet.count<RelayVersion>("a") == 1 ? "a" : "b";
  const std::string second = first == "a" ? "b" : "a";
  while (fleet.count<Announce>("c") < 2U) fleet.wake();
  fleet.accept("c");
  EXPECT_EQ(fleet.count<RelayVersion>(second), 1U);
  fleet.from(second, ready());
  EXPECT_EQ(source("c"), address_of(second));
}

TEST_F(LateSidecar, ASourceThatHasWithdrawnTheVersionIsAskedAgain) {
  serve({"a"}, true);
  lose();
  join("c");
  fleet.accept("c");
  fleet.from("a", ready());
  ASSERT_EQ(source("c"), address_of("a"));
  lose_source("c");
  EXPECT_EQ(fleet.count<RelayVersion>("a"), 2U);
  EXPECT_EQ(fleet.count<Stage>("c"), 1U);
  fleet.from("a", ready());
  EXPECT_EQ(fleet.count<Stage>("c"), 2U);
}

TEST_F(LateSidecar, OneThatRefusesIsAskedLessAndLessOften) {
  serve({"a"}, true);
  lose();
  join("c");
  std::size_t answered = 0;
  for (std::uint64_t i = 0; i < 600; ++i) {
    if (fleet.coordinator.roster().find("c")->delivery.state() == DeliveryState::kAnnounced)
      fleet.accept("c");
    if (fleet.count<RelayVersion>("a") > answered) {
      ++answered;
      fleet.from("a", ready("it is being changed"));
    }
    fleet.now = fleet.now + std::chrono::milliseconds(500);
    fleet.step(CoordinatorTick{});
    fleet.from("c", control::Heartbeat{.sequence = i + 1});
  }
  EXPECT_GE(answered, 5U);
  EXPECT_LE(answered, 12U) << "in five minutes";
  EXPECT_LE(fleet.count<Announce>("c"), answered + 1);
}

TEST_F(LateSidecar, WhatItReceivesGoesOnWhenATrainerAttaches) {
  serve({"a"}, true);
  lose();
  for (const char* name : {"c", "d"}) {
    join(name);
    fleet.accept(name);
  }
  fleet.from("a", ready());
  ASSERT_EQ(fleet.count<Stage>("c"), 1U);
  attach();
  for (const char* name : {"c", "d"}) fleet.from(name, hello(name));
  control::Hello said = hello("a", {kFirst});
  said.boot_id = "boot";
  said.target = kFirst;
  said.decision = {.fence = fleet.coordinator.fence(), .number = 1};
  fleet.from("a", said);
  EXPECT_EQ(fleet.count<Announce>("c"), 1U);
  EXPECT_EQ(fleet.count<Stage>("c"), 1U);
  fleet.staged("c");
  EXPECT_EQ(fleet.count<Decide>("c"), 1U);
  // And another process does begin anew.
  fleet.restarted("d2", hello("d"));
  EXPECT_EQ(fleet.coordinator.roster().find("d")->delivery.state(), DeliveryState::kAnnounced);
}

TEST_F(LateSidecar, TheTrainerSendsWhatTheOnlyOtherSourceSpoils) {
  serve({"a"});
  join("c");
  fleet.accept("c");
  ASSERT_EQ(source("c"), address_of("a"));
  fleet.from("c", Staged{.version = kFirst, .failure = "a bucket is damaged"},
             fleet.last<Announce>("c")->first.round);
  while (fleet.count<Announce>("c") < 2U) fleet.wake();
  fleet.accept("c");
  EXPECT_EQ(source("c"), "tcp://127.0.0.1:1");
}

// As that of a container that was replaced by another one.
TEST_F(LateSidecar, TheKeyIsThatOfTheSidecarThatIsThere) {
  const auto key_of = [&](const transport::PairSecret& secret) {
    const transport::PairKey key =
        transport::derive_pair_key(secret, {.fence = {.epoch = fleet.coordinator.fence().epoch,
                                                      .run_id = fleet.coordinator.fence().run_id},
                                            .receiver = "c"});
    return Bytes(key.secret.begin(), key.secret.end());
  };
  const auto with_tls = [](const std::string& name, const transport::PairSecret& secret,
                           const std::string& address) {
    control::Hello said = hello(name);
    said.transports = {{"tls", address}};
    said.relay_secret = Bytes(secret.begin(), secret.end());
    return said;
  };
  const auto dead = transport::make_pair_secret();
  const auto live = transport::make_pair_secret();
  fleet.step(PublisherAttached{.transports = {{"tls", "tcp://127.0.0.1:1"}},
                               .secret = transport::make_pair_secret(),
                               .boot_id = "boot",
                               .process = 1});
  for (const auto& [name, secret] : {std::pair("b", dead), std::pair("a", live)}) {
    fleet.join(name, with_tls(name, secret, "tcp://127.0.0.1:70"));
    if (std::string(name) == "b")
      fleet.step(PeerLost{.peer = "b", .reason = "its container was replaced"});
  }
  fleet.full_round({"a"});
  fleet.from("a", control::Heartbeat{.sequence = 1, .target = kFirst, .staged = {kFirst}});
  lose();
  fleet.join("c", with_tls("c", transport::make_pair_secret(), "tcp://127.0.0.1:71"));
  fleet.accept("c");
  EXPECT_EQ(fleet.last<Stage>("c")->second.key, key_of(live));
  EXPECT_NE(fleet.last<Stage>("c")->second.key, key_of(dead));
}

// What each one costs may grow with their number, and not with its square.
TEST_F(LateSidecar, ManyAtOnceCostWhatTheirNumberSays) {
  const auto visits_of = [](std::size_t count) {
    Fleet many(options());
    many.coordinator.serve_by({});
    many.check_all = false;
    many.step(PublisherAttached{.transports = {{"memfd", "/run/host.sock"}},
                                .secret = std::nullopt,
                                .boot_id = "boot",
                                .process = 1});
    const auto named = [](char kind, std::size_t i) { return kind + std::to_string(1000 + i); };
    const auto said = [&](const std::string& name, const std::string& host) {
      control::Hello hello = Fleet::hello(name);
      hello.boot_id = host;
      hello.transports = {{"memfd", ""}, {"tcp", "tcp://10.0.0.1:" + name.substr(1)}};
      return hello;
    };
    std::vector<std::string> holders;
    for (std::size_t i = 0; i < count; ++i) holders.push_back(named('h', i));
    for (const std::string& name : holders) many.join(name, said(name, "boot"));
    many.full_round(holders);
    for (const std::string& name : holders)
      many.from(name, control::Heartbeat{.sequence = 1, .target = kFirst, .staged = {kFirst}});
    many.step(PublisherLost{.reason = "gone"});
    for (std::size_t i = 0; i < count; ++i) many.join(named('l', i), said(named('l', i), "other"));
    std::size_t seen = 0;
    const std::uint64_t before = many.coordinator.roster().visits();
    for (std::size_t i = 0; i < count; ++i) many.accept(named('l', i));
    for (; seen < many.sends.size(); ++seen) {
      const SendTo sent = many.sends[seen];
      if (std::holds_alternative<RelayVersion>(sent.message)) many.from(sent.peer, ready());
    }
    EXPECT_EQ(std::ranges::count_if(
                  many.sends,
                  [](const SendTo& sent) { return std::holds_alternative<Stage>(sent.message); }),
              2 * static_cast<std::ptrdiff_t>(count));
    return (many.coordinator.roster().visits() - before) / count;
  };
  EXPECT_LT(visits_of(80), 3 * visits_of(40));
}

TEST_F(LateSidecar, AfterWrongBytesItPrefersAnotherSource) {
  serve({"a", "b"});
  lose();
  join("c");
  std::vector<std::string> sources;
  for (std::size_t attempt = 1; attempt <= 4; ++attempt) {
    while (fleet.count<Announce>("c") < attempt) fleet.wake();
    fleet.accept("c");
    sources.push_back(source("c"));
    fleet.from("c", Staged{.version = kFirst, .failure = "a bucket is damaged"},
               fleet.last<Announce>("c")->first.round);
  }
  for (std::size_t i = 1; i < sources.size(); ++i) EXPECT_NE(sources[i], sources[i - 1]) << i;
}

TEST_F(LateSidecar, TheTrainerIsAskedWhenSidecarsHaveFailed) {
  serve({"a", "b", "e"});
  join("c");
  fleet.accept("c");
  lose_source("c");
  lose_source("c");
  EXPECT_EQ(source("c"), "tcp://127.0.0.1:1");
}

TEST_F(LateSidecar, NothingIsOfferedThatNobodyCanSend) {
  attach();
  control::Hello older = hello("a");
  older.boot_id = "boot";
  older.capabilities = 0;
  fleet.join("a", older);
  fleet.from("a", older);
  fleet.full_round({"a"});
  fleet.from("a", control::Heartbeat{.sequence = 1, .target = kFirst, .staged = {kFirst}});
  lose();
  join("c");
  EXPECT_EQ(fleet.count<Announce>("c"), 0U);
  EXPECT_EQ(fleet.count<RelayVersion>("a"), 0U) << "its release does not know the message";
}

TEST_F(LateSidecar, OneThatReleasesItsCopyIsNoSource) {
  serve({"a"});
  lose();
  fleet.from("a", control::Heartbeat{.sequence = 2, .target = kFirst, .staged = {}});
  join("c");
  EXPECT_EQ(fleet.count<Announce>("c"), 0U);
}

}  // namespace
}  // namespace wsync::coordinator
