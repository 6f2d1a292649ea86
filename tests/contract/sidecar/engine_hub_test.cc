// The sidecar's side of its engine links, between a state machine and engines that the test plays.
#include "inference_side/sidecar/engine_hub.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "tests/contract/sidecar/linked_hub.h"
#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/owner_loop.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {
namespace {

class EngineHubTest : public testing::Test {
 protected:
  explicit EngineHubTest(DeviceKind kind = DeviceKind::kSeparate, const PauseLimits& pauses = {})
      : kind_(kind),
        store_({}, [this](std::function<void()> task) { bench_.loop().post(std::move(task)); }) {
    EngineHubOptions options;
    options.socket = bench_.directory() + "/engines";
    options.target = [this] { return target_; };
    options.devices.kind = kind_;
    options.pauses = pauses;
    options.on_unusable = [this](const Version& version, const Error&) {
      unusable_.push_back(version);
    };
    options.devices.buffer_bytes = limits::kBucketBytesMin;
    hub_ = EngineHub::create(bench_.loop(), std::move(options),
                             [this](const std::string& replica, std::uint32_t, RankEvent event) {
                               if (const auto* loaded = std::get_if<reload::RankLoaded>(&event))
                                 loaded_.emplace_back(replica, *loaded);
                               if (const auto* attached = std::get_if<reload::RankAttached>(&event))
                                 attached_.emplace_back(replica, *attached);
                               if (const auto* unfit = std::get_if<reload::RankUnfit>(&event))
                                 unfit_.emplace_back(replica, *unfit);
                               if (std::holds_alternative<reload::RankDetached>(event))
                                 detached_.push_back(replica);
                               if (const auto* done = std::get_if<reload::RankCommitted>(&event))
                                 committed_.push_back(*done);
                             })
               .value();
  }
  // A version that is held, in an arena of the trainer.
  [[nodiscard]] std::shared_ptr<const staging::HeldVersion> stage(Version version) {
    staging::StagingJob job;
    job.identity = model_.identity(version);
    job.manifest = model_.manifest;
    job.plan = model_.plan;
    job.leaves = model_.leaves;
    std::shared_ptr<const staging::HeldVersion> held;
    EXPECT_TRUE(store_.begin(std::move(job), [&](auto staged) { held = staged.value(); }));
    store_.view_arrived(ArenaView::open(model_.arena(version).share()->get()).value());
    EXPECT_TRUE(bench_.until([&] { return held != nullptr; }));
    return held;
  }
  [[nodiscard]] std::unique_ptr<RawEngine> engine(const std::string& replica) {
    auto made = std::make_unique<RawEngine>(bench_, hub_->socket(), replica);
    made->hello(model_);
    EXPECT_TRUE(made->next<control::EngineWelcome>());
    return made;
  }

  const DeviceKind kind_;
  Bench bench_;
  Model model_;
  Version target_;
  staging::Store store_;
  // The sums of a rank that has loaded the whole version.
  [[nodiscard]] static std::vector<SplitSum> sums_of(const staging::HeldVersion& version,
                                                     const Model& model) {
    const auto plan =
        reload::LoadPlan::make(*version.manifest(), *version.plan(), model.tensors()).value();
    std::vector<SplitSum> sums;
    for (const auto& tensor : plan.tensors())
      sums.push_back(reload::expected_sum(tensor, version.data()));
    return sums;
  }

