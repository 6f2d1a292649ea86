// Which kind of transport a sidecar is told to read by.
#include "trainer_side/coordinator/transport_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/format.h"

namespace wsync::coordinator {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const control::TransportAddress kServedMemfd{.kind = "memfd", .address = "/run/host.sock"};
const control::TransportAddress kServedTcp{.kind = "tcp", .address = "tcp://trainer:1"};

class TransportChoice : public testing::Test {
 protected:
  TransportChoice() {
    options_.boot_id = "boot";
    options_.transports = {kServedMemfd, kServedTcp};
    member_.boot_id = "boot";
    member_.transports = {{"memfd", ""}, {"tcp", "tcp://s:1"}};
  }
  [[nodiscard]] std::string chosen() const {
    const auto choice = choose_transport(options_, member_);
    return choice ? choice->kind : choice.error().message();
  }
  CoordinatorOptions options_;
  Member member_;
};

TEST_F(TransportChoice, OnOneHostThePreferredKindIsTaken) {
  EXPECT_EQ(choose_transport(options_, member_).value(), kServedMemfd);
  EXPECT_TRUE(has_alternative(options_, member_, "memfd"));
}

TEST_F(TransportChoice, AKindWithinOneHostDoesNotReachAnother) {
  for (const char* boot_id : {"other", ""}) {
    member_.boot_id = boot_id;
    EXPECT_EQ(choose_transport(options_, member_).value(), kServedTcp);
    EXPECT_FALSE(has_alternative(options_, member_, "tcp"));
  }
  options_.boot_id.clear();  // two hosts that are not known are not one host
  EXPECT_EQ(chosen(), "tcp");
}

TEST_F(TransportChoice, TheOnlyPermittedKindIsTakenEvenIfTheHostsSeemToDiffer) {
  member_.boot_id = "other";
  options_.transports = {kServedMemfd};
  options_.one_transport = true;
  EXPECT_EQ(chosen(), "memfd");
}

TEST_F(TransportChoice, AKindThatHasFailedIsTriedAgainLater) {
  TimePoint now{};
  for (const int seconds : {10, 20, 40}) {
    EXPECT_EQ(note_failed_transport(member_, "memfd", "no descriptor", now),
              std::chrono::seconds(seconds));
    now = now + std::chrono::seconds(seconds - 1);
    retry_failed_transports(member_, now);
    EXPECT_EQ(chosen(), "tcp");
    now = now + std::chrono::seconds(1);
    retry_failed_transports(member_, now);
    EXPECT_EQ(chosen(), "memfd") << "its time has come";
  }
  EXPECT_FALSE(note_good_transport(member_, "tcp"));
  EXPECT_TRUE(note_good_transport(member_, "memfd"));
  EXPECT_FALSE(note_good_transport(member_, "memfd")) << "it is told once";
  for (int i = 0; i < 20; ++i)
    EXPECT_LE(note_failed_transport(member_, "memfd", "no descriptor", now), std::chrono::hours(1));
}

TEST_F(TransportChoice, AFailedKindIsNotTriedAgainAtOnceWhileThereIsAnother) {
  (void)note_failed_transport(member_, "memfd", "no descriptor", TimePoint{});
  EXPECT_EQ(chosen(), "tcp");
  EXPECT_FALSE(has_alternative(options_, member_, "tcp"));
  member_.transports = {{"memfd", ""}};
  EXPECT_EQ(chosen(), "memfd") << "there is no other";
}

TEST_F(TransportChoice, TheSidecarMustFetchByTheKind) {
  member_.transports = {{"tcp", ""}};
  EXPECT_EQ(chosen(), "tcp");
  options_.transports = {kServedMemfd};
  EXPECT_THAT(chosen(), AllOf(HasSubstr("serves memfd,"), HasSubstr("accepts tcp;"),
                              HasSubstr("`transport: auto`")));
  member_.boot_id = "other";
  member_.transports.clear();
  EXPECT_THAT(chosen(), HasSubstr("accepts none;"));
}

TEST_F(TransportChoice, EachSidecarThatNothingReachesIsNamed) {
  Roster roster;
  for (const char* name : {"a", "b", "gone"}) {
    Member& member = roster.add(name);
    member.joined = std::string_view(name) != "gone";
    member.transports = {{std::string_view(name) == "a" ? "tcp" : "ucx", ""}};
  }
  options_.transports = {kServedTcp};
  EXPECT_THAT(
      transport_problems(options_, roster),
      AllOf(testing::StartsWith("sidecar 'b': the trainer and the sidecar have no transport"),
            HasSubstr("accepts ucx;"), testing::Not(HasSubstr("'gone'"))));
  (void)roster.add("b").transports.emplace_back(control::TransportAddress{"tcp", ""});
  EXPECT_EQ(transport_problems(options_, roster), "");
}

TEST_F(TransportChoice, AKindThatThisBuildLacksIsPassedOver) {
  options_.transports = {{"unknown", "coop"}, kServedTcp};
  member_.transports = {{"unknown", ""}, {"tcp", ""}};
  EXPECT_EQ(chosen(), "tcp");
  EXPECT_FALSE(has_alternative(options_, member_, "tcp"));
}

const control::TransportAddress kServedHere{.kind = "tcp", .address = "tcp://127.0.0.1:1"};
const control::TransportAddress kServedTls{.kind = "tls", .address = "tcp://10.0.0.1:2"};

// A trainer that sidecars of other hosts reach, and a sidecar of another host.
class OtherHosts : public TransportChoice {
 protected:
  OtherHosts() {
    options_.serves_other_hosts = true;
    options_.transports = {kServedMemfd, kServedHere, kServedTls};
    member_.boot_id = "other";
    member_.transports = {{"memfd", ""}, {"tcp", "tcp://127.0.0.1:3"}, {"tls", "tcp://10.0.0.2:4"}};
  }
};

TEST_F(OtherHosts, GetWeightsByAKindWithKeysOnly) {
  EXPECT_EQ(chosen(), "tls");
  EXPECT_FALSE(has_alternative(options_, member_, "tls"));
  // Even where a plain one would reach them.
  options_.transports = {kServedMemfd, kServedTcp, kServedTls};
  EXPECT_EQ(chosen(), "tls");
  options_.transports = {kServedMemfd, kServedTcp};
  EXPECT_THAT(chosen(), AllOf(HasSubstr("no transport in common"), HasSubstr("`data_security`")));
}

TEST_F(OtherHosts, GetPlainOnesOnATrustedNetwork) {
  options_.security = DataSecurity::kTrustedNetwork;
  options_.transports = {kServedMemfd, kServedTcp};
  EXPECT_EQ(chosen(), "tcp");
}

TEST_F(OtherHosts, AreNotSentToAnAddressOnLoopback) {
  options_.transports = {kServedMemfd, kServedHere, {"tls", "tcp://127.0.0.1:2"}};
  EXPECT_THAT(chosen(),
              HasSubstr("a `data_address` that other hosts reach (now tcp://127.0.0.1:2)"));
  options_.security = DataSecurity::kTrustedNetwork;
  EXPECT_THAT(chosen(), HasSubstr("no transport in common"));
}

TEST_F(OtherHosts, DoNotChangeWhatASidecarBesideTheTrainerGets) {
  member_.boot_id = options_.boot_id;
  EXPECT_EQ(chosen(), "memfd");
  member_.transports = {{"tcp", ""}, {"tls", ""}};
  EXPECT_EQ(chosen(), "tcp");
}

TEST_F(OtherHosts, EachPairHasItsKeyUnderEachFence) {
  CoordinatorContext context;
  context.options = options_;
  context.options.secret = transport::PairSecret{std::byte{1}};
  context.fence.epoch = 4;
  for (const char* name : {"a", "b", "c"}) {
    Member& member = context.roster.add(name);
    member.joined = true;
    member.boot_id = name;
    member.transports = {{"tls", fmt::format("tcp://10.0.0.9:{}", int{*name})}};
    member.relay_secret = transport::PairSecret{std::byte{2}, std::byte(*name)};
  }
  const Member& b = *context.roster.find("b");
  const auto key = [&](const transport::PairSecret& secret, const std::string& receiver) {
    const auto made = transport::derive_pair_key(
        secret, {.fence = {.epoch = context.fence.epoch}, .receiver = receiver});
    return Bytes(made.secret.begin(), made.secret.end());
  };
  EXPECT_EQ(pair_key_of(context, b, kServedTls), key(*context.options.secret, "b"));
  EXPECT_EQ(pair_key_of(context, *context.roster.find("a"), kServedTls),
            key(*context.options.secret, "a"));
  for (const char* relay : {"a", "c"}) {
    const Member& source = *context.roster.find(relay);
    EXPECT_EQ(pair_key_of(context, b, source.transports.front()), key(*source.relay_secret, "b"));
  }
  const Bytes before = pair_key_of(context, b, kServedTls);
  context.fence.epoch = 5;
  EXPECT_NE(pair_key_of(context, b, kServedTls), before);
  EXPECT_EQ(pair_key_of(context, b, kServedTls), key(*context.options.secret, "b"));
  EXPECT_TRUE(pair_key_of(context, b, kServedTcp).empty()) << "a kind without keys";
  EXPECT_TRUE(pair_key_of(context, b, {"tls", "tcp://10.0.0.9:9"}).empty())
      << "nobody serves there";
}

// Versions of which ranks on other hosts serve parts.
class Parts : public OtherHosts {
 protected:
  Parts() {
    context_.options = options_;
    context_.fence.epoch = 4;
    member_.name = "s0";
    member_.capabilities = control::kCapabilities;
  }
  [[nodiscard]] std::string refusal() const {
    const auto sources = choose_part_sources(context_, member_, owners_);
    return sources ? "chosen" : sources.error().message();
  }
  CoordinatorContext context_;
  std::vector<PartOwner> owners_{
      {.name = "rank 1 on a",
       .transports = {{"tcp", "tcp://10.0.0.5:1"}, {"tls", "tcp://10.0.0.5:2"}},
       .secret = transport::PairSecret{std::byte{1}},
       .boot_id = "a"},
      {.name = "rank 2 on b",
       .transports = {{"tls", "tcp://10.0.0.6:2"}},
       .secret = transport::PairSecret{std::byte{2}},
       .boot_id = "b"}};
};

TEST_F(Parts, EachComesFromItsRankWithAKeyOfItsOwn) {
  const auto sources = choose_part_sources(context_, member_, owners_).value();
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[0].source, "tcp://10.0.0.5:2");
  EXPECT_EQ(sources[1].source, "tcp://10.0.0.6:2");
  EXPECT_EQ(sources[0].transport, "tls");
  const auto key = transport::derive_pair_key(
      *owners_[1].secret, {.fence = {.epoch = 4, .run_id = {}}, .receiver = "s0"});
  EXPECT_EQ(sources[1].key, Bytes(key.secret.begin(), key.secret.end()));
  EXPECT_NE(sources[0].key, sources[1].key);
}

