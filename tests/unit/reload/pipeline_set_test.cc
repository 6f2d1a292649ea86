// The two forms of a run, with random durations and engines that die at any moment.
#include "inference_side/reload/pipeline_set.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

namespace wsync::reload {
namespace {

constexpr TimePoint when(std::int64_t t) { return TimePoint{t}; }

PipelineShape group_of(std::uint32_t devices, std::uint64_t buckets, std::uint32_t engines) {
  PipelineShape shape{.devices = devices, .buckets = buckets, .ipc_slots = 2, .engines = {}};
  for (std::uint32_t e = 0; e < engines; ++e)
    shape.engines.push_back({.engine = EngineId{10 + e}, .device = DeviceIndex{e % devices}});
  return shape;
}

PipelineSet make_set(const PipelineShape& shape, bool own_links) {
  return PipelineSet::create(shape, StageChoice(Stages::kTwo, shape.devices), own_links).value();
}

// Devices and engines: what has begun ends in a random order.
class OwnLinksWorld {
 public:
  OwnLinksWorld(const PipelineShape& shape, std::uint64_t seed)
      : shape_(shape), set_(make_set(shape, true)), random_(seed) {
    for (const EngineSeat& seat : shape.engines) alive_.insert(seat.engine);
  }

  // Loses up to `losses` engines.
  void run(unsigned losses) {
    take(set_.step(Begin{}, when(0)));
    for (std::int64_t t = 1; set_.phase() == PipelinePhase::kRunning; ++t) {
      ASSERT_FALSE(open_.empty()) << "nothing runs, and the run waits";
      if (losses > 0 && random_() % 8 == 0) {
        --losses;
        lose(when(t));
        continue;
      }
      const std::size_t next = random_() % open_.size();
      const Command ended = open_[next];
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(next));
      if (const auto* copy = std::get_if<StartH2D>(&ended)) {
        held_[{copy->device, *copy->slot}] = copy->bucket;
        take(set_.step(H2DDone{.device = copy->device, .bucket = copy->bucket}, when(t)));
      } else {
        const auto& reload = std::get<StartReload>(ended);
        EXPECT_EQ((held_[{reload.device, reload.slot}]), reload.bucket)
            << "an engine reads a buffer that holds another bucket";
        seen_[reload.engine].push_back(reload.bucket);
        stop_reading({reload.device, reload.slot});
        take(set_.step(BucketAck{.engine = reload.engine, .bucket = reload.bucket}, when(t)));
      }
    }
    for (const Command& command : open_)
      EXPECT_FALSE(std::holds_alternative<StartH2D>(command))
          << "a copy still reads the version when the run has ended";
  }
  [[nodiscard]] const PipelineSet& set() const { return set_; }
  [[nodiscard]] const std::set<EngineId>& alive() const { return alive_; }
  [[nodiscard]] const std::vector<std::uint64_t>& seen(EngineId engine) { return seen_[engine]; }

 private:
  void take(const std::vector<Command>& commands) {
    for (const Command& command : commands) {
      if (const auto* copy = std::get_if<StartH2D>(&command)) {
        EXPECT_FALSE(reading_.contains({copy->device, *copy->slot}))
            << "a buffer is overwritten while an engine reads it";
      } else {
        const auto& reload = std::get<StartReload>(command);
        EXPECT_EQ(device_of(reload.engine), reload.device);
        reading_.insert({reload.device, reload.slot});
      }
      open_.push_back(command);
    }
  }
  void lose(TimePoint now) {
    if (alive_.empty()) return;
    auto victim = alive_.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(random_() % alive_.size()));
    const EngineId engine = *victim;
    alive_.erase(victim);
    std::erase_if(open_, [&](const Command& command) {
      const auto* reload = std::get_if<StartReload>(&command);
      if (reload == nullptr || reload->engine != engine) return false;
      stop_reading({reload->device, reload->slot});
      return true;
    });
    take(set_.step(EngineLost{.engine = engine}, now));
  }
  [[nodiscard]] DeviceIndex device_of(EngineId engine) const {
    for (const EngineSeat& seat : shape_.engines)
      if (seat.engine == engine) return seat.device;
    return DeviceIndex{99};
  }

