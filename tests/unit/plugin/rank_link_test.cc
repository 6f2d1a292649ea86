// Ranks above 0 and rank 0's end of their links, over real sockets: what happens to publishes when
// a process on either side is replaced. The loop runs on a thread of its own.
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "shared/base/format.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/plugin/rank_gather.h"
#include "trainer_side/plugin/rank_hub.h"
#include "trainer_side/plugin/rank_role.h"

namespace wsync::plugin {
namespace {

using control::PublishState;
using testing::HasSubstr;

constexpr std::uint64_t kBytes = 64;

TimePoint in_time() { return now() + std::chrono::seconds(30); }

// Weights that are all one byte; counts how often they were read.
struct Values {
  std::byte value{1};
  std::atomic<int> reads = 0;
  RankTensors tensors = std::make_shared<const std::vector<publish::RankTensor>>(
      1, publish::RankTensor{.info = {.name = "w", .dtype = DType::kU8, .shape = {kBytes}},
                             .range = {},
                             .bytes = publish::ReadTensor(
                                 [this](std::uint64_t, std::span<std::byte> into) -> Result<> {
                                   ++reads;
                                   std::ranges::fill(into, value);
                                   return {};
                                 })});
};

class RankLink : public testing::Test {
 protected:
  struct Hub {
    explicit Hub(std::uint32_t world_size) : gather(world_size) {}
    RankGather gather;
    std::unique_ptr<RankHub> hub;
  };
  // A process of a rank.
  struct Follower {
    PublishBoard board;
    std::promise<Error> stopped;
    Values values;
    std::unique_ptr<RankRole> role;
    [[nodiscard]] control::PublishStatus wait(std::uint64_t id, PublishState state) const {
      const auto view = board.wait(id, state, in_time());
      return view ? view->status : control::PublishStatus{.reason = view.error().message()};
    }
  };

  void SetUp() override {
    std::array<char, 32> name{"/tmp/wsync-test-XXXXXX"};
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    config_.run_dir = name.data();
    loop_ = Loop::create().value();
    thread_ = std::thread([this] { loop_->run(); });
  }
  void TearDown() override {
    on_loop([this] {
      followers_.clear();
      for (const auto& hub : hubs_) hub->hub.reset();
    });
    loop_->stop();
    thread_.join();
    hubs_.clear();
    loop_.reset();
    std::filesystem::remove_all(config_.run_dir);
  }

