// The pipeline against a small model of devices and engines that remembers which bucket each buffer
// holds: random durations, random orders, engines that die at any moment.
#include "inference_side/reload/weight_pipeline.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

namespace wsync::reload {
namespace {

constexpr TimePoint at(std::int64_t t) { return TimePoint{t}; }
constexpr std::uint32_t raw(DeviceIndex d) { return static_cast<std::uint32_t>(d); }
constexpr std::uint32_t raw(SlotIndex s) { return static_cast<std::uint32_t>(s); }

WeightPipeline make(PipelineShape shape, Stages stages = Stages::kTwo) {
  const auto devices = shape.devices;
  auto pipeline = WeightPipeline::create(std::move(shape), StageChoice(stages, devices));
  EXPECT_TRUE(pipeline.has_value());
  return std::move(*pipeline);
}

// Carries out the commands in a random order and with random durations.
class World {
 public:
  World(PipelineShape shape, Stages stages, unsigned seed)
      : shape_(shape), stages_(stages), pipeline_(make(shape, stages)), random_(seed) {
    for (const EngineSeat& seat : shape.engines) alive_.insert(seat.engine);
    for (std::uint32_t d = 0; d < shape.devices; ++d) {
      h2d_[d] = kNoBucket;
      for (std::uint32_t slot = 0; slot < shape.ipc_slots; ++slot) ipc_[{d, slot}] = kNoBucket;
    }
  }

