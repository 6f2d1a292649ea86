// How a copy of which only the changes are held gets its memory, what is passed on to late
// sidecars, and how a version comes whose parts have sources of their own.
#include "inference_side/sidecar/version_receiver.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <thread>

#include "inference_side/sidecar/offered_layouts.h"
#include "shared/transport/make_transport.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/weights/leaf_check.h"
#include "shared/weights/parts.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/bytes.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {
namespace {

using staging::Store;

class VersionReceiverTest : public testing::Test {
 protected:
  using Held = std::shared_ptr<const staging::HeldVersion>;
  VersionReceiverTest() {
    config_.name = "s";
    config_.run_dir = bench_.directory();
    VersionReceiverOptions options;
    options.config = &config_;
    options.layouts = &layouts_;
    options.trace = &switch_trace_;
    options.metrics = &metrics_;
    options.fence = [this]() -> const control::Fence& { return fence_; };
    options.target = [] { return kV1; };
    options.step = [this](decltype(staging::SidecarEvent::what) what) {
      if (auto* one = std::get_if<staging::VersionCompleted>(&what)) completed_ = *one;
      if (auto* done = std::get_if<staging::StagingDone>(&what)) staged_ = *done;
      if (auto* failed = std::get_if<staging::StagingFailed>(&what)) failed_ = *failed;
    };
    options.keep_changes = true;
    options.prepare = [](const Held&, const auto&, const std::function<void()>& on_ready,
                         std::chrono::milliseconds) { on_ready(); };
    options.prepare_changes = [this](const Held&, const auto& changes,
                                     std::function<void()> on_ready, std::chrono::milliseconds) {
      leads_back_ = changes->base;
      on_ready_ = std::move(on_ready);
    };
    options.forget = [this](const Version& version, bool) { forgotten_.push_back(version); };
    receiver_ = VersionReceiver::create(bench_.loop(), std::move(options)).value();
    const EngineRegistry registry{RegistryDevices{}};
    control::Announce announce;
    ByteWriter layout;
    model_.manifest->encode(layout);
    announce.layout = std::move(layout).take();
    announce.layout_digest = model_.manifest->layout_digest();
    announce.bucket_bytes = model_.plan->bucket_bytes();
    announce.arena_bytes = model_.plan->arena_bytes();
    EXPECT_EQ(layouts_.check({.round = 1, .announce = announce}, registry, store(), 2).reason, "");
  }
  [[nodiscard]] Store& store() { return receiver_->store(); }
  [[nodiscard]] staging::StagingJob job(const Version& version) const {
    return {.identity = model_.identity(version),
            .manifest = model_.manifest,
            .plan = model_.plan,
            .leaves = model_.leaves,
            .blocks = blocks_};
  }
  [[nodiscard]] Bytes bytes(const Version& version) const {
    Bytes made(model_.plan->arena_bytes());
    for (std::size_t at = 0; at < made.size(); ++at) made[at] = Model::byte_of(version, at);
    return made;
  }
  [[nodiscard]] std::vector<WordSum> sums(const Version& version, std::size_t bucket) const {
    std::vector<WordSum> made;
    const Bytes data = bytes(version);
    for (const LeafPlace& leaf : model_.leaves->bucket(bucket))
      made.push_back(word_sum(std::span(data).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    return made;
  }
  void stage(const Version& version) {
    std::span<std::byte> into;
    bool is_staged = false;
    ASSERT_TRUE(store().begin_own(
        job(version), [&](Result<staging::Destination> memory) { into = memory.value().data; },
        [&](const Result<Held>& held) { is_staged = held.has_value(); }));
    ASSERT_TRUE(bench_.until([&] { return !into.empty(); }));
    std::ranges::copy(bytes(version), into.begin());
    for (std::size_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket)
      store().bucket_arrived(bucket, sums(version, bucket));
    store().all_arrived();
    ASSERT_TRUE(bench_.until([&] { return is_staged; }));
  }
  void stage_changes(const Version& version, const Version& base) {
    bool is_staged = false;
    ASSERT_TRUE(store().begin_changes(
        job(version), base, [&](const Result<Held>& held) { is_staged = held.has_value(); }));
    patch::LeafChangesMaker maker;
    for (std::size_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket)
      store().changes_arrived(bucket, sums(version, bucket),
                              std::make_shared<const Bytes>(
                                  *maker.make(*blocks_, model_.leaves->bucket(bucket), bytes(base),
                                              bytes(version), 4 * model_.plan->arena_bytes())));
    store().all_arrived();
    ASSERT_TRUE(bench_.until([&] { return is_staged; }));
  }

  // The transport `tcp` of another process, on the loop of this one.
  std::unique_ptr<transport::Transport> tcp_of(const std::string& name) {
    auto transports =
        transport::make_transports("tcp",
                                   [this](std::function<void()> task, std::source_location made) {
                                     bench_.loop().post(std::move(task), made);
                                   },
                                   {.run_dir = bench_.directory(), .name = name})
            .value();
    return std::move(transports.front());
  }

  Bench bench_;
  Model model_;
  std::shared_ptr<const patch::Layout> blocks_ =
      std::make_shared<const patch::Layout>(*model_.manifest);
  config::SidecarConfig config_;
  OfferedLayouts layouts_;
  trace::Recorder recorder_{100, trace::WhenFull::kDropOldest};
  SwitchTrace switch_trace_{recorder_};
  SidecarMetrics metrics_;
  control::Fence fence_{.epoch = 1};
  std::unique_ptr<VersionReceiver> receiver_;
  std::optional<staging::VersionCompleted> completed_;
  std::optional<staging::StagingDone> staged_;
  std::optional<staging::StagingFailed> failed_;
  std::function<void()> on_ready_;
  Version leads_back_;
  std::vector<Version> forgotten_;
};

// The patch that leads back is made while the newer version is served and its memory is not
// touched. The time for that is none in which readers had to end.
TEST_F(VersionReceiverTest, AWayBackThatTakesLongStillGoesInPlace) {
  stage(kV1);
  stage_changes(kV2, kV1);
  receiver_->complete({.version = kV2, .base = kV1, .in_place = true});
  ASSERT_TRUE(bench_.until([&] { return completed_.has_value(); }));
  EXPECT_EQ(completed_->failure, "");
  EXPECT_TRUE(completed_->in_place);
  EXPECT_FALSE(on_ready_) << "what leads to a newer version was made when it came";
  completed_.reset();
  forgotten_.clear();

  receiver_->complete({.version = kV1, .base = kV2, .in_place = true});
  ASSERT_TRUE(on_ready_);
  EXPECT_EQ(leads_back_, kV2);
  EXPECT_TRUE(forgotten_.empty()) << "engines may still be given the newer version";
  std::this_thread::sleep_for(std::chrono::milliseconds(1'200));  // longer than readers are awaited
  on_ready_();
  ASSERT_TRUE(bench_.until([&] { return completed_.has_value(); }));
  EXPECT_EQ(completed_->failure, "");
  ASSERT_TRUE(completed_->in_place);
  EXPECT_EQ(forgotten_, std::vector<Version>{kV2});
  EXPECT_EQ(store().bytes(), model_.plan->arena_bytes() + store().changes_of(kV2)->bytes());
}

// A replica goes back to a version that is held as changes, and the trainer has no arena for it.
TEST_F(VersionReceiverTest, ATrainerWithoutMemoryIsNotAwaitedForEver) {
  const SharedArena arena = model_.protected_arena(kV1);
  bool is_staged = false;
  ASSERT_TRUE(
      store().begin(job(kV1), [&](const Result<Held>& held) { is_staged = held.has_value(); }));
  store().view_arrived(ArenaView::open(arena.share()->get()).value());
  ASSERT_TRUE(bench_.until([&] { return is_staged; }));
  stage_changes(kV2, kV1);
  const auto source = transport::memfd::MemfdSource::listen(
                          {.path = bench_.directory() + "/trainer-host.sock"},
                          [this](std::function<void()> task, std::source_location made) {
                            bench_.loop().post(std::move(task), made);
                          })
                          .value();
  int wanted = 0;
  transport::Offer offer{
      .key = {.fence = {.epoch = 1}, .version = kV2, .layout = model_.manifest->layout_digest()},
      .buckets = {},
      .data = {},
      .base = kV1,
      .leaves = model_.leaves,
      .blocks = blocks_,
      .complete = false};
  for (std::size_t i = 0; i < model_.plan->bucket_count(); ++i)
    offer.buckets.push_back(
        {.offset = model_.plan->bucket_offset(i), .bytes = model_.plan->bucket_size(i)});
  // As the versions that a trainer serves do when they find no memory.
  offer.on_memory_wanted = [&] {
    ++wanted;
    source->withdraw(kV2, "the trainer has no arena for it");
  };
  source->offer(offer);
  for (std::size_t i = 0; i < model_.plan->bucket_count(); ++i)
    source->bucket_ready(kV2, i, {}, store().changes_of(kV2)->buckets[i]);
  receiver_->watch({.transports = {{.kind = "memfd", .address = source->address()}}});
  receiver_->complete({.version = kV2, .base = kV1, .in_place = false});
  ASSERT_TRUE(bench_.until([&] { return completed_.has_value(); }));
  EXPECT_EQ(wanted, 1);
  EXPECT_EQ(completed_->failure, "") << "it is copied, because the base and the changes are here";
}

// What a late sidecar does: it fetches a version from the relay of this one, under this fence.
class RelayHeldTest : public VersionReceiverTest {
 protected:
  RelayHeldTest() {
    transport_ = tcp_of("late");
    sink_ = transport_->make_sink({}).value();
  }
  void map(const Version& version) {
    arena_ = model_.protected_arena(version);
    bool is_staged = false;
    ASSERT_TRUE(store().begin(job(version),
                              [&](const Result<Held>& held) { is_staged = held.has_value(); }));
    store().view_arrived(ArenaView::open(arena_->share()->get()).value());
    ASSERT_TRUE(bench_.until([&] { return is_staged; }));
  }
  // Returns why nothing came, or nothing.
  std::string fetch(const Version& version) {
    const auto transports = receiver_->transports();
    transport::FetchRequest wanted;
    wanted.source = control::find_transport(transports, "tcp")->address;
    wanted.key = {.fence = {.epoch = fence_.epoch, .run_id = fence_.run_id},
                  .version = version,
                  .layout = model_.manifest->layout_digest()};
    wanted.data_bytes = model_.plan->arena_bytes();
    wanted.leaves = model_.leaves;
    for (std::size_t i = 0; i < model_.plan->bucket_count(); ++i)
      wanted.buckets.push_back(
          {.offset = model_.plan->bucket_offset(i), .bytes = model_.plan->bucket_size(i)});
    fetched_.assign(model_.plan->arena_bytes(), std::byte{});
    wanted.into = fetched_;
    std::optional<std::string> outcome;
    EXPECT_TRUE(sink_->receive(
        std::move(wanted),
        {.on_bucket = [](const transport::ArrivedBucket&) {},
         .on_done = [&](const std::optional<ArenaView>&) { outcome = ""; },
         .on_failure =
             [&](const transport::StreamFailure& failure) { outcome = failure.error.message(); }}));
    EXPECT_TRUE(bench_.until([&] { return outcome.has_value(); }));
    return outcome.value_or("nothing has come");
  }

  // Whether every byte of a tensor is that of the version; what is between tensors does not travel.
  [[nodiscard]] bool has_come(const Version& version) const {
    const Bytes expected = bytes(version);
    for (std::size_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket)
      for (const LeafPlace& leaf : model_.leaves->bucket(bucket))
        if (!std::ranges::equal(std::span(fetched_).subspan(leaf.arena_offset, leaf.bytes),
                                std::span(expected).subspan(leaf.arena_offset, leaf.bytes)))
          return false;
    return true;
  }

  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::BucketSink> sink_;
  std::optional<SharedArena> arena_;
  Bytes fetched_;
};

TEST_F(RelayHeldTest, AMappedVersionIsPassedOnWhenThatIsAsked) {
  map(kV1);
  const auto ready = receiver_->relay_held(kV1, true);
  ASSERT_TRUE(ready.has_value()) << ready.error().message();
  EXPECT_EQ(ready->layout_digest, model_.manifest->layout_digest());
  EXPECT_EQ(read_layout(ready->layout).value().layout_digest(), ready->layout_digest);
  EXPECT_EQ(ready->content_digest, store().find(kV1)->digests().root);
  EXPECT_EQ(ready->bucket_bytes, model_.plan->bucket_bytes());
  EXPECT_EQ(ready->arena_bytes, model_.plan->arena_bytes());
  EXPECT_EQ(fetch(kV1), "");
  EXPECT_TRUE(has_come(kV1));
  EXPECT_TRUE(receiver_->relay_held(kV1, false)->layout.empty());
}

TEST_F(RelayHeldTest, AnOfferIsGoodUnderTheNextFenceAsWell) {
  map(kV1);
  ASSERT_TRUE(receiver_->relay_held(kV1, false));
  fence_.epoch = 2;
  receiver_->watch({});
  ASSERT_TRUE(receiver_->relay_held(kV1, false));
  EXPECT_EQ(fetch(kV1), "");
  EXPECT_TRUE(has_come(kV1));
}

TEST_F(RelayHeldTest, WhatIsNotHereAsAWholeIsNotPassedOn) {
  stage(kV1);
  stage_changes(kV2, kV1);
  for (const Version& version : {kV2, kV3}) {
    const auto ready = receiver_->relay_held(version, true);
    ASSERT_FALSE(ready.has_value());
    EXPECT_NE(ready.error().message().find("does not hold"), std::string::npos);
  }
}

TEST_F(RelayHeldTest, WhatIsReleasedIsNotPassedOnAnyMore) {
  map(kV1);
  ASSERT_TRUE(receiver_->relay_held(kV1, false));
  receiver_->release({kV1});
  EXPECT_NE(fetch(kV1), "");
  EXPECT_FALSE(receiver_->relay_held(kV1, false));
}

// A version of one bucket of eight leaves, which arrive one by one.
class LeavesTest : public RelayHeldTest {
 protected:
  LeavesTest() {
    fill_random(random_, data_);
    for (const LeafPlace& leaf : leaves_->all())
      sums_.push_back(
          word_sum(std::span(data_).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    ByteWriter layout;
    manifest_->encode(layout);
    announce_ = {.version = kV1,
                 .layout_digest = manifest_->layout_digest(),
                 .layout = std::move(layout).take(),
                 .content_digest = digests_of_leaves(*manifest_, sums_).value().root,
                 .bucket_bytes = kBytes,
                 .arena_bytes = kBytes};
    const EngineRegistry registry{RegistryDevices{}};
    EXPECT_EQ(layouts_.check({.round = 1, .announce = announce_}, registry, store(), 2).reason, "");
    source_->offer({.key = key(),
                    .buckets = {{.offset = 0, .bytes = kBytes}},
                    .data = data_,
                    .leaves = leaves_,
                    .complete = false});
  }
  [[nodiscard]] transport::StreamKey key() const {
    return {.fence = {.epoch = fence_.epoch, .run_id = fence_.run_id},
            .version = kV1,
            .layout = manifest_->layout_digest()};
  }
  // The sidecar receives it from the trainer.
  void start() {
    receiver_->start({.attempt = 1,
                      .announce = announce_,
                      .stage = {.version = kV1,
                                .transport = "tcp",
                                .source = source_->address(),
                                .content_digest = announce_.content_digest}});
  }
  // The next sidecar of the chain receives it from this one.
  void join() {
    fetched_.assign(kBytes, std::byte{});
    const auto transports = receiver_->transports();
    transport::FetchRequest wanted;
    wanted.source = control::find_transport(transports, "tcp")->address;
    wanted.key = key();
    wanted.data_bytes = kBytes;
    wanted.leaves = leaves_;
    wanted.buckets = {{.offset = 0, .bytes = kBytes}};
    wanted.into = fetched_;
    EXPECT_TRUE(sink_->receive(
        std::move(wanted),
        {.on_bucket = [](const transport::ArrivedBucket&) {},
         .on_leaves =
             [this](const transport::ArrivedLeaves& more) { passed_on_ += more.sums.size(); },
         .on_done = [this](const std::optional<ArenaView>&) { is_done_ = true; },
         .on_failure =
             [](const transport::StreamFailure& failure) {
               ADD_FAILURE() << failure.error.message();
             }}));
  }

  static constexpr std::uint64_t kBytes = 8 * limits::kMiB;
  std::mt19937_64 random_{1};
  Bytes data_ = Bytes(kBytes);
  const std::shared_ptr<const Manifest> manifest_ = std::make_shared<const Manifest>(
      Manifest::create({{.name = "t", .dtype = DType::kU8, .shape = {kBytes}}}).value());
  const std::shared_ptr<const LeafTable> leaves_ =
      std::make_shared<const LeafTable>(*manifest_, BucketPlan::create(*manifest_, kBytes).value());
  std::vector<WordSum> sums_;
  control::Announce announce_;
  std::unique_ptr<transport::Transport> trainer_ = tcp_of("trainer");
  std::unique_ptr<transport::BucketSource> source_ = trainer_->listen().value();
  std::size_t passed_on_ = 0;
  bool is_done_ = false;
};

TEST_F(LeavesTest, ArePassedOnBeforeTheirBucketHasArrived) {
  source_->leaves_ready(kV1, {.bucket = 0, .first = 0, .sums = {sums_.begin(), sums_.begin() + 3}});
  start();
  join();
  ASSERT_TRUE(bench_.until([&] { return passed_on_ == 3 || failed_; })) << passed_on_;
  ASSERT_FALSE(failed_) << failed_->reason;
  EXPECT_FALSE(staged_);
  EXPECT_EQ(receiver_->staged_bytes(), 0U) << "a bucket counts when it is complete";
  source_->bucket_summed(kV1, 0, sums_);
  ASSERT_TRUE(bench_.until([&] { return (staged_ && is_done_) || failed_; }));
  ASSERT_TRUE(staged_) << failed_->reason;
  EXPECT_EQ(staged_->content_digest, announce_.content_digest);
  EXPECT_EQ(fetched_, data_);
}

// A version of two parts: every other leaf is of part 1.
class PartsTest : public RelayHeldTest {
 protected:
  PartsTest() {
    std::vector<PartRange> ranges;
    for (std::uint32_t tensor = 0; tensor < model_.manifest->size(); ++tensor)
      if (const std::uint64_t bytes = model_.manifest->byte_size(tensor); bytes >= 32)
        ranges.push_back({.tensor = tensor, .part = 1, .begin = 8, .end = bytes / 16 * 8});
    const Parts parts = Parts::create(*model_.manifest, std::move(ranges)).value();
    plan_ = std::make_shared<const BucketPlan>(
        BucketPlan::create(*model_.manifest, model_.plan->bucket_bytes(), parts).value());
    leaves_ = std::make_shared<const LeafTable>(*model_.manifest, *plan_);
    ByteWriter layout;
    model_.manifest->encode(layout);
    ByteWriter cut;
    parts.encode(cut);
    announce_ = {.version = kV1,
                 .layout_digest = model_.manifest->layout_digest(),
                 .layout = std::move(layout).take(),
                 .content_digest = {},
                 .bucket_bytes = model_.plan->bucket_bytes(),
                 .arena_bytes = model_.plan->arena_bytes(),
                 .parts = std::move(cut).take()};
    data_ = bytes(kV1);
    const auto sums = sum_leaves(*model_.leaves, data_, 1).value();
    announce_.content_digest = digests_of_leaves(*model_.manifest, sums).value().root;
    const EngineRegistry registry{RegistryDevices{}};
    EXPECT_EQ(layouts_.check({.round = 1, .announce = announce_}, registry, store(), 2).reason, "");
    for (std::uint32_t part = 0; part < 2; ++part) {
      ranks_.push_back(tcp_of("rank" + std::to_string(part)));
      sources_.push_back(ranks_.back()->listen().value());
    }
  }
  // As a rank does that has this part alone.
  void serve(std::uint32_t part) {
    transport::Offer offer{.key = {.fence = {.epoch = fence_.epoch, .run_id = fence_.run_id},
                                   .version = kV1,
                                   .layout = model_.manifest->layout_digest()},
                           .buckets = {},
                           .data = data_,
                           .leaves = leaves_,
                           .complete = false,
                           .hold = {},
                           .share = {}};
    for (std::size_t i = 0; i < plan_->bucket_count(); ++i)
      offer.buckets.push_back({.offset = plan_->bucket_offset(i), .bytes = plan_->bucket_size(i)});
    sources_[part]->offer(std::move(offer));
    for (std::size_t i = 0; i < plan_->bucket_count(); ++i) {
      if (plan_->bucket_part(i) != part) continue;
      std::vector<WordSum> sums;
      for (const LeafPlace& leaf : leaves_->bucket(i))
        sums.push_back(
            word_sum(std::span(data_).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
      sources_[part]->bucket_ready(kV1, i, bucket_digest(sums));
    }
  }
  [[nodiscard]] staging::StartStaging start(std::uint64_t attempt, bool resume = false) const {
    return {.attempt = attempt,
            .announce = announce_,
            .stage = {.version = kV1,
                      .transport = "tcp",
                      .source = sources_[0]->address(),
                      .content_digest = announce_.content_digest,
                      .key = {},
                      .parts = {{.transport = "tcp", .source = sources_[1]->address(), .key = {}}}},
            .resume = resume};
  }
  void until_staged() {
    ASSERT_TRUE(bench_.until([&] { return staged_ || failed_; }));
    ASSERT_TRUE(staged_) << failed_->reason;
  }

  std::shared_ptr<const BucketPlan> plan_;
  std::shared_ptr<const LeafTable> leaves_;
  control::Announce announce_;
  Bytes data_;
  std::vector<std::unique_ptr<transport::Transport>> ranks_;
  std::vector<std::unique_ptr<transport::BucketSource>> sources_;
};

TEST_F(PartsTest, EachPartComesFromItsSource) {
  serve(0);
  serve(1);
  receiver_->start(start(1));
  until_staged();
  EXPECT_EQ(staged_->content_digest, announce_.content_digest);
  const Held held = store().find(kV1);
  EXPECT_EQ(held->plan()->bucket_count(), model_.plan->bucket_count());
  EXPECT_TRUE(held->verify(1).has_value());
  for (const auto& source : sources_) EXPECT_EQ(source->counters().refused, 0U);
  EXPECT_EQ(sources_[0]->counters().buckets + sources_[1]->counters().buckets,
            plan_->bucket_count());
  // A late sidecar fetches it from here as it came.
  const auto ready = receiver_->relay_held(kV1, false);
  ASSERT_TRUE(ready.has_value()) << ready.error().message();
  EXPECT_EQ(ready->parts, announce_.parts);
  EXPECT_NE(fetch(kV1), "") << "it is cut otherwise";
}

TEST_F(PartsTest, ALostPartIsNamedAndTheRestIsKept) {
  serve(0);
  const std::string gone = sources_[1]->address();
  sources_[1].reset();
  ranks_[1].reset();
  staging::StartStaging command{.attempt = 1,
                                .announce = announce_,
                                .stage = {.version = kV1,
                                          .transport = "tcp",
                                          .source = sources_[0]->address(),
                                          .content_digest = announce_.content_digest,
                                          .key = {},
                                          .parts = {{.transport = "tcp", .source = gone}}}};
  receiver_->start(command);
  ASSERT_TRUE(bench_.until([&] { return failed_.has_value(); }));
  EXPECT_TRUE(failed_->source_lost);
  EXPECT_NE(failed_->reason.find("part 2 of 2 from " + gone), std::string::npos) << failed_->reason;
  const std::uint64_t sent = sources_[0]->counters().buckets;
  EXPECT_GT(sent, 0U);
  // The rank has come back at another address: nothing of part 0 travels again.
  failed_.reset();
  ranks_[1] = tcp_of("rank1");
  sources_[1] = ranks_[1]->listen().value();
  serve(1);
  receiver_->start(start(2, true));
  until_staged();
  EXPECT_EQ(sources_[0]->counters().buckets, sent);
}

TEST_F(PartsTest, NobodyMapsAVersionWithParts) {
  staging::StartStaging command = start(1);
  command.stage.transport = "memfd";
  receiver_->start(command);
  ASSERT_TRUE(bench_.until([&] { return failed_.has_value(); }));
  EXPECT_NE(failed_->reason.find("cannot be mapped by memfd"), std::string::npos)
      << failed_->reason;
}

TEST_F(PartsTest, TheSourcesMustBeThoseOfAllParts) {
  staging::StartStaging command = start(1);
  command.stage.parts.push_back(command.stage.parts.front());
  receiver_->start(command);
  ASSERT_TRUE(bench_.until([&] { return failed_.has_value(); }));
  EXPECT_NE(failed_->reason.find("the sources of 3 parts"), std::string::npos) << failed_->reason;
}

}  // namespace
}  // namespace wsync::agent::test
