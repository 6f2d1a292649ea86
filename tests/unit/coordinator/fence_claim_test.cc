// The claim alone: how long it gathers, what it claims above, and who may join.
#include "trainer_side/coordinator/fence_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/coordinator/version_names.h"

namespace wsync::coordinator {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr control::FleetId kFleet{.high = 1, .low = 1};
constexpr control::FleetId kOther{.high = 2, .low = 2};

CoordinatorContext context_of(CoordinatorOptions options) {
  options.run_id = {7, 7};
  return {.options = std::move(options), .now = TimePoint{1'000'000'000}};
}
Member& add(CoordinatorContext& context, const std::string& name) {
  Member& member = context.roster.add(name);
  member.peer = "peer-" + name;
  return member;
}
PeerMessage from(const std::string& peer, const control::Hello& hello) {
  return {.peer = peer, .envelope = {}, .message = hello};
}
// From Hellos to the stored claim.
void claim(FenceClaim& claim, DecisionLog& log, CoordinatorContext& context) {
  ASSERT_TRUE(claim.begin(context, log).has_value());
  const Store store = std::get<Store>(context.commands.back());
  ASSERT_EQ(log.handle(context, {.token = store.token, .record = store.record}).ended,
            StoreOutcome::Ended::kClaim);
  claim.handle_stored(context, log.record());
}

TEST(FenceClaim, GathersForTheWindowThenForTheSidecarsOfTheRecord) {
  CoordinatorOptions options{.min_sidecars = 2};
  options.record.emplace();
  options.record->fence = {.epoch = 4, .run_id = {1, 1}, .fleet = kFleet};
  options.record->members = {"a", "b"};
  CoordinatorContext context = context_of(options);
  FenceClaim claim(context.options);
  claim.note_event(context.now);
  EXPECT_FALSE(claim.gather(context)) << "nobody has come";
  EXPECT_FALSE(claim.deadline().has_value());
  add(context, "a");
  claim.note_hello(context.now, {}, {});
  EXPECT_FALSE(claim.gather(context));
  EXPECT_THAT(claim.awaited(context), ElementsAre("b"));
  ASSERT_TRUE(claim.deadline().has_value());
  EXPECT_EQ(*claim.deadline(), context.now + context.options.gather_recorded);
  add(context, "b");
  EXPECT_TRUE(claim.gather(context)) << "both have come";
}

TEST(FenceClaim, GoesThroughItsStates) {
  CoordinatorContext context = context_of({.fleet_id = kFleet});
  FenceClaim claims(context.options);
  DecisionLog log(std::nullopt);
  claims.note_hello(context.now, {.epoch = 6, .run_id = {1, 1}, .fleet = kFleet}, {});
  Member& member = add(context, "a");
  EXPECT_EQ(claims.state(), FenceClaimState::kGathering);
  claim(claims, log, context);
  EXPECT_EQ(claims.state(), FenceClaimState::kWelcoming);
  EXPECT_EQ(log.record().fence.epoch, 7U) << "above all that was heard of";
  const auto* welcome = std::get_if<SendTo>(&context.commands.back());
  ASSERT_NE(welcome, nullptr);
  EXPECT_EQ(welcome->envelope.fence.epoch, 7U);
  EXPECT_FALSE(claims.finish(context)) << "nobody has joined: it waits again";
  EXPECT_EQ(claims.state(), FenceClaimState::kWelcoming);
  member.joined = true;
  EXPECT_TRUE(claims.finish(context));
  EXPECT_TRUE(claims.is_claimed());
  EXPECT_TRUE(claims.invariants().has_value());

  claims.note_epoch(50);
  claim(claims, log, context);
  EXPECT_EQ(log.record().fence.epoch, 51U);
  EXPECT_FALSE(member.joined) << "it has to come under the new fence";
  claims.stop(context, Error(ErrorCode::kIo, "the disc"));
  EXPECT_EQ(claims.state(), FenceClaimState::kStopped);
  ASSERT_TRUE(claims.stopped().has_value());
  EXPECT_EQ(claims.stopped()->code, ErrorCode::kIo);
  EXPECT_TRUE(claims.invariants().has_value());
}

TEST(FenceClaim, TheLastEpochAndTwoFleetsCannotBeClaimed) {
  CoordinatorContext context = context_of({.fleet_id = kFleet});
  FenceClaim last(context.options);
  DecisionLog log(std::nullopt);
  last.note_epoch(limits::kEpochMax);
  const Result<> none_above = last.begin(context, log);
  ASSERT_FALSE(none_above.has_value());
  EXPECT_EQ(none_above.error().code(), ErrorCode::kFenced);

  CoordinatorContext open = context_of({.new_fleet_id = {.high = 9, .low = 9}});
  FenceClaim claims(open.options);
  for (const auto& [name, fleet] : {std::pair{"a", kFleet}, std::pair{"b", kOther}}) {
    Member& member = add(open, name);
    member.fleet = fleet;
    member.decision = {.fence = {.epoch = 1, .run_id = {1, 1}, .fleet = fleet}, .number = 1};
  }
  const Result<> two = claims.begin(open, log);
  ASSERT_FALSE(two.has_value());
  EXPECT_EQ(two.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(two.error().message(), HasSubstr("set fleet_id"));
  EXPECT_EQ(claims.state(), FenceClaimState::kGathering);
}

TEST(FenceClaim, TheFleetMayChangeUntilSomethingBindsIt) {
  CoordinatorContext context = context_of({.new_fleet_id = kFleet});
  FenceClaim claims(context.options);
  DecisionLog log(std::nullopt);
  add(context, "a");
  claim(claims, log, context);
  const control::Fence other{.epoch = 9, .run_id = {1, 1}, .fleet = kOther};
  EXPECT_TRUE(claims.is_foreign(other));
  EXPECT_TRUE(claims.may_change_fleet(log));
  claims.change_fleet(log.record().fence, other);
  EXPECT_FALSE(claims.is_foreign(other));
  EXPECT_FALSE(claims.may_change_fleet(log)) << "a decided sidecar has named it";
  claim(claims, log, context);
  EXPECT_EQ(log.record().fence.fleet, kOther);
  EXPECT_EQ(log.record().fence.epoch, 10U);
}

TEST(FenceClaim, ANameIsThatOfOneProcess) {
  CoordinatorContext context = context_of({.fleet_id = kFleet});
  FenceClaim claims(context.options);
  control::Hello hello;
  hello.name = "a";
  EXPECT_TRUE(claims.check_hello(context, {}, from("peer-a", hello), hello).has_value());
  add(context, "a");
  const Result<> second = claims.check_hello(context, {}, from("another", hello), hello);
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message(), HasSubstr("give one of them another name"));
  PeerMessage follows = from("another", hello);
  follows.predecessor_gone = true;
  EXPECT_TRUE(claims.check_hello(context, {}, follows, hello).has_value());
  hello.name = "b";
  const Result<> renamed = claims.check_hello(context, {}, from("peer-a", hello), hello);
  ASSERT_FALSE(renamed.has_value());
  EXPECT_THAT(renamed.error().message(), HasSubstr("already connected as sidecar 'a'"));
}

TEST(VersionNames, StepsGoOnAboveAllThatAreKnown) {
  VersionNames names;
  EXPECT_EQ(names.next(3, 0).value(), (Version{3, 1}));
  names.note_seen({2, 8});
  EXPECT_EQ(names.next(3, 0).value(), (Version{3, 9}));
  EXPECT_EQ(names.next(3, 5).value(), (Version{3, 5})) << "of another epoch";
  names.note_used(5);
  EXPECT_FALSE(names.next(3, 5).has_value());
  EXPECT_EQ(names.next(3, 0).value(), (Version{3, 9}));
  names.begin_epoch();
  EXPECT_EQ(names.next(4, 5).value(), (Version{4, 5}));
}

TEST(VersionNames, AGivenStepLeavesRoomForTheStepsAfterIt) {
  const auto refused = check_given_step(kGivenStepMax + 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(),
            "step 4611686018427387904 is above the limit of 4611686018427387903, which leaves room "
            "for later versions: give a smaller step, or let wsync choose the next free one");
  EXPECT_TRUE(check_given_step(kGivenStepMax));
  EXPECT_TRUE(check_given_step(0)) << "wsync chooses it";
  VersionNames names;
  names.note_used(kGivenStepMax);
  EXPECT_EQ(names.next(4, 0).value(), (Version{4, kGivenStepMax + 1}));
  EXPECT_EQ(names.next(4, kGivenStepMax + 1).value(), (Version{4, kGivenStepMax + 1}))
      << "which wsync has chosen";
  EXPECT_FALSE(names.next(4, limits::kStepMax + 1).has_value());
  names.note_seen({3, limits::kStepMax});
  EXPECT_EQ(
      names.next(4, 0).error().message(),
      "no step is free above 9223372036854775807, the highest that is known: give a step of 1 "
      "to 4611686018427387903");
}

}  // namespace
}  // namespace wsync::coordinator