  void run(unsigned losses) {
    take(pipeline_.step(Begin{}, at(0)));
    while (pipeline_.phase() == PipelinePhase::kRunning) {
      if (losses > 0 && alive_.size() > 1 && roll(20) == 0) {
        --losses;
        lose_one();
        continue;
      }
      ASSERT_FALSE(pending_.empty()) << "nothing runs and the pipeline waits";
      auto next = pending_.begin();
      now_ = next->first;
      const Command ended = next->second;
      pending_.erase(next);
      std::visit([&](const auto& c) { end(c); }, ended);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(pipeline_.phase(), PipelinePhase::kFinished);
    check_every_bucket_once();
  }

 private:
  unsigned roll(unsigned sides) {
    return std::uniform_int_distribution<unsigned>(0, sides - 1)(random_);
  }
  void take(const std::vector<Command>& commands) {
    ASSERT_TRUE(pipeline_.invariants().has_value());
    for (const Command& c : commands) {
      std::visit([&](const auto& command) { begin(command); }, c);
      pending_.emplace(now_ + 1 + roll(100), c);
    }
  }
  void begin(const StartH2D& c) {
    ASSERT_EQ(c.bucket % shape_.devices, raw(c.device));
    ASSERT_EQ(c.slot.has_value(), shape_.direct);
    if (c.slot) {
      ASSERT_TRUE(copying_.empty()) << "two copies at once";
      for (const auto& [engine, reads] : reading_)
        ASSERT_EQ(reads.count(raw(*c.slot)), 0U) << "copied into while an engine reads it";
      copying_.insert(raw(c.device));
      ipc_[{raw(c.device), raw(*c.slot)}] = kNoBucket;
      return;
    }
    ASSERT_NE(broadcast_source_, raw(c.device)) << "H2D into a buffer that is being broadcast";
    if (stages_ == Stages::kTwo) {
      ASSERT_EQ(broadcasting_, kNoBucket) << "H2D beside a broadcast";
    }
    copying_.insert(raw(c.device));
    h2d_[raw(c.device)] = kNoBucket;  // torn until it ends
  }
  void begin(const StartBroadcast& c) {
    ASSERT_FALSE(shape_.direct);
    ASSERT_EQ(broadcasting_, kNoBucket) << "two broadcasts at once";
    ASSERT_EQ(h2d_[raw(c.source)], c.bucket) << "the source does not hold the bucket";
    if (stages_ == Stages::kTwo) {
      ASSERT_TRUE(copying_.empty()) << "a broadcast beside an H2D copy";
    }
    for (const auto& [engine, reads] : reading_)
      ASSERT_EQ(reads.count(raw(c.slot)), 0U) << "overwritten while an engine reads it";
    broadcasting_ = c.bucket;
    broadcast_source_ = raw(c.source);
    for (std::uint32_t d = 0; d < shape_.devices; ++d) ipc_[{d, raw(c.slot)}] = kNoBucket;
  }
  void begin(const StartReload& c) {
    if (alive_.count(c.engine) == 0) FAIL() << "a dead engine is told to reload";
    const auto held = ipc_[{raw(c.device), raw(c.slot)}];
    ASSERT_EQ(held, c.bucket) << "the engine reads another bucket than it is told";
    ASSERT_TRUE(reading_[c.engine].insert(raw(c.slot)).second);
  }
  void end(const StartH2D& c) {
    if (c.slot)
      ipc_[{raw(c.device), raw(*c.slot)}] = c.bucket;
    else
      h2d_[raw(c.device)] = c.bucket;
    copying_.erase(raw(c.device));
    take(pipeline_.step(H2DDone{.device = c.device, .bucket = c.bucket}, at(now_)));
  }
  // Devices finish in a random order, the source last.
  void end(const StartBroadcast& c) {
    std::vector<std::uint32_t> order;
    for (std::uint32_t d = 0; d < shape_.devices; ++d)
      if (d != raw(c.source)) order.push_back(d);
    std::shuffle(order.begin(), order.end(), random_);
    order.push_back(raw(c.source));
    for (const std::uint32_t d : order) {
      ipc_[{d, raw(c.slot)}] = c.bucket;
      if (d == raw(c.source)) {
        broadcasting_ = kNoBucket;
        broadcast_source_ = shape_.devices;
      }
      take(pipeline_.step(BroadcastDone{.device = DeviceIndex{d}, .bucket = c.bucket}, at(now_)));
    }
  }
  void end(const StartReload& c) {
    if (alive_.count(c.engine) == 0) return;
    ASSERT_EQ((ipc_[{raw(c.device), raw(c.slot)}]), c.bucket) << "torn while it was read";
    reading_[c.engine].erase(raw(c.slot));
    ASSERT_TRUE(reloaded_[c.engine].insert(c.bucket).second) << "a bucket was reloaded twice";
    take(pipeline_.step(BucketAck{.engine = c.engine, .bucket = c.bucket}, at(now_)));
  }
  void lose_one() {
    auto victim = alive_.begin();
    std::advance(victim, roll(static_cast<unsigned>(alive_.size())));
    const EngineId engine = *victim;
    alive_.erase(victim);
    reading_.erase(engine);
    take(pipeline_.step(EngineLost{.engine = engine}, at(now_)));
  }
  void check_every_bucket_once() {
    EXPECT_EQ(pipeline_.buckets_done(), shape_.buckets);
    for (const EngineId engine : alive_)
      EXPECT_EQ(reloaded_[engine].size(), shape_.buckets)
          << "engine " << static_cast<std::uint32_t>(engine);
    EXPECT_TRUE(pipeline_.outstanding().empty());
    EXPECT_EQ(pipeline_.stray_bucket_acks(), 0U);
  }

  PipelineShape shape_;
  Stages stages_;
  WeightPipeline pipeline_;
  std::mt19937 random_;
  std::int64_t now_ = 0;
  std::multimap<std::int64_t, Command> pending_;
  std::map<std::uint32_t, std::uint64_t> h2d_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> ipc_;
  std::set<std::uint32_t> copying_;
  std::uint64_t broadcasting_ = kNoBucket;
  std::uint32_t broadcast_source_ = ~0U;
  std::set<EngineId> alive_;
  std::map<EngineId, std::set<std::uint32_t>> reading_;
  std::map<EngineId, std::set<std::uint64_t>> reloaded_;
};

PipelineShape random_shape(std::mt19937& random) {
  const auto pick = [&](std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
  };
  PipelineShape shape{.devices = pick(1, 6), .buckets = pick(0, 30), .ipc_slots = 2, .engines = {}};
  if (pick(0, 4) == 0) shape.ipc_slots = pick(1, 30);
  shape.direct = shape.devices == 1 && pick(0, 2) != 0;
  const auto engines = pick(0, 8);
  for (std::uint32_t e = 0; e < engines; ++e)
    shape.engines.push_back(
        {.engine = EngineId{100 + e}, .device = DeviceIndex{pick(0, shape.devices - 1)}});
  return shape;
}

TEST(WeightPipeline, NoBufferIsOverwrittenEarlyAndEveryBucketIsReloadedOnce) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    const PipelineShape shape = random_shape(random);
    const Stages stages = std::array{Stages::kAuto, Stages::kTwo, Stages::kThree}[seed % 3];
    SCOPED_TRACE("seed " + std::to_string(seed));
    World(shape, stages, seed).run(seed % 4);
    if (HasFatalFailure()) return;
  }
}

PipelineShape one_device(std::uint64_t buckets, std::uint32_t engines) {
  PipelineShape shape{.devices = 1, .buckets = buckets, .ipc_slots = 2, .engines = {}};
  for (std::uint32_t e = 0; e < engines; ++e)
    shape.engines.push_back({.engine = EngineId{e}, .device = DeviceIndex{0}});
  return shape;
}

// Brings bucket 0 to the engines.
void broadcast_first(WeightPipeline& pipeline) {
  ASSERT_EQ(pipeline.step(Begin{}, at(0)).size(), 1U);
  ASSERT_EQ(pipeline.step(H2DDone{.device = DeviceIndex{0}, .bucket = 0}, at(1)).size(), 1U);
  ASSERT_FALSE(pipeline.step(BroadcastDone{.device = DeviceIndex{0}, .bucket = 0}, at(2)).empty());
}

TEST(WeightPipeline, TheLastAcknowledgementCountsAsMuchAsAnyOther) {
  auto pipeline = make(one_device(1, 2));
  broadcast_first(pipeline);
  (void)pipeline.step(BucketAck{.engine = EngineId{0}, .bucket = 0}, at(3));
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kRunning);
  ASSERT_EQ(pipeline.outstanding().size(), 1U);
  EXPECT_EQ(pipeline.outstanding()[0].engine, EngineId{1});
  EXPECT_EQ(pipeline.outstanding()[0].since, at(2));
  (void)pipeline.step(BucketAck{.engine = EngineId{1}, .bucket = 0}, at(4));
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kFinished);
}