  std::vector<std::pair<std::string, reload::RankLoaded>> loaded_;
  std::vector<reload::RankCommitted> committed_;
  std::vector<std::string> detached_;
  std::vector<Version> unusable_;
  std::vector<std::pair<std::string, reload::RankAttached>> attached_;
  std::vector<std::pair<std::string, reload::RankUnfit>> unfit_;
  std::unique_ptr<EngineHub> hub_;
};

TEST_F(EngineHubTest, AVersionThatIsLetGoWhileItsReplicasWaitForTheRunFailsTheirLoads) {
  const auto a = engine("a");
  const auto b = engine("b");
  bool ready = false;
  hub_->add_version(stage(kV1), [&] { ready = true; });
  for (const auto* each : {&a, &b}) {
    ASSERT_TRUE((*each)->next<control::Prepare>());
    (*each)->say(control::Prepared{.version = kV1});
  }
  ASSERT_TRUE(bench_.until([&] { return ready; }));
  hub_->expect_more_loads(true);
  hub_->send("a", reload::BeginLoad{.request = 5, .version = kV1, .deadline_ms = 60'000});
  hub_->send("b", reload::BeginLoad{.request = 6, .version = kV1, .deadline_ms = 60'000});
  ASSERT_TRUE(a->next<control::Load>());
  hub_->remove_version(kV1);
  hub_->expect_more_loads(false);
  ASSERT_TRUE(bench_.until([&] { return loaded_.size() == 2; }));
  for (const auto& [replica, loaded] : loaded_) {
    EXPECT_EQ(loaded.request, replica == "a" ? 5U : 6U);
    EXPECT_EQ(loaded.version, kV1);
    EXPECT_EQ(loaded.failure, "version 1.1 was released before its load began");
  }
  // And the pipeline is free for what comes next.
  hub_->add_version(stage({.epoch = 1, .step = 2}), [] {});
  ASSERT_TRUE(a->next<control::Prepare>());
  hub_->send("a", reload::BeginLoad{
                      .request = 7, .version = {.epoch = 1, .step = 2}, .deadline_ms = 60'000});
  EXPECT_TRUE(a->next<control::BucketReady>());
}

// Nobody would use them, and a trainer that hears of them compares what it copies.
TEST_F(EngineHubTest, NoPatchesAreMadeForLayersOfRanksWithDevicesOfTheirOwn) {
  control::EngineHello hello;
  hello.tensors = model_.tensors();
  hello.capabilities |= bits(control::Capability::kChangedLayers);
  hello.take = control::TakeMode::kWhole;
  RawEngine layers(bench_, hub_->socket(), "layers");
  layers.say(hello);
  ASSERT_TRUE(layers.next<control::EngineWelcome>());
  EXPECT_EQ(hub_->patch_value_cost(), 0U);
  // Of a rank that takes pieces the capability means nothing.
  hello.take = control::TakeMode::kPieces;
  RawEngine other(bench_, hub_->socket(), "other");
  other.say(hello);
  ASSERT_TRUE(other.next<control::EngineWelcome>());
  EXPECT_EQ(hub_->patch_value_cost(), 0U);
  hello.takes_patches = true;
  RawEngine pieces(bench_, hub_->socket(), "pieces");
  pieces.say(hello);
  ASSERT_TRUE(pieces.next<control::EngineWelcome>());
  EXPECT_GT(hub_->patch_value_cost(), 0U);
}

class PacedHubTest : public EngineHubTest {
 protected:
  PacedHubTest()
      : EngineHubTest(DeviceKind::kUnified, {.at_once = 1,
                                             .max_wait = std::chrono::hours(1),
                                             .max_queued = std::chrono::hours(1)}) {}
  std::unique_ptr<RawEngine> adopting(const std::string& replica, std::uint32_t rank = 0,
                                      std::uint32_t world_size = 1) {
    auto made = std::make_unique<RawEngine>(bench_, hub_->socket(), replica, rank);
    control::EngineHello hello;
    hello.tensors = model_.tensors();
    hello.take = control::TakeMode::kAdopt;
    hello.world_size = world_size;
    hello.leader = rank == 0;
    made->say(hello);
    EXPECT_TRUE(made->next<control::EngineWelcome>());
    return made;
  }
  void pause(const std::string& replica, std::uint64_t request) {
    hub_->send(replica, reload::SendPause{.request = request, .deadline_ms = 60'000});
  }
  static std::uint64_t paused(RawEngine& engine) {
    const auto asked = engine.next<control::Pause>();
    return asked ? asked->first.request : 0;
  }
};

TEST_F(PacedHubTest, AReplicaThatAdoptsIsAskedWhenTheOneBeforeItIsResumed) {
  const auto a = adopting("a");
  const auto b = adopting("b");
  const auto copies = engine("copies");
  pause("a", 1);
  EXPECT_EQ(paused(*a), 1U);
  a->say(control::Paused{}, 1);
  pause("b", 2);
  pause("copies", 3);
  EXPECT_EQ(paused(*copies), 3U) << "its pause is a copy, which all cores make together";
  pause("b", 4);
  hub_->send("a", reload::SendResume{.request = 5});
  EXPECT_EQ(paused(*b), 4U) << "the one before it was not sent";
}

TEST_F(PacedHubTest, ARankThatIsLostFreesThePlaceAndTheWaitingPauseIsSent) {
  const auto a = adopting("a");
  auto follower = adopting("b", 1, 2);
  const auto b = adopting("b", 0, 2);
  pause("a", 1);
  EXPECT_EQ(paused(*a), 1U);
  pause("b", 2);
  follower.reset();  // its replica waits for it, and for the answer of the leader
  ASSERT_TRUE(bench_.until([&] { return !detached_.empty(); }));
  hub_->send("a", reload::SendResume{.request = 3});
  EXPECT_EQ(paused(*b), 2U);
}

TEST_F(PacedHubTest, AnEngineThatHasEndedHasNoPlace) {
  auto a = adopting("a");
  const auto b = adopting("b");
  pause("a", 1);
  EXPECT_EQ(paused(*a), 1U);
  pause("b", 2);
  a.reset();
  EXPECT_EQ(paused(*b), 2U);
}

TEST_F(EngineHubTest, ARankThatSaysLoadedBeforeItsTurnLoadsOnceMoreLikeAnyOther) {
  const auto a = engine("a");
  bool ready = false;
  hub_->add_version(stage(kV1), [&] { ready = true; });
  ASSERT_TRUE(a->next<control::Prepare>());
  a->say(control::Prepared{.version = kV1});
  ASSERT_TRUE(bench_.until([&] { return ready; }));
  hub_->expect_more_loads(true);
  hub_->send("a", reload::BeginLoad{.request = 5, .version = kV1, .deadline_ms = 60'000});
  ASSERT_TRUE(a->next<control::Load>());
  a->say(control::Loaded{.version = kV1}, 5);
  ASSERT_TRUE(bench_.until([&] { return loaded_.size() == 1; }));
  // The switch goes on with that, and loads again later.
  hub_->send("a", reload::BeginLoad{.request = 6, .version = kV1, .deadline_ms = 60'000});
  hub_->expect_more_loads(false);
  const auto bucket = a->next<control::BucketReady>();
  ASSERT_TRUE(bucket);
  EXPECT_EQ(bucket->first.request, 6U);
  EXPECT_EQ(loaded_.size(), 1U) << loaded_.back().second.failure;
}

TEST_F(EngineHubTest, NothingIsCommittedThatWasNotComparedOrDiffers) {
  const auto a = engine("a");
  const auto held = stage(kV1);
  hub_->add_version(held, [] {});
  ASSERT_TRUE(a->next<control::Prepare>());
  const auto good = sums_of(*held, model_);
  auto wrong = good;
  wrong.back().words.sum ^= 1;
  hub_->send("a", reload::SendCommit{.rank = 0, .request = 4, .version = kV1});
  std::uint64_t request = 5;
  for (const auto& sums : {wrong, std::vector<SplitSum>(), good}) {
    hub_->send("a", reload::BeginLoad{.request = request, .version = kV1, .deadline_ms = 60'000});
    ASSERT_TRUE(a->next<control::Load>());
    a->say(control::Loaded{.version = kV1, .sums = sums}, request);
    const std::size_t count = request - 4;
    ASSERT_TRUE(bench_.until([&] { return loaded_.size() == count; }));
    hub_->send("a", reload::SendCommit{.rank = 0, .request = request, .version = kV1});
    hub_->send("a", reload::CancelLoad{.request = request});
    ++request;
  }
  ASSERT_TRUE(a->next<control::Commit>()) << "of the last one";
  EXPECT_THAT(loaded_[0].second.failure,
              testing::HasSubstr("the bytes that rank 0 has loaded are"));
  EXPECT_THAT(loaded_[1].second.failure, testing::HasSubstr("has returned the sums of 0 tensors"));
  EXPECT_EQ(loaded_[2].second.failure, "");
  ASSERT_EQ(committed_.size(), 3U);
  for (const auto& refused : committed_)
    EXPECT_EQ(refused.failure, "what the ranks have loaded was not compared with 1.1");
}

TEST_F(EngineHubTest, TheSumsOfAllRanksOfOneLoadAreComparedTogether) {
  const auto held = stage(kV1);
  const auto good = sums_of(*held, model_);
  const auto tensors = std::make_shared<const std::vector<control::EngineTensor>>(model_.tensors());
  auto load = std::make_shared<PreparedLoad>();
  load->plan = reload::LoadPlan::make(*held->manifest(), *held->plan(), *tensors).value();
  std::vector<LoadedSums::Rank> ranks = {
      {.rank = 0, .tensors = tensors, .load = load},
      {.rank = 1, .tensors = tensors, .load = load},
      {.rank = 2, .returns_sums = false, .tensors = tensors, .load = load}};
  LoadedSums sums;
  const auto add = [&](std::uint32_t rank, std::vector<SplitSum> returned) {
    return sums.add("a", rank, {.now = std::move(returned), .before = {}}, ranks, *held);
  };
  sums.begin("a");
  EXPECT_FALSE(add(0, good));
  EXPECT_FALSE(add(2, {}));
  EXPECT_FALSE(sums.is_equal("a", kV1)) << "rank 1 has not answered";
  EXPECT_FALSE(add(1, good));
  EXPECT_TRUE(sums.is_equal("a", kV1));
  EXPECT_FALSE(sums.is_equal("a", {.epoch = 9, .step = 9}));
  EXPECT_FALSE(sums.is_equal("b", kV1));
  sums.begin("a");
  EXPECT_FALSE(sums.is_equal("a", kV1)) << "a new load is not compared yet";
  auto wrong = good;
  wrong.front().words.product ^= 1;
  EXPECT_FALSE(add(2, {}));
  EXPECT_FALSE(add(0, wrong));
  const auto mismatch = add(1, good);
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->rank, 0U);
  EXPECT_FALSE(sums.is_equal("a", kV1));
  EXPECT_FALSE(add(0, good)) << "it has answered once more";
  EXPECT_TRUE(sums.is_equal("a", kV1));
  sums.forget("a");
  EXPECT_FALSE(sums.is_equal("a", kV1)) << "a rank is gone";
  ranks[1].load = nullptr;
  EXPECT_THAT(add(1, good).value().why, testing::HasSubstr("for which it was not prepared"));
  EXPECT_THAT(add(2, good).value().why, testing::HasSubstr("expected 0"));
}

TEST_F(EngineHubTest, AnEngineOfAnotherModelIsToldByItsNameWhichTensorDoesNotFit) {
  const auto a = engine("a");
  const auto held = stage(kV1);
  hub_->add_version(held, [] {});
  ASSERT_TRUE(a->next<control::Prepare>());
  RawEngine other(bench_, hub_->socket(), "other");
  control::EngineHello hello;
  hello.tensors = model_.tensors();
  hello.tensors[0].shape[0] += 1;
  const std::string wrong = hello.tensors[0].name;
  other.say(std::move(hello));
  const auto refused = other.next<control::Refuse>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->first.replica, "other");
  EXPECT_NE(refused->second.reason.find(wrong), std::string::npos) << refused->second.reason;
  ASSERT_FALSE(refused->second.problems.empty());
  EXPECT_EQ(refused->second.problems[0].tensor, wrong);

  RawEngine twin(bench_, hub_->socket(), "a");
  twin.hello(model_);
  const auto again = twin.next<control::Refuse>();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->first.replica, "a");
  EXPECT_EQ(again->second.reason,
            fmt::format("replica 'a' rank 0 is attached already, as process {0}: start this engine "
                        "under another name of its replica (--replica), or end process {0}",
                        ::getpid()));
}

TEST_F(EngineHubTest, AnEngineOfAnotherModelMayAttachWhenNobodyTakesTheOldOneAndIsNeverGivenIt) {
  auto a = engine("a");
  hub_->add_version(stage(kV1), [] {});
  ASSERT_TRUE(a->next<control::Prepare>());
  ASSERT_TRUE(bench_.until([&] { return attached_.size() == 1; }));
  EXPECT_TRUE(attached_[0].second.unfit.empty());
  a.reset();
  ASSERT_TRUE(bench_.until([&] { return detached_.size() == 1; }));

  RawEngine other(bench_, hub_->socket(), "other");
  control::EngineHello hello;
  hello.tensors = model_.tensors();
  hello.tensors[0].shape[0] += 1;
  const std::string wrong = hello.tensors[0].name;
  other.say(std::move(hello));
  ASSERT_TRUE(other.next<control::EngineWelcome>());
  ASSERT_TRUE(bench_.until([&] { return attached_.size() == 2; }));
  const auto& [replica, attached] = attached_[1];
  EXPECT_EQ(replica, "other");
  ASSERT_EQ(attached.unfit.size(), 1U);
  EXPECT_EQ(attached.unfit[0].version, kV1);
  EXPECT_THAT(attached.unfit[0].why, testing::HasSubstr(wrong + " (the engine expects ["));
  std::vector<control::ReplicaReport> absent;
  hub_->absent().add_to(absent, {}, now());
  EXPECT_TRUE(absent.empty()) << "it was not refused";

  // A switch would not ask for it. If one did, the rank would not be sent anything.
  hub_->send("other", reload::BeginLoad{.request = 5, .version = kV1, .deadline_ms = 60'000});
  ASSERT_TRUE(bench_.until([&] { return loaded_.size() == 1; }));
  EXPECT_THAT(loaded_[0].second.failure, testing::HasSubstr("its shape differs"));

  // A version that is staged although it does not fit a rank that has attached meanwhile.
  hub_->add_version(stage({.epoch = 1, .step = 2}), [] {});
  ASSERT_TRUE(bench_.until([&] { return !unfit_.empty(); }));
  ASSERT_EQ(unfit_.size(), 1U);
  EXPECT_EQ(unfit_[0].first, "other");
  EXPECT_EQ(unfit_[0].second.unfit.version, (Version{.epoch = 1, .step = 2}));

  // An engine of the old model may attach as well. From then on one of the new model may not,
  // whether it is attached already or comes later.
  const auto old = engine("old");
  ASSERT_TRUE(old->next<control::Prepare>());
  const auto told = other.next<control::Refuse>();
  ASSERT_TRUE(told);
  EXPECT_THAT(
      told->second.reason,
      testing::HasSubstr("replica 'other' rank 0 does not fit the model that is served: " + wrong));
  ASSERT_TRUE(bench_.until([&] { return detached_.size() == 2; }));
  EXPECT_EQ(detached_[1], "other");
  EXPECT_TRUE(hub_->registry().ranks_of("other").empty());
  RawEngine late(bench_, hub_->socket(), "late");
  control::EngineHello second;
  second.tensors = model_.tensors();
  second.tensors[0].shape[0] += 1;
  late.say(std::move(second));
  const auto refused = late.next<control::Refuse>();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->second.reason,
              testing::HasSubstr("it may attach when every engine of that model has ended"));
  absent.clear();
  hub_->absent().add_to(absent, {}, now());
  ASSERT_EQ(absent.size(), 2U) << "each has been told one sentence";
  EXPECT_THAT(absent[1].reason, testing::HasSubstr("does not fit the model that is served"));
}

TEST_F(EngineHubTest, AnEngineOfAPartOfTheModelWaitsOrIsRefusedAsOneOfAnotherModel) {
  hub_->add_version(stage(kV1), [] {});
  control::EngineHello part;
  part.tensors = model_.tensors();
  const std::string left_out = part.tensors.back().name;
  part.tensors.pop_back();
  RawEngine first(bench_, hub_->socket(), "part");
  first.say(part);
  ASSERT_TRUE(first.next<control::EngineWelcome>());
  ASSERT_TRUE(bench_.until([&] { return attached_.size() == 1; }));
  ASSERT_EQ(attached_[0].second.unfit.size(), 1U) << "nobody else serves the model";
  EXPECT_EQ(attached_[0].second.unfit[0].why,
            left_out + " (the published tensors have it, but no rank of the replica loads it)");

  const auto whole = engine("whole");
  const auto told = first.next<control::Refuse>();
  ASSERT_TRUE(told);
  EXPECT_THAT(told->second.reason,
              testing::HasSubstr("replica 'part' rank 0 does not fit the model that is served: " +
                                 left_out));
  RawEngine late(bench_, hub_->socket(), "late");
  late.say(part);
  EXPECT_TRUE(late.next<control::Refuse>());

  // Ranks that have it together.
  control::EngineHello rest = part;
  part.world_size = rest.world_size = 2;
  rest.leader = false;
  rest.tensors = {model_.tensors().back()};
  RawEngine one(bench_, hub_->socket(), "both");
  one.say(part);
  ASSERT_TRUE(one.next<control::EngineWelcome>());
  RawEngine other(bench_, hub_->socket(), "both", 1);
  other.say(rest);
  EXPECT_TRUE(other.next<control::EngineWelcome>());
}

// On devices on which an engine may read the version itself.
class UnifiedHubTest : public EngineHubTest {
 protected:
  UnifiedHubTest() : EngineHubTest(DeviceKind::kUnified) {}
  [[nodiscard]] std::unique_ptr<RawEngine> chooser(const std::string& replica) {
    auto made = std::make_unique<RawEngine>(bench_, hub_->socket(), replica);
    made->say(control::EngineHello{.take = control::TakeMode::kBorrow, .any_layout = true});
    EXPECT_TRUE(made->next<control::EngineWelcome>());
    return made;
  }
};

TEST_F(UnifiedHubTest, AnEngineThatDeclinesWhatNobodyServesWaitsForItsModel) {
  hub_->add_version(stage(kV1), [] {});
  hub_->add_version(stage({.epoch = 1, .step = 2}), [] {});
  const control::Prepared declined{.version = kV1, .failure = "a: not mine", .is_refused = true};
  const control::Prepared newest{
      .version = {.epoch = 1, .step = 2}, .failure = "a: not mine", .is_refused = true};
  const auto waits = chooser("waits");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(waits->next<control::Prepare>());
  waits->say(declined);
  waits->say(newest);
  ASSERT_TRUE(bench_.until([&] { return attached_.size() == 1; }));
  const std::vector<reload::UnfitVersion>& unfit = attached_[0].second.unfit;
  ASSERT_EQ(unfit.size(), 2U);
  for (const reload::UnfitVersion& one : unfit) EXPECT_EQ(one.why, "a: not mine");
  EXPECT_THAT(unusable_, testing::IsEmpty()) << "another engine may take what is held";

  // One that takes it: from then on the others may not be attached.
  const auto takes = chooser("takes");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(takes->next<control::Prepare>());
  takes->say(control::Prepared{.version = kV1});
  takes->say(control::Prepared{.version = newest.version});
  const auto told = waits->next<control::Refuse>();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->second.reason,
            "replica 'waits' rank 0 does not take 1.2, which is served: a: not mine; it may attach "
            "when every engine of that model has ended");
  ASSERT_TRUE(bench_.until([&] { return attached_.size() == 2; }));
  EXPECT_EQ(attached_[1].first, "takes");
  EXPECT_TRUE(attached_[1].second.unfit.empty());
  const auto late = chooser("late");
  ASSERT_TRUE(late->next<control::Prepare>());
  late->say(newest);
  EXPECT_TRUE(late->next<control::Refuse>());
  EXPECT_THAT(unusable_, testing::IsEmpty());
}

// The callbacks of an engine may fail. The switch is told what the engine has said.
TEST_F(LinkedHub, AnEngineThatDeclinesToPauseOrToResumeSaysWhy) {
  open();
  serve_first(1);
  const auto declines = []() -> Result<> { return fail(ErrorCode::kInternal, "no door"); };
  ranks_[0]->engine.on_resume = declines;
  hub_->send("r0", reload::SendResume{.rank = 0, .request = ++request_});
  const auto not_resumed = wait<reload::RankRefused>(1);
  ASSERT_EQ(not_resumed.size(), 1U);
  EXPECT_EQ(not_resumed[0].rank, 0U);
  EXPECT_EQ(not_resumed[0].request, request_);
  EXPECT_EQ(not_resumed[0].why, "the engine could not resume: no door");
  ranks_[0]->engine.on_resume = nullptr;
  serve();
  ranks_[0]->engine.on_pause = declines;
  hub_->send("r0", reload::SendPause{.rank = 0, .request = ++request_, .deadline_ms = 60'000});
  const auto not_paused = wait<reload::RankRefused>(1);
  ASSERT_EQ(not_paused.size(), 1U);
  EXPECT_EQ(not_paused[0].request, request_);
  EXPECT_EQ(not_paused[0].why, "the engine could not pause: no door");
}

TEST_F(EngineHubTest, ARefusedEngineIsReportedBetweenItsAttemptsAndUntilItAttaches) {
  const auto reported = [&] {  // long after it was refused
    std::vector<control::ReplicaReport> absent;
    hub_->absent().add_to(absent, {}, now() + 3 * AbsentEngines::kept_for());
    return absent;
  };
  const auto a = engine("a");
  hub_->add_version(stage(kV1), [] {});
  ASSERT_TRUE(a->next<control::Prepare>());
  for (int attempt = 0; attempt < 2; ++attempt) {
    RawEngine other(bench_, hub_->socket(), "b");
    control::EngineHello hello;
    hello.tensors = model_.tensors();
    hello.tensors[0].shape[0] += 1;
    other.say(std::move(hello));
    ASSERT_TRUE(other.next<control::Refuse>());
    ASSERT_TRUE(bench_.until([&] { return other.closed(); }));
    ASSERT_EQ(reported().size(), 1U) << "its process, which is that of this test, lives";
    EXPECT_EQ(reported()[0].replica, "b");
  }
  EXPECT_EQ(hub_->absent().check_forget("b").error().code(), ErrorCode::kRefused);
  const auto b = engine("b");
  ASSERT_TRUE(bench_.until([&] { return reported().empty(); }));
}

// ---- readers ----

constexpr Version kV3{.epoch = 1, .step = 3};

TEST_F(EngineHubTest, AReaderGetsTheTargetWhenItIsStagedAndEachOneAfterIt) {
  RawEngine reader(bench_, hub_->socket(), "reads");
  reader.say(control::ReadVersion{}, 1);
  hub_->add_version(stage(kV1), [] {});
  hub_->target_changed();
  RawEngine other(bench_, hub_->socket(), "other");
  other.say(control::ReadVersion{.has_step = true, .step = 1}, 4);
  const auto undecided = other.next<control::Prepare>();
  ASSERT_TRUE(undecided);
  EXPECT_EQ(undecided->second.version, kV1) << "a step may be read before it is decided";
  target_ = kV1;
  hub_->target_changed();
  const auto first = reader.next<control::Prepare>();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->second.version, kV1);
  EXPECT_EQ(first->first.request, 1U);
  EXPECT_TRUE(first->second.is_verified);
  EXPECT_FALSE(first->second.layout.empty());
  reader.say(control::ReadVersion{.after = kV1}, 2);
  // It is decided before it is staged here.
  target_ = kV3;
  hub_->target_changed();
  hub_->add_version(stage(kV3), [] {});
  const auto second = reader.next<control::Prepare>();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->second.version, kV3);
  EXPECT_EQ(second->first.request, 2U);
  // A rollback is another target as well.
  reader.say(control::ReadVersion{.after = kV3}, 3);
  target_ = kV1;
  hub_->target_changed();
  EXPECT_EQ(reader.next<control::Prepare>()->second.version, kV1);
}

TEST_F(EngineHubTest, AReaderIsToldThatAStepIsGone) {
  hub_->add_version(stage(kV3), [] {});
  RawEngine reader(bench_, hub_->socket(), "reads");
  reader.say(control::ReadVersion{.has_step = true, .step = 2}, 1);
  const auto refused = reader.next<control::Refuse>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->first.request, 1U);
  EXPECT_EQ(refused->second.reason,
            "no version of step 2 is staged here, and later ones are (staged: 1.3): ask for one of "
            "them, or raise `versions_held` of the sidecar");
  // The connection stays.
  reader.say(control::ReadVersion{.has_step = true, .step = 3}, 2);
  EXPECT_EQ(reader.next<control::Prepare>()->second.version, kV3);
}

TEST_F(EngineHubTest, AVersionThatIsReleasedWhileItIsVerifiedIsNotTheAnswer) {
  RawEngine reader(bench_, hub_->socket(), "reads");
  hub_->add_version(stage(kV1), [] {});
  hub_->add_version(stage(kV3), [] {});
  reader.say(control::ReadVersion{}, 1);
  RawEngine last(bench_, hub_->socket(), "last");
  last.say(control::ReadVersion{.has_step = true, .step = 3}, 1);
  ASSERT_TRUE(last.next<control::Prepare>()) << "so the other question has come too";
  target_ = kV1;
  hub_->target_changed();  // begins to verify it
  hub_->remove_version(kV1);
  target_ = kV3;
  hub_->target_changed();
  const auto answer = reader.next<control::Prepare>();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->second.version, kV3);
}

TEST_F(EngineHubTest, AReaderIsNoEngine) {
  const auto a = engine("a");
  a->say(control::ReadVersion{}, 1);
  const auto refused = a->next<control::Refuse>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->second.reason, "the connection of an engine cannot be that of a reader");
  const auto b = engine("attached");
  b->say_as("another", control::EngineStarting{});
  ASSERT_TRUE(b->next<control::Refuse>());
  EXPECT_TRUE(bench_.until([&] { return detached_.size() == 2; }));
  EXPECT_THAT(detached_, testing::UnorderedElementsAre("a", "attached"))
      << "it has taken another's name";
  RawEngine reader(bench_, hub_->socket(), "b");
  reader.say(control::ReadVersion{}, 1);
  reader.hello(model_);
  EXPECT_EQ(reader.next<control::Refuse>()->second.reason,
            "the connection of a reader cannot be an engine's");
  RawEngine starter(bench_, hub_->socket(), "c");
  starter.say(control::ReadVersion{}, 1);
  starter.say(control::EngineStarting{});
  EXPECT_EQ(starter.next<control::Refuse>()->second.reason,
            "the connection of a reader cannot be an engine's");
}

}  // namespace
}  // namespace wsync::agent::test