  void on_loop(std::function<void()> work) {
    std::promise<void> done;
    loop_->post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  Hub& listen(std::uint32_t world_size, Claim how = Claim::kIfFree) {
    hubs_.push_back(std::make_unique<Hub>(world_size));
    on_loop([&, hub = hubs_.back().get()] {
      auto listening = RankHub::listen(*loop_, rank_socket(config_), hub->gather, how);
      ASSERT_TRUE(listening.has_value()) << listening.error().message();
      hub->hub = std::move(*listening);
    });
    return *hubs_.back();
  }
  Follower& follow(std::uint32_t rank, std::uint32_t world_size, std::uint32_t incarnation = 0) {
    followers_.push_back(std::make_unique<Follower>());
    Follower& follower = *followers_.back();
    on_loop([&] {
      follower.role =
          make_follower_rank(*loop_,
                             {.config = config_,
                              .rank = rank,
                              .world_size = world_size,
                              .incarnation = incarnation,
                              .on_stopped = [&](const Error& e) { follower.stopped.set_value(e); }},
                             follower.board)
              .value();
    });
    return follower;
  }
  std::uint64_t publish(Follower& follower, std::uint64_t step, Weights weights = Weights::kNew) {
    const auto id = follower.board.open(step, weights);
    EXPECT_TRUE(id.has_value()) << id.error().message();
    on_loop([&] {
      follower.role->publish({.id = *id, .step = step, .tensors = follower.values.tensors});
    });
    return *id;
  }
  void notify(Hub& hub, const control::PublishStatus& status) {
    on_loop([&] { hub.hub->notify(status); });
  }
  // Rank 0 has the same tensor, so that whatever the others have is a model.
  std::string collect(Hub& hub, std::uint64_t step) {
    const auto source = hub.gather.collect(step, *lead_.tensors, in_time());
    return source ? "gathered" : source.error().message();
  }
  // Until the rank's hello has arrived.
  static void until_connected(Hub& hub, std::uint32_t rank) {
    hub.gather.no_more(1);
    const Values lead;
    for (;;) {
      const auto missing = hub.gather.collect(1, *lead.tensors, in_time());
      ASSERT_FALSE(missing.has_value());
      if (missing.error().message().find(fmt::format("rank {} is not connected", rank)) ==
          std::string::npos)
        return;
    }
  }
  // The step is lost although some ranks may have reported it; the others are told.
  std::string lose(Hub& hub, std::uint64_t step) {
    hub.gather.no_more(step);
    std::string why = collect(hub, step);
    notify(hub, {.step = step,
                 .state = PublishState::kFailed,
                 .code = ErrorCode::kPeerLost,
                 .reason = why});
    hub.gather.expect(step);
    return why;
  }
  static control::PublishStatus committed(std::uint64_t step) {
    return {.step = step, .state = PublishState::kCommitted, .version = {.epoch = 1, .step = step}};
  }

  config::TrainerConfig config_;
  Values lead_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
  std::vector<std::unique_ptr<Hub>> hubs_;
  std::vector<std::unique_ptr<Follower>> followers_;
};

TEST_F(RankLink, AProcessThatWasReplacedIsToldAndStops) {
  Hub& hub = listen(2);
  Follower& old = follow(1, 2);
  const std::uint64_t first = publish(old, 1);
  EXPECT_EQ(collect(hub, 1), "gathered");
  Follower& next = follow(1, 2, 1);
  const Error why = old.stopped.get_future().get();
  EXPECT_EQ(why.code(), ErrorCode::kFenced);
  EXPECT_THAT(why.message(), HasSubstr("rank 1 was replaced"));
  EXPECT_THAT(
      why.message(),
      HasSubstr("(incarnation 1) is that rank now, and messages of incarnation 0 are refused"));
  EXPECT_EQ(old.wait(first, PublishState::kFailed).code, ErrorCode::kFenced);
  const auto refused = old.wait(publish(old, 2), PublishState::kFailed);
  EXPECT_EQ(refused.code, ErrorCode::kFenced);
  EXPECT_EQ(refused.reason, why.message());
  const std::uint64_t second = publish(next, 2);
  EXPECT_EQ(collect(hub, 2), "gathered");
  notify(hub, committed(2));
  EXPECT_EQ(next.wait(second, PublishState::kCommitted).state, PublishState::kCommitted);
  // One from before that connects only now.
  EXPECT_EQ(follow(1, 2).stopped.get_future().get().code(), ErrorCode::kFenced);
}

TEST_F(RankLink, AStepThatWasLostIsPublishedOnceMoreByAll) {
  Hub& hub = listen(3);
  Follower& stays = follow(2, 3);
  until_connected(hub, 2);
  const std::uint64_t before = publish(stays, 4);
  EXPECT_EQ(stays.wait(before, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
  EXPECT_THAT(lose(hub, 4), HasSubstr("rank 1 is not connected"));
  EXPECT_EQ(stays.wait(before, PublishState::kFailed).code, ErrorCode::kPeerLost);
  Follower& next = follow(1, 3, 1);
  const std::uint64_t comes = publish(next, 4);
  const std::uint64_t again = publish(stays, 4, Weights::kSame);
  EXPECT_EQ(collect(hub, 4), "gathered");
  notify(hub, committed(4));
  EXPECT_EQ(stays.wait(again, PublishState::kCommitted).state, PublishState::kCommitted);
  EXPECT_EQ(next.wait(comes, PublishState::kCommitted).state, PublishState::kCommitted);
  EXPECT_EQ(stays.wait(before, PublishState::kFailed).state, PublishState::kFailed);
}

TEST_F(RankLink, OtherBytesUnderAStepThatWasLostAreRefusedWithBothDigests) {
  Hub& hub = listen(2);
  Follower& stays = follow(1, 2);
  until_connected(hub, 1);
  const std::uint64_t id = publish(stays, 6);
  EXPECT_EQ(stays.wait(id, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
  notify(
      hub,
      {.step = 6, .state = PublishState::kFailed, .code = ErrorCode::kPeerLost, .reason = "lost"});
  EXPECT_EQ(stays.wait(id, PublishState::kFailed).reason, "lost");
  stays.values.value = std::byte{2};
  const auto other = stays.wait(publish(stays, 6), PublishState::kFailed);
  EXPECT_EQ(other.code, ErrorCode::kRefused);
  EXPECT_THAT(other.reason, HasSubstr("rank 1: two contents of step 6: process"));
  EXPECT_EQ(collect(hub, 6), other.reason);
}

TEST_F(RankLink, APublishThatFollowsOneThatHasNotEndedSharesItsEnd) {
  Hub& hub = listen(2);
  Follower& stays = follow(1, 2);
  const std::uint64_t first = publish(stays, 4);
  const std::uint64_t second = publish(stays, 4, Weights::kSame);
  EXPECT_EQ(stays.wait(second, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
  const std::uint64_t third = publish(stays, 4, Weights::kSame);
  EXPECT_THAT(stays.wait(second, PublishState::kFailed).reason, HasSubstr("is published again"));
  EXPECT_EQ(collect(hub, 4), "gathered");
  notify(hub, committed(4));
  for (const std::uint64_t id : {first, third})
    EXPECT_EQ(stays.wait(id, PublishState::kCommitted).version.to_string(), "1.4");
  EXPECT_EQ(stays.values.reads, 1);
}

TEST_F(RankLink, APublishThatFollowsOneThatFailsTakesItsPlace) {
  Hub& hub = listen(2);
  Follower& stays = follow(1, 2);
  until_connected(hub, 1);
  const auto fails = [&](std::uint64_t step, ErrorCode with) {
    const std::uint64_t first = publish(stays, step);
    EXPECT_EQ(stays.wait(first, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
    const std::uint64_t second = publish(stays, step, Weights::kSame);
    const int reads = stays.values.reads;
    if (with != ErrorCode::kPeerLost) {  // what rank 0 has of it is gone
      EXPECT_EQ(collect(hub, step), "gathered");
      hub.gather.expect(step);
    }
    notify(hub, {.step = step, .state = PublishState::kFailed, .code = with, .reason = "failed"});
    EXPECT_EQ(stays.wait(first, PublishState::kFailed).code, with);
    EXPECT_EQ(stays.wait(second, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
    EXPECT_EQ(collect(hub, step), "gathered");
    notify(hub, committed(step));
    EXPECT_EQ(stays.wait(second, PublishState::kCommitted).state, PublishState::kCommitted);
    EXPECT_EQ(stays.values.reads, reads);  // they may have changed long ago
  };
  fails(4, ErrorCode::kPeerLost);
  fails(5, ErrorCode::kDeadline);
}

TEST_F(RankLink, ALeadThatStandsStillIsLeftForTheOneThatTookItsPlace) {
  Hub& still = listen(2);
  Follower& stays = follow(1, 2);
  publish(stays, 1);
  EXPECT_EQ(collect(still, 1), "gathered");
  const std::uint64_t sent = publish(stays, 2);
  EXPECT_EQ(stays.wait(sent, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
  on_loop([&] {
    RankGather other(2);
    EXPECT_EQ(RankHub::listen(*loop_, rank_socket(config_), other).error().code(),
              ErrorCode::kBusy);
  });
  Hub& next = listen(2, Claim::kTakeOver);
  const auto lost = stays.wait(sent, PublishState::kFailed);
  EXPECT_EQ(lost.code, ErrorCode::kPeerLost);
  EXPECT_THAT(lost.reason, HasSubstr("another process is rank 0 now: it has taken over"));
  const std::uint64_t again = publish(stays, 2);
  EXPECT_EQ(collect(next, 2), "gathered");
  notify(still, committed(2));  // nobody listens to it any more
  notify(next, {.step = 2, .state = PublishState::kCommitted, .version = {.epoch = 2, .step = 2}});
  EXPECT_EQ(stays.wait(again, PublishState::kCommitted).version.to_string(), "2.2");
}

TEST_F(RankLink, APublishFollowsToTheNextLeadWithTheSnapshotThatItHas) {
  listen(2);
  Follower& stays = follow(1, 2);
  const std::uint64_t sent = publish(stays, 2);
  EXPECT_EQ(stays.wait(sent, PublishState::kSnapshotted).state, PublishState::kSnapshotted);
  const std::uint64_t again = publish(stays, 2, Weights::kSame);
  Hub& next = listen(2, Claim::kTakeOver);
  EXPECT_EQ(collect(next, 2), "gathered");
  notify(next, {.step = 2, .state = PublishState::kCommitted, .version = {.epoch = 2, .step = 2}});
  EXPECT_EQ(stays.wait(again, PublishState::kCommitted).version.to_string(), "2.2");
  EXPECT_EQ(stays.values.reads, 1);
}

}  // namespace
}  // namespace wsync::plugin