TEST(WeightPipeline, StrayAcknowledgementsChangeNothing) {
  auto pipeline = make(one_device(4, 2));
  broadcast_first(pipeline);
  (void)pipeline.step(BucketAck{.engine = EngineId{0}, .bucket = 0}, at(3));
  for (const BucketAck& stray : {BucketAck{.engine = EngineId{0}, .bucket = 0},    // twice
                                 BucketAck{.engine = EngineId{7}, .bucket = 0},    // unknown
                                 BucketAck{.engine = EngineId{1}, .bucket = 1},    // not yet
                                 BucketAck{.engine = EngineId{1}, .bucket = 99}})  // nonsense
    EXPECT_TRUE(pipeline.step(stray, at(4)).empty());
  EXPECT_EQ(pipeline.stray_bucket_acks(), 4U);
  EXPECT_EQ(pipeline.buckets_done(), 0U);
  EXPECT_TRUE(pipeline.invariants().has_value());
}

TEST(WeightPipeline, AnOperationThatWasNotStartedFailsIt) {
  auto copy = make(one_device(2, 1));
  (void)copy.step(Begin{}, at(0));
  (void)copy.step(H2DDone{.device = DeviceIndex{0}, .bucket = 1}, at(1));
  ASSERT_EQ(copy.phase(), PipelinePhase::kFailed);
  EXPECT_EQ(copy.error().code(), ErrorCode::kInternal);
  auto broadcast = make(one_device(2, 1));
  (void)broadcast.step(Begin{}, at(0));
  (void)broadcast.step(BroadcastDone{.device = DeviceIndex{0}, .bucket = 0}, at(1));
  EXPECT_EQ(broadcast.phase(), PipelinePhase::kFailed);
  auto device = make(one_device(2, 1));
  (void)device.step(Begin{}, at(0));
  (void)device.step(H2DDone{.device = DeviceIndex{5}, .bucket = 0}, at(1));
  EXPECT_EQ(device.phase(), PipelinePhase::kFailed);
}