  using Buffer = std::pair<DeviceIndex, SlotIndex>;
  // One of its readers.
  void stop_reading(const Buffer& buffer) {
    const auto one = reading_.find(buffer);
    ASSERT_NE(one, reading_.end());
    reading_.erase(one);
  }
  const PipelineShape shape_;
  PipelineSet set_;
  std::mt19937_64 random_;
  std::vector<Command> open_;
  std::set<EngineId> alive_;
  std::map<Buffer, std::uint64_t> held_;
  std::multiset<Buffer> reading_;
  std::map<EngineId, std::vector<std::uint64_t>> seen_;
};

TEST(PipelineSet, EachDeviceTakesEveryBucketByItsOwnLinkWhoeverIsLost) {
  unsigned failed = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    const auto engines = static_cast<std::uint32_t>(1 + seed % 5);
    const PipelineShape shape =
        group_of(static_cast<std::uint32_t>(1 + seed % 4), seed % 7, engines);
    OwnLinksWorld world(shape, seed);
    world.run(seed % 3 == 0 ? 0 : static_cast<unsigned>(seed % 6));
    if (::testing::Test::HasFailure()) return;
    if (world.set().phase() == PipelinePhase::kFailed) {
      ++failed;
      EXPECT_TRUE(world.alive().empty());
      EXPECT_EQ(world.set().error().code(), ErrorCode::kPeerLost);
      continue;
    }
    for (const EngineId engine : world.alive()) {
      std::vector<std::uint64_t> all(shape.buckets);
      for (std::uint64_t b = 0; b < shape.buckets; ++b) all[b] = b;
      auto seen = world.seen(engine);
      std::ranges::sort(seen);  // an engine may answer in any order
      EXPECT_EQ(seen, all);
    }
    EXPECT_TRUE(world.set().outstanding().empty());
  }
  EXPECT_GT(failed, 10U);
}

TEST(PipelineSet, AFailureOfADeviceEndsTheRunOfAll) {
  auto set = make_set(group_of(2, 4, 2), true);
  EXPECT_EQ(set.step(Begin{}, when(0)).size(), 2U) << "one copy to each device";
  EXPECT_TRUE(
      set.step(Failed{{ErrorCode::kIo, "the GPU has fallen off the bus"}}, when(1)).empty());
  EXPECT_EQ(set.phase(), PipelinePhase::kFailed);
  EXPECT_EQ(set.error().message(), "the GPU has fallen off the bus");
  EXPECT_TRUE(set.step(H2DDone{.device = DeviceIndex{0}, .bucket = 0}, when(2)).empty());
}

TEST(PipelineSet, AFailureEndsARunThatAwaitsACopyToADeviceWithoutEngines) {
  for (const std::uint32_t devices : {1U, 2U}) {
    auto set = make_set(group_of(devices, 4, devices), true);
    (void)set.step(Begin{}, when(0));
    for (std::uint32_t d = 0; d < devices; ++d)
      EXPECT_TRUE(set.step(EngineLost{.engine = EngineId{10 + d}}, when(1)).empty());
    EXPECT_EQ(set.phase(), PipelinePhase::kRunning) << "the copies still read the version";
    (void)set.step(Failed{{ErrorCode::kCancelled, "the sidecar ends"}}, when(2));
    EXPECT_EQ(set.phase(), PipelinePhase::kFailed) << "a run that nobody can end";
    EXPECT_EQ(set.error().message(), "the sidecar ends");
  }
}

