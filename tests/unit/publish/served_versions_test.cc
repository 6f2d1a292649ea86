// The versions that a trainer serves: whoever asks gets the right bytes, whatever becomes of the
// arenas meanwhile.
#include "trainer_side/publish/served_versions.h"

#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/make_transport.h"
#include "tests/support/bytes.h"
#include "tests/support/private_directory.h"
#include "tests/unit/publish/host_weights.h"

namespace wsync::publish {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class ServedVersionsTest : public testing::Test {
 protected:
  ~ServedVersionsTest() override {
    fetches_.clear();
    worker_->stop();
  }
  void serve(std::uint32_t arenas, bool additional = false) {
    std::mt19937_64 random(23);
    for (const TensorInfo& info : manifest_->tensors()) {
      tensors_.emplace_back(*info.byte_size());
      fill_random(random, tensors_.back());
    }
    snapshotter_ = std::make_shared<Snapshotter>(
        SnapshotterOptions{.arenas = arenas, .additional_arenas = additional, .threads = 2});
    config::TrainerConfig config;
    config.run_dir = directory_.path().string();
    auto made = ServedVersions::create(*loop_, config, snapshotter_, *worker_);
    ASSERT_TRUE(made) << made.error().message();
    served_ = std::move(*made);
    ASSERT_TRUE(served_->listen());
  }
  [[nodiscard]] static Version name(std::uint64_t step) { return {.epoch = 1, .step = step}; }
  // The weights change a little, and the next version is taken of them and served. From none: it is
  // copied.
  void publish(std::uint64_t step, std::uint64_t from) {
    for (auto& bytes : tensors_)
      for (std::size_t at = step % 7; at < bytes.size(); at += 1'000) bytes[at] ^= std::byte{1};
    HostWeights weights(manifest_, tensors_, Given::kCopies);
    const SnapshotRequest wanted{.fence_epoch = 3,
                                 .version = name(step),
                                 .bucket_bytes = limits::kBucketBytesMin,
                                 .deadline = now() + std::chrono::minutes(1),
                                 .base = snapshotter_->find(name(from)),
                                 .as_changes = true};
    const auto taken = snapshotter_->take(weights, wanted);
    ASSERT_TRUE(taken) << taken.error().message();
    Snapshotter other({.threads = 2});
    contents_[step] = other.take(weights, wanted).value();
    served_->offer(*taken);
  }
  [[nodiscard]] bool is_in_arena(std::uint64_t step) const {
    return snapshotter_->find(name(step)) != nullptr;
  }
  // A process that maps the arena of a version and goes on reading it.
  [[nodiscard]] ArenaView reader(std::uint64_t step) const {
    const auto fd = snapshotter_->find(name(step))->share();
    return ArenaView::open(fd->get()).value();
  }

  struct Fetch {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::BucketSink> sink;
    std::shared_ptr<Bytes> into;
    std::optional<ArenaView> view;
    std::string failure;
    bool is_over = false;
    std::uint64_t step = 0;
  };
  // Fetches a version without having any, or what changes from the bytes of the other one.
  Fetch& fetch(std::uint64_t step, std::string_view kind = "tcp",
               std::span<const std::byte> base = {}) {
    Fetch& fetch = *fetches_.emplace_back(std::make_unique<Fetch>());
    fetch.step = step;
    fetch.transport =
        transport::make_transport(
            kind,
            [this](std::function<void()> task, std::source_location made) {
              loop_->post(std::move(task), made);
            },
            {.run_dir = directory_.path().string(), .name = "to" + std::to_string(fetches_.size())})
            .value();
    fetch.sink = fetch.transport->make_sink({}).value();
    const Snapshot& content = *contents_.at(step);
    const BucketPlan& plan = *content.plan();
    transport::FetchRequest wanted;
    for (const auto& each : served_->transports())
      if (each.kind == kind) wanted.source = each.address;
    wanted.key = {
        .fence = {.epoch = 3}, .version = name(step), .layout = content.identity().layout};
    wanted.data_bytes = plan.arena_bytes();
    for (std::size_t i = 0; i < plan.bucket_count(); ++i)
      wanted.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
    wanted.leaves = content.leaves();
    if (!fetch.transport->traits().maps_source) {
      fetch.into = std::make_shared<Bytes>(plan.arena_bytes());
      wanted.into = *fetch.into;
      wanted.hold = fetch.into;
    }
    if (!base.empty()) {
      const Snapshot& other = *contents_.at(3 - step);
      wanted.base = transport::FetchBase{.version = name(3 - step),
                                         .data = base,
                                         .hold = nullptr,
                                         .blocks = other.blocks(),
                                         .max_share = 0.4,
                                         .sums = other.digests().leaves};
    }
    const auto begun = fetch.sink->receive(std::move(wanted),
                                           {.on_bucket = [](const transport::ArrivedBucket&) {},
                                            .on_done =
                                                [&fetch](std::optional<ArenaView> view) {
                                                  fetch.view = std::move(view);
                                                  fetch.is_over = true;
                                                },
                                            .on_failure =
                                                [&fetch](const transport::StreamFailure& failure) {
                                                  fetch.failure = failure.error.message();
                                                  fetch.is_over = true;
                                                }});
    EXPECT_TRUE(begun) << begun.error().message();
    return fetch;
  }
  [[nodiscard]] bool has_come(const Fetch& fetch) const {
    return same_bytes(fetch.view ? fetch.view->data() : std::span<const std::byte>(*fetch.into),
                      contents_.at(fetch.step)->data());
  }
  void expect_comes(Fetch& fetch) {
    ASSERT_TRUE(run_until([&] { return fetch.is_over; }));
    EXPECT_EQ(fetch.failure, "");
    EXPECT_TRUE(!fetch.failure.empty() || has_come(fetch));
    fetch.view.reset();
  }
  // Returns false if it does not come.
  bool run_until(const std::function<bool()>& holds) {
    const TimePoint deadline = now() + std::chrono::minutes(2);
    Timer check(*loop_, [&] {
      if (holds() || now() > deadline) loop_->stop();
    });
    check.start_repeating(std::chrono::milliseconds(1));
    loop_->run();
    return holds();
  }
  void run_for(std::chrono::milliseconds time) {
    const TimePoint end = now() + time;
    (void)run_until([&] { return now() > end; });
  }

  PrivateDirectory directory_{"wsync_served_versions"};
  std::unique_ptr<Loop> loop_ = Loop::create().value();
  std::unique_ptr<Worker> worker_ =
      std::make_unique<Worker>(*loop_, WorkerOptions{.name = "snapshot"});
  const std::shared_ptr<const Manifest> manifest_ = std::make_shared<const Manifest>(
      Manifest::create({{"embed.weight", DType::kBF16, {1500, 1777}},
                        {"layers.0.packed", DType::kF4, {1000, 3002}},
                        {"layers.0.none", DType::kF4, {0, 4}},
                        {"layers.1.w", DType::kU8, {3 * limits::kMiB + 5}}})
          .value());
  std::vector<std::vector<std::byte>> tensors_;
  std::map<std::uint64_t, std::shared_ptr<const Snapshot>> contents_;  // copies of the test
  std::shared_ptr<Snapshotter> snapshotter_;
  std::unique_ptr<ServedVersions> served_;
  std::vector<std::unique_ptr<Fetch>> fetches_;
};

TEST_F(ServedVersionsTest, AVersionThatIsHeldAsChangesComesInFullBeforeAndAfterItsDecision) {
  serve(2);
  publish(1, 0);
  publish(2, 1);
  EXPECT_GT(served_->changes_bytes(), 0U);
  expect_comes(fetch(2));
  expect_comes(fetch(1));
  served_->make_complete(name(2));
  Fetch& newer = fetch(2);
  Fetch& older = fetch(1);
  expect_comes(newer);
  expect_comes(older);
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  EXPECT_FALSE(is_in_arena(1));
  served_->make_complete(name(1));
  ASSERT_TRUE(run_until([&] { return is_in_arena(1); }));
  expect_comes(fetch(2));
  expect_comes(fetch(1));
}

// A sidecar that maps has come after the snapshot was begun.
TEST_F(ServedVersionsTest, WhoMapsAVersionThatIsNotDecidedGetsAnotherArena) {
  serve(3);
  publish(1, 0);
  publish(2, 1);
  expect_comes(fetch(2, "memfd"));
  EXPECT_TRUE(is_in_arena(1)) << "it is not decided";
  expect_comes(fetch(1, "memfd"));
}

TEST_F(ServedVersionsTest, WhoLendsTheArenaGetsWhatChangesAndThenTheArena) {
  serve(1);
  publish(1, 0);
  std::optional<ArenaView> view = reader(1);
  publish(2, 1);
  Fetch& changes = fetch(2, "memfd", view->data());
  ASSERT_TRUE(run_until([&] { return changes.is_over; }));
  EXPECT_EQ(changes.failure, "");
  EXPECT_FALSE(changes.view.has_value());
  served_->make_complete(name(2));
  Fetch& mapped = fetch(2, "memfd");
  run_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(mapped.is_over);
  view.reset();
  ASSERT_TRUE(run_until([&] { return mapped.is_over; }));
  EXPECT_TRUE(has_come(mapped)) << mapped.failure;
  EXPECT_TRUE(is_in_arena(2));
  EXPECT_FALSE(is_in_arena(1));
  // And back.
  Fetch& back = fetch(1, "memfd", mapped.view->data());
  ASSERT_TRUE(run_until([&] { return back.is_over; }));
  EXPECT_EQ(back.failure, "");
  mapped.view.reset();
  served_->make_complete(name(1));
  expect_comes(fetch(1, "memfd"));
}

// A hung process reads the arena, and snapshots have all others. Sidecars wait for the version.
TEST_F(ServedVersionsTest, AVersionThatTheFleetWaitsForGetsAnAdditionalArena) {
  serve(2, true);
  publish(1, 0);
  const ArenaView view = reader(1);
  publish(2, 1);
  publish(7, 0);
  served_->make_complete(name(2));
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  EXPECT_TRUE(same_bytes(view.data(), contents_.at(1)->data()));
  expect_comes(fetch(2, "memfd"));
}

// Those that have lent the arena wait for it.
TEST_F(ServedVersionsTest, ASnapshotThatIsBeingTakenDelaysNoVersion) {
  serve(1);
  publish(1, 0);
  publish(2, 1);
  std::promise<void> end;
  ASSERT_TRUE(worker_->submit([ended = end.get_future().share()] { ended.wait(); }));
  served_->make_complete(name(2));
  EXPECT_TRUE(run_until([&] { return is_in_arena(2); }));
  expect_comes(fetch(2, "memfd"));
  end.set_value();
}

TEST_F(ServedVersionsTest, NorDoesItDelayAnArenaBesideAnother) {
  serve(3, true);
  publish(1, 0);
  const ArenaView view = reader(1);
  publish(2, 1);
  std::promise<void> end;
  ASSERT_TRUE(worker_->submit([ended = end.get_future().share()] { ended.wait(); }));
  served_->make_complete(name(2));
  EXPECT_TRUE(run_until([&] { return is_in_arena(2); }));
  end.set_value();
}

TEST_F(ServedVersionsTest, AnArenaForOneWhoMapsEarlyDelaysNoDecision) {
  serve(3, true);
  publish(1, 0);
  publish(2, 1);
  std::promise<void> end;
  ASSERT_TRUE(worker_->submit([ended = end.get_future().share()] { ended.wait(); }));
  Fetch& maps = fetch(2, "memfd");
  served_->make_complete(name(2));
  EXPECT_TRUE(run_until([&] { return is_in_arena(2); }));
  end.set_value();
  expect_comes(maps);
}

TEST_F(ServedVersionsTest, WhoMapsAVersionForWhichThereIsNoMemoryHearsIt) {
  serve(1);
  publish(1, 0);
  publish(2, 1);
  Fetch& maps = fetch(2, "memfd");
  ASSERT_TRUE(run_until([&] { return maps.is_over; })) << "it waits for ever";
  EXPECT_THAT(maps.failure, HasSubstr("the trainer has no arena for 1.2"));
  expect_comes(fetch(2));  // who receives copies needs none
  served_->make_complete(name(2));
  expect_comes(fetch(2, "memfd"));
}

// A rollback while the next version waits for its round. Only what changes from the version that is
// taken back is held of that, so it needs the arena too.
TEST_F(ServedVersionsTest, AVersionThatKeepsTheArenaFromARollbackIsGivenUp) {
  serve(1);
  std::vector<Version> given_up;
  served_->observe({.on_given_up = [&](const Version& version, const std::string& why) {
    given_up.push_back(version);
    EXPECT_THAT(why, HasSubstr("held as what changes from 1.2"));
  }});
  publish(1, 0);
  publish(2, 1);
  served_->make_complete(name(2));
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  publish(3, 2);
  served_->make_complete(name(1));
  ASSERT_TRUE(run_until([&] { return is_in_arena(1); })) << "both wait for each other";
  EXPECT_THAT(given_up, testing::ElementsAre(name(3)));
  expect_comes(fetch(1, "memfd"));
}

// Its disk is slow, for example, so that it has stored the decision late.
TEST_F(ServedVersionsTest, WhoLendsTheArenaLateIsAwaitedBeforeAnotherOneIsMade) {
  serve(3);
  publish(1, 0);
  std::optional<ArenaView> view = reader(1);
  publish(2, 1);
  served_->make_complete(name(2));
  run_for(std::chrono::milliseconds(1'200));
  EXPECT_FALSE(is_in_arena(2));
  view.reset();
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  EXPECT_FALSE(is_in_arena(1)) << "there are two models now";
}

TEST_F(ServedVersionsTest, WhileTheArenaIsReadAndThereIsNoOtherBothAreServed) {
  serve(1);
  publish(1, 0);
  std::optional<ArenaView> view = reader(1);
  publish(2, 1);
  served_->make_complete(name(2));
  for (int i = 0; i < 3; ++i) {
    expect_comes(fetch(2));
    expect_comes(fetch(1));
    run_for(std::chrono::milliseconds(300));
  }
  EXPECT_FALSE(is_in_arena(2));
  EXPECT_TRUE(same_bytes(view->data(), contents_.at(1)->data()));
  view.reset();
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  expect_comes(fetch(1));
}

TEST_F(ServedVersionsTest, WhileTheArenaIsReadTheVersionGetsAnotherOne) {
  serve(3);
  publish(1, 0);
  const ArenaView view = reader(1);
  publish(2, 1);
  served_->make_complete(name(2));
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  EXPECT_TRUE(is_in_arena(1));
  EXPECT_TRUE(same_bytes(view.data(), contents_.at(1)->data()));
  expect_comes(fetch(2, "memfd"));
  expect_comes(fetch(1, "memfd"));
}

// As a rollback while the arena is being changed, before a snapshot that takes long.
TEST_F(ServedVersionsTest, WhoAsksForTheOlderOneWaitsIfTheNewerOneIsWithdrawnMeanwhile) {
  serve(2);
  publish(1, 0);
  publish(2, 1);
  std::promise<void> end;
  served_->make_complete(name(2));
  served_->make_complete(name(1));
  served_->withdraw(name(2), "it was taken back");
  ASSERT_TRUE(worker_->submit([ended = end.get_future().share()] { ended.wait(); }));
  Fetch& older = fetch(1);
  run_for(std::chrono::milliseconds(200));
  end.set_value();
  expect_comes(older);
  ASSERT_TRUE(run_until([&] { return is_in_arena(1); }));
}

TEST_F(ServedVersionsTest, TheLastVersionThatIsToBeServedIsInTheArenaInTheEnd) {
  serve(2);
  publish(1, 0);
  publish(2, 1);
  served_->make_complete(name(2));
  served_->make_complete(name(1));
  // Whether the first of both has begun or not.
  for (const int wait_ms : {0, 1, 2, 5, 10, 20}) {
    served_->make_complete(name(2));
    run_for(std::chrono::milliseconds(wait_ms));
    served_->make_complete(name(1));
    run_for(std::chrono::milliseconds(300));
    ASSERT_TRUE(run_until([&] { return is_in_arena(1); })) << wait_ms;
    expect_comes(fetch(1));
    expect_comes(fetch(2));
  }
}

// As a rollback while a version waits for its round.
TEST_F(ServedVersionsTest, AVersionWhoseBaseIsWithdrawnBecomesComplete) {
  serve(2);
  publish(1, 0);
  publish(2, 1);
  served_->withdraw(name(1), "it is not needed");
  expect_comes(fetch(2));
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
}

// The arena of 2 is to go back to 1, and 3 is held as what changes from 2.
TEST_F(ServedVersionsTest, WhoAsksForAVersionWaitsWhileItsBaseIsToChangePlaces) {
  serve(3);
  publish(1, 0);
  publish(2, 1);
  served_->make_complete(name(2));
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  publish(3, 2);
  served_->make_complete(name(1));
  run_for(std::chrono::milliseconds(50));
  Fetch& third = fetch(3);
  Fetch& first = fetch(1);
  expect_comes(third);
  expect_comes(first);
  ASSERT_TRUE(run_until([&] { return is_in_arena(1); }));
  expect_comes(fetch(3));
  served_->withdraw(name(2), "it is not needed");
  expect_comes(fetch(3));
  ASSERT_TRUE(run_until([&] { return is_in_arena(3); }));
}

TEST_F(ServedVersionsTest, AVersionWhoseBaseIsGoneIsOfferedWhenItIsComplete) {
  serve(2);
  publish(1, 0);
  std::shared_ptr<const Snapshot> base = snapshotter_->find(name(1));
  served_->withdraw(name(1), "it is not needed");
  publish(2, 1);
  base.reset();
  expect_comes(fetch(2));
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
}

TEST_F(ServedVersionsTest, AWithdrawnVersionIsNotOfferedAgain) {
  serve(2);
  publish(1, 0);
  publish(2, 1);
  served_->make_complete(name(2));
  served_->withdraw(name(1), "it is not needed");
  ASSERT_TRUE(run_until([&] { return is_in_arena(2); }));
  expect_comes(fetch(2));
  EXPECT_EQ(served_->changes_bytes(), 0U);
}

// Versions are decided, taken back and withdrawn at any moment, while others fetch them.
TEST_F(ServedVersionsTest, WhateverHappensWhatIsServedComes) {
  serve(3);
  std::mt19937_64 random(5);
  const auto some_time = [&] { run_for(std::chrono::milliseconds(random() % 20)); };
  publish(1, 0);
  std::uint64_t target = 1;
  std::uint64_t previous = 0;
  std::map<std::uint64_t, bool> is_withdrawn;
  const auto withdraw = [&](std::uint64_t step) {
    if (step == 0) return;
    is_withdrawn[step] = true;
    served_->withdraw(name(step), "it is not needed");
  };
  for (std::uint64_t step = 2; step < 50; ++step) {
    publish(step, target);
    fetch(step);
    some_time();
    served_->make_complete(name(step));
    withdraw(previous);
    previous = std::exchange(target, step);
    fetch(random() % 2 == 0 ? target : previous);
    some_time();
    if (random() % 3 != 0) continue;
    served_->make_complete(name(previous));
    some_time();
    withdraw(target);
    target = std::exchange(previous, 0);
    fetch(target);
    some_time();
  }
  ASSERT_TRUE(run_until([&] {
    return std::ranges::all_of(fetches_, [](const auto& fetch) { return fetch->is_over; });
  }));
  std::size_t came = 0;
  for (const auto& fetch : fetches_) {
    if (fetch->failure.empty()) {
      ++came;
      EXPECT_TRUE(has_come(*fetch)) << fetch->step;
    } else {
      EXPECT_TRUE(is_withdrawn[fetch->step]) << fetch->step << ": " << fetch->failure;
      EXPECT_THAT(fetch->failure,
                  AnyOf(HasSubstr("it is not needed"), HasSubstr("is not offered here")));
    }
  }
  EXPECT_GT(came, 50U);
  ASSERT_TRUE(run_until([&] { return is_in_arena(target); }));
}

}  // namespace
}  // namespace wsync::publish
