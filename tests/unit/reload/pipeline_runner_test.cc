// The pipeline on host devices, with engines that map the IPC buffers and copy out of them on
// threads of their own.
#include "inference_side/reload/pipeline_runner.h"

#include <atomic>
#include <cstring>
#include <future>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "shared/base/bytes.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::reload {
namespace {

constexpr std::uint64_t kBufferBytes = 256 * limits::kKiB;

TimePoint far_deadline() { return now() + std::chrono::seconds(60); }

// A staged version: buckets of a full buffer and a shorter last one.
class Version {
 public:
  Version(std::uint64_t buckets, unsigned seed) : bytes_(buckets * kBufferBytes - 1000) {
    std::mt19937_64 random(seed);
    for (std::size_t at = 0; at + 8 <= bytes_.size(); at += 8) {
      const std::uint64_t value = random();
      std::memcpy(bytes_.data() + at, &value, sizeof value);
    }
  }
  [[nodiscard]] std::uint64_t buckets() const {
    return (bytes_.size() + kBufferBytes - 1) / kBufferBytes;
  }
  [[nodiscard]] std::span<const std::byte> bucket(std::uint64_t i) const {
    const auto begin = i * kBufferBytes;
    return std::span(bytes_).subspan(begin, std::min(kBufferBytes, bytes_.size() - begin));
  }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

std::unique_ptr<PipelineRunner> make_runner(
    DeviceKind kind, std::uint32_t devices, Stages stages, trace::Recorder* recorder = nullptr,
    std::chrono::nanoseconds bucket_ack_deadline = std::chrono::seconds(60)) {
  PipelineOptions options{.devices = {},
                          .buffer_bytes = kBufferBytes,
                          .stages = stages,
                          .bucket_ack_deadline = bucket_ack_deadline,
                          .trace = recorder};
  for (std::uint32_t d = 0; d < devices; ++d)
    options.devices.push_back(
        std::move(*device::make_device({.kind = kind, .index = DeviceIndex{d}})));
  auto runner = PipelineRunner::create(std::move(options));
  EXPECT_TRUE(runner.has_value()) << runner.error().message();
  return std::move(*runner);
}

PipelineJob job_of(const Version& version, std::vector<EngineSeat> engines,
                   TimePoint deadline = far_deadline()) {
  return {.buckets = version.buckets(),
          .bucket_bytes = [&version](std::uint64_t i) -> Result<std::span<const std::byte>> {
            return version.bucket(i);
          },
          .engines = std::move(engines),
          .deadline = deadline};
}

// An engine: copies buckets into memory of its own, one after the other.
class TestEngine {
 public:
  TestEngine(PipelineRunner& runner, EngineSeat seat, const Version& version)
      : runner_(runner), seat_(seat), version_(version), held_(version.bytes().size()) {
    if (!runner.group().unified()) {
      for (std::uint32_t s = 0; s < kIpcSlots; ++s) {
        auto handle = runner.group().ipc_handle(seat.device, SlotIndex{s});
        auto importer = device::make_device({.kind = DeviceKind::kSeparate});
        ipc_.push_back(std::move(*(*importer)->import_memory(std::move(*handle))));
      }
    }
    worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }
  [[nodiscard]] EngineSeat seat() const { return seat_; }
  void take(const BucketReady& ready) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(ready);
    }
    changed_.notify_all();
  }
  void check() {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(held_ == version_.bytes()) << "engine " << static_cast<std::uint32_t>(seat_.engine);
    EXPECT_EQ(seen_.size(), version_.buckets());
    for (const auto& [bucket, times] : seen_) EXPECT_EQ(times, 1) << "bucket " << bucket;
  }