TEST_F(Parts, OnTheHostOfARankItsPlainAddressIsTaken) {
  member_.boot_id = "a";
  const auto sources = choose_part_sources(context_, member_, owners_).value();
  EXPECT_EQ(sources[0].transport, "tcp");
  EXPECT_TRUE(sources[0].key.empty());
  EXPECT_EQ(sources[1].transport, "tls");
}

TEST_F(Parts, NobodyMapsThem) {
  member_.boot_id = options_.boot_id;  // beside rank 0
  EXPECT_EQ(choose_transport(options_, member_).value().kind, "memfd");
  EXPECT_EQ(choose_transport(options_, member_, true).value().kind, "tcp");
  EXPECT_TRUE(has_alternative(options_, member_, "tcp", true));
  member_.transports = {{"memfd", ""}};
  EXPECT_THAT(choose_transport(options_, member_, true).error().message(),
              HasSubstr("parts on several hosts, so it comes as a copy"));
  EXPECT_FALSE(has_alternative(options_, member_, "memfd", true));
}

TEST_F(Parts, ARankThatNothingReachesIsNamed) {
  owners_[1].transports = {{"tcp", "tcp://127.0.0.1:3"}};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("rank 2 on b"), HasSubstr("`data_address`")));
}

}  // namespace
}  // namespace wsync::coordinator