TEST(PipelineSet, AFailureBeforeTheRunIsNoSuccess) {
  auto set = make_set(group_of(2, 4, 2), true);
  for (const std::uint32_t engine : {10U, 11U})
    (void)set.step(EngineLost{.engine = EngineId{engine}}, when(0));
  (void)set.step(Failed{{ErrorCode::kIo, "the devices cannot be connected"}}, when(1));
  EXPECT_EQ(set.phase(), PipelinePhase::kFailed);
}

TEST(PipelineSet, AnEndThatWasNotBegunFailsTheRun) {
  for (const bool own_links : {true, false}) {
    auto set = make_set(group_of(1, 4, 1), own_links);
    (void)set.step(Begin{}, when(0));
    (void)set.step(H2DDone{.device = DeviceIndex{0}, .bucket = 3}, when(1));
    EXPECT_EQ(set.phase(), PipelinePhase::kFailed);
    EXPECT_EQ(set.error().code(), ErrorCode::kInternal);
  }
}

TEST(PipelineSet, TheOtherFormIsThePipelineOfTheGroup) {
  const PipelineShape shape = group_of(2, 4, 2);
  auto set = make_set(shape, false);
  auto pipeline = WeightPipeline::create(shape, StageChoice(Stages::kTwo, 2)).value();
  const auto same = [&](const Event& event) {
    const auto ours = set.step(event, when(1));
    const auto theirs = pipeline.step(event, when(1));
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i].index(), theirs[i].index());
    EXPECT_EQ(set.phase(), pipeline.phase());
  };
  same(Begin{});
  same(H2DDone{.device = DeviceIndex{0}, .bucket = 0});
  same(H2DDone{.device = DeviceIndex{1}, .bucket = 1});
  same(BroadcastDone{.device = DeviceIndex{1}, .bucket = 0});
  same(BroadcastDone{.device = DeviceIndex{0}, .bucket = 0});
  same(BucketAck{.engine = EngineId{10}, .bucket = 0});
  EXPECT_EQ(set.buckets_done(), pipeline.buckets_done());
  EXPECT_EQ(set.outstanding().size(), pipeline.outstanding().size());
}

TEST(PipelineSet, RefusesWhatTheGroupCannotBe) {
  const auto refused = [](const PipelineShape& shape) {
    return !PipelineSet::create(shape, StageChoice(Stages::kTwo, 2), true);
  };
  EXPECT_TRUE(refused({.devices = 0, .buckets = 1, .engines = {}}));
  const EngineSeat outside{.engine = EngineId{1}, .device = DeviceIndex{2}};
  EXPECT_TRUE(refused({.devices = 2, .buckets = 1, .engines = {outside}}));
  const EngineSeat one{.engine = EngineId{1}, .device = DeviceIndex{0}};
  const EngineSeat twin{.engine = EngineId{1}, .device = DeviceIndex{1}};
  EXPECT_TRUE(refused({.devices = 2, .buckets = 1, .engines = {one, twin}}))
      << "one engine on two devices";
}

TEST(OwnLinks, PayWhereDevicesNeedDifferentParts) {
  using Links = std::vector<std::uint64_t>;
  EXPECT_TRUE(own_links_pay(1000, Links{1000})) << "one link: nothing is broadcast";
  EXPECT_TRUE(own_links_pay(1000, Links{500, 500}));
  EXPECT_TRUE(own_links_pay(1000, Links{150, 150, 150, 150, 150, 150, 150, 150}));
  EXPECT_FALSE(own_links_pay(1000, Links{1000, 1000})) << "two replicas";
  EXPECT_FALSE(own_links_pay(1000, Links{900, 100})) << "one link would do nearly all";
  EXPECT_FALSE(own_links_pay(1000, Links{2000})) << "two replicas behind one link";
  EXPECT_FALSE(own_links_pay(1000, Links{1200})) << "behind one link nothing is broadcast";
  EXPECT_FALSE(own_links_pay(1000, Links{}));
}

}  // namespace
}  // namespace wsync::reload