 private:
  void work(const std::stop_token& stop) {
    while (true) {
      BucketReady ready;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return !queue_.empty(); })) return;
        ready = queue_.front();
        queue_.pop_front();
        ++seen_[ready.bucket];
        const auto from = ipc_.empty() ? version_.bucket(ready.bucket)
                                       : ipc_[static_cast<std::size_t>(ready.slot)]->host_view();
        std::memcpy(held_.data() + ready.bucket * kBufferBytes, from.data(), ready.bytes);
      }
      runner_.handle_bucket_ack(seat_.engine, ready.bucket);
    }
  }

  PipelineRunner& runner_;
  const EngineSeat seat_;
  const Version& version_;
  std::vector<std::unique_ptr<device::Memory>> ipc_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<BucketReady> queue_;
  std::map<std::uint64_t, int> seen_;
  Bytes held_;
  std::jthread worker_;  // last: joined first
};

// Hands buckets to engines; keeps what the runner said.
class TestListener final : public PipelineListener {
 public:
  void attach(TestEngine& engine) { engines_[engine.seat().engine] = &engine; }
  void on_bucket_ready(const BucketReady& ready) override {
    if (hook && !hook(ready)) return;
    if (const auto found = engines_.find(ready.engine); found != engines_.end())
      found->second->take(ready);
  }
  void on_engine_dropped(const LostEngine& engine) override { dropped.push_back(engine.engine); }
  void on_finished(const Result<PipelineReport>& result) override {
    ++finished;
    ok = result.has_value();
  }

  std::function<bool(const BucketReady&)> hook;  // false: the bucket does not reach its engine
  std::vector<EngineId> dropped;
  int finished = 0;
  bool ok = false;

 private:
  std::map<EngineId, TestEngine*> engines_;
};

std::vector<EngineSeat> uneven_seats() {
  return {{.engine = EngineId{10}, .device = DeviceIndex{0}},
          {.engine = EngineId{11}, .device = DeviceIndex{0}},
          {.engine = EngineId{12}, .device = DeviceIndex{1}},
          {.engine = EngineId{13}, .device = DeviceIndex{3}}};  // device 2 has none
}

struct Fleet {
  Fleet(PipelineRunner& runner, const Version& version, const std::vector<EngineSeat>& seats) {
    for (const EngineSeat& seat : seats) {
      engines.push_back(std::make_unique<TestEngine>(runner, seat, version));
      listener.attach(*engines.back());
    }
  }
  TestListener listener;
  std::vector<std::unique_ptr<TestEngine>> engines;
};

class PipelineRunnerKinds : public ::testing::TestWithParam<std::tuple<DeviceKind, Stages>> {};