TEST(WeightPipeline, LosingTheLastEngineFailsItAndLosingOthersDoesNot) {
  auto pipeline = make(one_device(4, 2));
  broadcast_first(pipeline);
  (void)pipeline.step(EngineLost{.engine = EngineId{0}}, at(3));
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kRunning);
  EXPECT_TRUE(pipeline.step(EngineLost{.engine = EngineId{0}}, at(3)).empty());
  (void)pipeline.step(EngineLost{.engine = EngineId{1}}, at(4));
  ASSERT_EQ(pipeline.phase(), PipelinePhase::kFailed);
  EXPECT_EQ(pipeline.error().code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(pipeline.outstanding().empty()) << "whoever is lost owes nothing";
}

TEST(WeightPipeline, AnAbortEndsItAndNothingStartsAfterwards) {
  auto pipeline = make(one_device(4, 1));
  broadcast_first(pipeline);
  EXPECT_TRUE(pipeline.step(Failed{Error(ErrorCode::kCancelled, "stop")}, at(3)).empty());
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kFailed);
  EXPECT_EQ(pipeline.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(pipeline.step(H2DDone{.device = DeviceIndex{0}, .bucket = 1}, at(4)).empty());
  EXPECT_EQ(pipeline.outstanding().size(), 1U);  // the engine still reads bucket 0
}

// While the engine reads one slot, the next bucket is copied into the other one, and no further.
TEST(WeightPipeline, ADeviceThatIsAloneIsFilledDirectly) {
  PipelineShape shape = one_device(3, 1);
  shape.direct = true;
  auto pipeline = make(shape);
  const auto copied = [&](std::uint64_t bucket) {
    return pipeline.step(H2DDone{.device = DeviceIndex{0}, .bucket = bucket}, at(1));
  };
  ASSERT_EQ(pipeline.step(Begin{}, at(0)).size(), 1U);
  const auto first = copied(0);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(std::get<StartReload>(first[0]).slot, SlotIndex{0});
  EXPECT_EQ(std::get<StartH2D>(first[1]).slot, SlotIndex{1});
  EXPECT_EQ(copied(1).size(), 1U) << "no slot is free for bucket 2";
  const auto freed = pipeline.step(BucketAck{.engine = EngineId{0}, .bucket = 0}, at(2));
  ASSERT_EQ(freed.size(), 1U);
  EXPECT_EQ(std::get<StartH2D>(freed[0]).bucket, 2U);
  EXPECT_TRUE(pipeline.step(BucketAck{.engine = EngineId{0}, .bucket = 1}, at(3)).empty());
  EXPECT_EQ(copied(2).size(), 1U);
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kRunning);
  EXPECT_TRUE(pipeline.step(BucketAck{.engine = EngineId{0}, .bucket = 2}, at(4)).empty());
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kFinished);
  auto wrong = make(shape);
  (void)wrong.step(Begin{}, at(0));
  (void)wrong.step(H2DDone{.device = DeviceIndex{0}, .bucket = 1}, at(1));
  EXPECT_EQ(wrong.phase(), PipelinePhase::kFailed);
}

TEST(WeightPipeline, NoBucketIsNoWork) {
  auto pipeline = make(one_device(0, 1));
  EXPECT_TRUE(pipeline.step(Begin{}, at(0)).empty());
  EXPECT_EQ(pipeline.phase(), PipelinePhase::kFinished);
}

TEST(WeightPipeline, ShapesThatCannotBeAreRefused) {
  const auto refused = [](const PipelineShape& shape) {
    const auto pipeline = WeightPipeline::create(shape, StageChoice(Stages::kTwo, 1));
    return !pipeline && pipeline.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused({.devices = 0, .buckets = 1}));
  EXPECT_TRUE(refused({.devices = 65, .buckets = 1}));
  EXPECT_TRUE(refused({.devices = 1, .buckets = 1, .ipc_slots = 0}));
  EXPECT_TRUE(refused({.devices = 2, .buckets = 1, .direct = true}));
  EXPECT_TRUE(refused({.devices = 2,
                       .buckets = 1,
                       .engines = {{.engine = EngineId{0}, .device = DeviceIndex{2}}}}));
  EXPECT_TRUE(refused({.devices = 2,
                       .buckets = 1,
                       .engines = {{.engine = EngineId{3}, .device = DeviceIndex{0}},
                                   {.engine = EngineId{3}, .device = DeviceIndex{1}}}}));
}

}  // namespace
}  // namespace wsync::reload