TEST_P(PipelineRunnerKinds, EveryEngineGetsEveryByteOnceAndAgainInTheNextRun) {
  const auto [kind, stages] = GetParam();
  auto runner = make_runner(kind, 4, stages);
  for (unsigned seed = 1; seed <= 2; ++seed) {
    const Version version(11, seed);
    Fleet fleet(*runner, version, uneven_seats());
    ASSERT_TRUE(runner->start(job_of(version, uneven_seats()), fleet.listener));
    const auto report = runner->wait();
    ASSERT_TRUE(report.has_value()) << report.error().message();
    EXPECT_EQ(report->bytes, version.bytes().size());
    EXPECT_EQ(report->stray_bucket_acks, 0U);
    EXPECT_TRUE(report->lost.empty());
    EXPECT_EQ(fleet.listener.finished, 1);
    for (auto& engine : fleet.engines) engine->check();
    if (stages == Stages::kTwo) {
      EXPECT_EQ(report->overlapped_rounds, 0U);
    }
    if (stages == Stages::kThree) {
      EXPECT_EQ(report->overlapped_rounds, 2U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PipelineRunnerKinds,
    ::testing::Combine(::testing::Values(DeviceKind::kSeparate, DeviceKind::kUnified),
                       ::testing::Values(Stages::kAuto, Stages::kTwo, Stages::kThree)),
    [](const auto& p) {
      return std::string(device::device_kind_name(std::get<0>(p.param))) + "_" +
             std::string(stages_name(std::get<1>(p.param)));
    });

TEST(PipelineRunner, AutoDecidesOnceAndKeepsIt) {
  auto runner = make_runner(DeviceKind::kSeparate, 4, Stages::kAuto);
  const Version version(24, 1);
  Fleet fleet(*runner, version, uneven_seats());
  ASSERT_TRUE(runner->start(job_of(version, uneven_seats()), fleet.listener));
  const auto first = runner->wait();
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(first->stages.has_value());
  EXPECT_TRUE(first->timings.h2d_alone.known());
  EXPECT_TRUE(first->timings.broadcast_alone.known());
  EXPECT_TRUE(first->timings.h2d_together.known());
  EXPECT_TRUE(first->timings.broadcast_together.known());
}

TEST(PipelineRunner, ALostEngineIsNotWaitedFor) {
  auto runner = make_runner(DeviceKind::kSeparate, 4, Stages::kThree);
  const Version version(12, 3);
  Fleet fleet(*runner, version, uneven_seats());
  fleet.listener.hook = [&](const BucketReady& ready) {
    if (ready.engine != EngineId{11}) return true;
    if (ready.bucket == 5) runner->engine_lost(EngineId{11}, {ErrorCode::kPeerLost, "killed"});
    return ready.bucket < 5;
  };
  ASSERT_TRUE(runner->start(job_of(version, uneven_seats()), fleet.listener));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  ASSERT_EQ(report->lost.size(), 1U);
  EXPECT_EQ(report->lost[0].engine, EngineId{11});
  EXPECT_EQ(report->lost[0].reason.code(), ErrorCode::kPeerLost);
  for (auto& engine : fleet.engines)
    if (engine->seat().engine != EngineId{11}) engine->check();
}

TEST(PipelineRunner, ASilentEngineIsDroppedAndTheOthersGoOn) {
  auto runner =
      make_runner(DeviceKind::kSeparate, 2, Stages::kTwo, nullptr, std::chrono::seconds(1));
  const Version version(6, 4);
  const std::vector<EngineSeat> seats = {{.engine = EngineId{1}, .device = DeviceIndex{0}},
                                         {.engine = EngineId{2}, .device = DeviceIndex{1}}};
  Fleet fleet(*runner, version, seats);
  fleet.listener.hook = [](const BucketReady& ready) { return ready.engine != EngineId{2}; };
  ASSERT_TRUE(runner->start(job_of(version, seats), fleet.listener));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(fleet.listener.dropped, std::vector{EngineId{2}});
  ASSERT_EQ(report->lost.size(), 1U);
  EXPECT_EQ(report->lost[0].reason.code(), ErrorCode::kDeadline);
  fleet.engines[0]->check();
}

TEST(PipelineRunner, LosingEveryEngineFailsTheRun) {
  auto runner = make_runner(DeviceKind::kSeparate, 2, Stages::kTwo);
  const Version version(6, 4);
  TestListener listener;
  listener.hook = [&](const BucketReady& ready) {
    runner->engine_lost(ready.engine, {ErrorCode::kPeerLost, "killed"});
    return false;
  };
  ASSERT_TRUE(runner->start(job_of(version, {{.engine = EngineId{1}, .device = DeviceIndex{1}}}),
                            listener));
  const auto report = runner->wait();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kPeerLost);
  EXPECT_FALSE(listener.ok);

  // One that comes back with the same name does not owe the answers of the lost load.
  const std::vector<EngineSeat> seats = {{.engine = EngineId{1}, .device = DeviceIndex{1}}};
  Fleet fleet(*runner, version, seats);
  ASSERT_TRUE(runner->start(job_of(version, seats), fleet.listener));
  const auto second = runner->wait();
  ASSERT_TRUE(second.has_value()) << second.error().message();
  EXPECT_TRUE(fleet.listener.dropped.empty());
  fleet.engines[0]->check();
}

TEST(PipelineRunner, ADeadlineNamesWhoIsWaitedForAndTheNextRunWaitsForThatAnswer) {
  auto runner = make_runner(DeviceKind::kSeparate, 2, Stages::kTwo);
  const Version version(6, 5);
  const std::vector<EngineSeat> seats = {{.engine = EngineId{7}, .device = DeviceIndex{0}}};
  TestListener silent;
  std::promise<void> told;
  silent.hook = [&](const BucketReady& ready) {
    if (ready.bucket == 1) told.set_value();  // buckets 0 and 1 fill both IPC buffers
    return false;
  };
  ASSERT_TRUE(runner->start(job_of(version, seats, now() + std::chrono::seconds(1)), silent));
  told.get_future().wait();
  const auto report = runner->wait();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kDeadline);
  EXPECT_NE(report.error().message().find("engine 7 for bucket 0"), std::string::npos)
      << report.error().message();
  EXPECT_EQ(silent.finished, 1);

  const Version next(6, 6);
  Fleet fleet(*runner, next, seats);
  std::atomic<bool> answered = false;
  fleet.listener.hook = [&](const BucketReady&) {
    EXPECT_TRUE(answered) << "a buffer was overwritten while its engine still read the old bucket";
    return true;
  };
  ASSERT_TRUE(runner->start(job_of(next, seats), fleet.listener));
  runner->handle_bucket_ack(EngineId{7}, 1);
  answered = true;
  runner->handle_bucket_ack(EngineId{7}, 0);
  const auto second = runner->wait();
  ASSERT_TRUE(second.has_value()) << second.error().message();
  EXPECT_EQ(second->stray_bucket_acks, 0U);
  fleet.engines[0]->check();
}

TEST(PipelineRunner, AnEngineThatNeverAnswersForTheRunBeforeIsDropped) {
  auto runner =
      make_runner(DeviceKind::kSeparate, 1, Stages::kTwo, nullptr, std::chrono::milliseconds(1));
  const Version version(2, 5);
  const std::vector<EngineSeat> seats = {{.engine = EngineId{7}, .device = DeviceIndex{0}}};
  TestListener listener;
  listener.hook = [&](const BucketReady&) {
    runner->abort({ErrorCode::kCancelled, "stop"});
    return false;
  };
  ASSERT_TRUE(runner->start(job_of(version, seats), listener));
  ASSERT_EQ(runner->wait().error().code(), ErrorCode::kCancelled);
  ASSERT_TRUE(runner->start(job_of(version, seats), listener));
  EXPECT_EQ(runner->wait().error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(listener.dropped, std::vector{EngineId{7}});
}

TEST(PipelineRunner, AnAbortEndsItMidwayAndTheNextRunIsWhole) {
  auto runner = make_runner(DeviceKind::kSeparate, 4, Stages::kThree);
  {
    const Version version(16, 7);
    Fleet fleet(*runner, version, uneven_seats());
    fleet.listener.hook = [&](const BucketReady& ready) {
      if (ready.bucket == 6) runner->abort({ErrorCode::kCancelled, "a person pressed Ctrl-C"});
      return true;
    };
    ASSERT_TRUE(runner->start(job_of(version, uneven_seats()), fleet.listener));
    EXPECT_TRUE(runner->running());
    const auto report = runner->wait();
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(fleet.listener.finished, 1);
    for (const EngineSeat& seat : uneven_seats())
      runner->engine_lost(seat.engine, {ErrorCode::kPeerLost, "restarted"});
  }
  const Version version(16, 8);
  Fleet fleet(*runner, version, uneven_seats());
  ASSERT_TRUE(runner->start(job_of(version, uneven_seats()), fleet.listener));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  for (auto& engine : fleet.engines) engine->check();
}

TEST(PipelineRunner, BytesThatCannotBeReadOrDoNotFitFailTheRun) {
  auto runner = make_runner(DeviceKind::kSeparate, 2, Stages::kTwo);
  const Version version(6, 9);
  TestListener listener;
  auto unreadable = job_of(version, {});
  unreadable.bucket_bytes = [](std::uint64_t) -> Result<std::span<const std::byte>> {
    return fail(ErrorCode::kNotFound, "the arena is gone");
  };
  ASSERT_TRUE(runner->start(std::move(unreadable), listener));
  EXPECT_EQ(runner->wait().error().code(), ErrorCode::kNotFound);
  auto too_large = job_of(version, {});
  too_large.bucket_bytes = [&](std::uint64_t) -> Result<std::span<const std::byte>> {
    return std::span(version.bytes()).first(kBufferBytes + 1);
  };
  ASSERT_TRUE(runner->start(std::move(too_large), listener));
  EXPECT_EQ(runner->wait().error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(listener.finished, 2);
}

TEST(PipelineRunner, WithoutEnginesAllDevicesStillTakePart) {
  auto runner = make_runner(DeviceKind::kSeparate, 3, Stages::kTwo);
  const Version version(7, 1);
  TestListener listener;
  ASSERT_TRUE(runner->start(job_of(version, {}), listener));
  const auto report = runner->wait();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->bytes, version.bytes().size());
}

TEST(PipelineRunner, OnlyOneRunAtATime) {
  auto runner = make_runner(DeviceKind::kUnified, 1, Stages::kTwo);
  EXPECT_EQ(runner->wait().error().code(), ErrorCode::kNotFound);
  const Version version(2, 1);
  TestListener listener;
  std::promise<void> open;
  listener.hook = [gate = open.get_future().share()](const BucketReady&) {
    gate.wait();
    return false;
  };
  const std::vector<EngineSeat> seats = {{.engine = EngineId{1}, .device = DeviceIndex{0}}};
  ASSERT_TRUE(runner->start(job_of(version, seats), listener));
  EXPECT_EQ(runner->start(job_of(version, seats), listener).error().code(), ErrorCode::kBusy);
  open.set_value();
  runner->abort({ErrorCode::kCancelled, "enough"});
  EXPECT_FALSE(runner->wait());
}

TEST(PipelineRunner, DestroyingItEndsTheRun) {
  const Version version(8, 1);
  TestListener listener;
  {
    auto runner = make_runner(DeviceKind::kSeparate, 2, Stages::kTwo);
    ASSERT_TRUE(runner->start(job_of(version, {{.engine = EngineId{1}, .device = DeviceIndex{0}}}),
                              listener));
  }
  EXPECT_EQ(listener.finished, 1);
  EXPECT_FALSE(listener.ok);
}

TEST(PipelineRunner, OnUnifiedDevicesEveryBucketIsHandedOverWithoutWaiting) {
  auto runner = make_runner(DeviceKind::kUnified, 2, Stages::kAuto);
  const Version version(9, 1);
  TestListener listener;
  std::vector<std::uint64_t> told;
  listener.hook = [&](const BucketReady& ready) {
    told.push_back(ready.bucket);
    if (told.size() == version.buckets())  // no acknowledgement before the last bucket
      for (const std::uint64_t bucket : told) runner->handle_bucket_ack(ready.engine, bucket);
    return false;
  };
  ASSERT_TRUE(runner->start(job_of(version, {{.engine = EngineId{1}, .device = DeviceIndex{1}}}),
                            listener));
  ASSERT_TRUE(runner->wait());
  EXPECT_EQ(told, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(runner->group().ipc_handle(DeviceIndex{0}, SlotIndex{0}).error().code(),
            ErrorCode::kRefused);
}

TEST(PipelineRunner, RecordsTheChartAsItRan) {
  trace::Recorder recorder;
  auto runner = make_runner(DeviceKind::kSeparate, 4, Stages::kTwo, &recorder);
  const Version version(8, 2);
  Fleet fleet(*runner, version, uneven_seats());
  ASSERT_TRUE(runner->start(job_of(version, uneven_seats()), fleet.listener));
  ASSERT_TRUE(runner->wait());
  std::map<std::string, std::vector<trace::Span>> lanes;
  for (const trace::Span& span : recorder.spans()) lanes[span.lane].push_back(span);
  std::string sources;
  std::multimap<TimePoint, std::string> broadcasts;
  for (const std::string& lane : PipelineTrace::chart_lanes(4)) {
    ASSERT_TRUE(lanes.contains(lane)) << lane;
    TimePoint free_at{};
    for (const trace::Span& span : lanes[lane]) {
      EXPECT_LE(free_at, span.begin) << lane << ": " << span.name;
      EXPECT_LE(span.begin, span.end);
      free_at = span.end;
      if (span.category == trace::Category::kBroadcast) broadcasts.emplace(span.begin, span.label);
    }
  }
  for (const auto& [begin, source] : broadcasts) sources += source;
  EXPECT_EQ(sources, "01230123");
  for (const EngineSeat& seat : uneven_seats())
    EXPECT_EQ(lanes[fmt::format("engine {}", static_cast<std::uint32_t>(seat.engine))].size(), 8U);
}

TEST(DeviceGroup, GroupsThatCannotBeAreRefused) {
  const auto group_of = [](std::vector<DeviceKind> kinds, std::uint64_t bytes) {
    std::vector<std::unique_ptr<device::Device>> devices;
    for (const DeviceKind kind : kinds)
      devices.push_back(std::move(*device::make_device({.kind = kind})));
    return DeviceGroup::create({.devices = std::move(devices), .buffer_bytes = bytes});
  };
  EXPECT_EQ(group_of({}, kBufferBytes).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(group_of({DeviceKind::kSeparate, DeviceKind::kUnified}, kBufferBytes).error().code(),
            ErrorCode::kInvalidInput);
  const auto too_much = group_of({DeviceKind::kSeparate}, 1ULL << 50U);
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(too_much.error().message().find("set devices.buffer_bytes to at most"),
            std::string::npos);
  auto group = group_of({DeviceKind::kSeparate}, kBufferBytes);
  EXPECT_EQ((*group)->ipc_handle(DeviceIndex{0}, SlotIndex{2}).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ((*group)->ipc_handle(DeviceIndex{1}, SlotIndex{0}).error().code(),
            ErrorCode::kInvalidInput);
}

TEST(DeviceGroup, BuffersThatAreNotKeptComeAndGo) {
  PipelineOptions options{.devices = {}, .buffer_bytes = kBufferBytes, .keep_buffers = false};
  for (std::uint32_t d = 0; d < 2; ++d)
    options.devices.push_back(
        std::move(*device::make_device({.kind = DeviceKind::kSeparate, .index = DeviceIndex{d}})));
  auto runner = PipelineRunner::create(std::move(options)).value();
  const std::vector<EngineSeat> seats = {{.engine = EngineId{1}, .device = DeviceIndex{0}},
                                         {.engine = EngineId{2}, .device = DeviceIndex{1}}};
  const Version version(5, 1);
  TestListener nobody;
  EXPECT_EQ(runner->start(job_of(version, seats), nobody).error().code(), ErrorCode::kRefused);
  EXPECT_EQ(runner->group().ipc_handle(DeviceIndex{0}, SlotIndex{0}).error().code(),
            ErrorCode::kRefused);
  for (int update = 0; update < 2; ++update) {
    ASSERT_TRUE(runner->hold_buffers());
    ASSERT_TRUE(runner->hold_buffers());  // they are there
    Fleet fleet(*runner, version, seats);
    ASSERT_TRUE(runner->start(job_of(version, seats), fleet.listener));
    ASSERT_TRUE(runner->wait().has_value());
    for (auto& engine : fleet.engines) engine->check();
    fleet.engines.clear();
    ASSERT_TRUE(runner->free_buffers());
    EXPECT_FALSE(runner->group().holds_buffers());
  }
}

TEST(DeviceGroup, NcclWithoutGpusIsRefused) {
  std::vector<std::unique_ptr<device::Device>> devices;
  for (int i = 0; i < 2; ++i)
    devices.push_back(std::move(*device::make_device({.kind = DeviceKind::kSeparate})));
  const auto group = DeviceGroup::create({.devices = std::move(devices),
                                          .buffer_bytes = kBufferBytes,
                                          .collective = collective::GroupKind::kNccl});
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().message(),
            "NCCL supports only GPUs, not separate host device 0; set devices.collective to auto "
            "or local");
}

}  // namespace
}  // namespace wsync::reload
