// What devices need of a version before a pause, on host devices: the same code serves GPUs.
#include "inference_side/sidecar/device_staging.h"

#include <atomic>
#include <future>
#include <thread>

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/sidecar/load_cache.h"
#include "shared/base/weight_limits.h"
#include "shared/device/memory_gate.h"
#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/owner_loop.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {
namespace {

class DeviceStagingTest : public testing::Test {
 protected:
  DeviceStagingTest()
      : store_({}, [this](std::function<void()> task) { bench_.loop().post(std::move(task)); }) {
    reload::DeviceGroupOptions options;
    for (std::uint32_t d = 0; d < 2; ++d)
      options.devices.push_back(std::move(
          *device::make_device({.kind = DeviceKind::kSeparate, .index = device::DeviceIndex{d}})));
    options.buffer_bytes = limits::kBucketBytesMin;
    group_ = reload::DeviceGroup::create(std::move(options)).value();
  }
  [[nodiscard]] std::shared_ptr<const staging::HeldVersion> stage(Version version) {
    return stage(version, model_.arena(version));
  }
  [[nodiscard]] std::shared_ptr<const staging::HeldVersion> stage(Version version,
                                                                  const SharedArena& arena,
                                                                  KeptMappings* kept = nullptr) {
    staging::StagingJob job;
    job.identity = model_.identity(version);
    job.manifest = model_.manifest;
    job.plan = model_.plan;
    job.leaves = model_.leaves;
    std::shared_ptr<const staging::HeldVersion> held;
    EXPECT_TRUE(store_.begin(std::move(job), [&](auto staged) { held = staged.value(); }));
    store_.view_arrived(ArenaView::open(arena.share()->get(), {}, 1, kept).value());
    EXPECT_TRUE(bench_.until([&] { return held != nullptr; }));
    return held;
  }

  Bench bench_;
  Model model_;
  staging::Store store_;
  std::unique_ptr<reload::DeviceGroup> group_;
};

TEST_F(DeviceStagingTest, AVersionIsFoundWhenItIsRegisteredWithEveryDeviceUntilItIsRemoved) {
  DeviceStaging staging(bench_.loop(), *group_);
  const auto held = stage(kV1);
  bool ready = false;
  staging.add(held, [&] { ready = true; });
  EXPECT_EQ(staging.find(kV1), nullptr);
  ASSERT_TRUE(bench_.until([&] { return ready; }));
  const auto found = staging.find(kV1);
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->usable.has_value());
  EXPECT_EQ(found->version, held);
  ASSERT_NE(found->memory, nullptr);
  EXPECT_EQ(found->memory->slices(), 2U);
  EXPECT_EQ(found->buckets->bucket_bytes(), group_->buffer_bytes());
  staging.remove(kV1);
  EXPECT_EQ(staging.find(kV1), nullptr);
}

TEST_F(DeviceStagingTest, MemoryIsRegisteredOnceForAllVersionsThatComeIntoIt) {
  DeviceStaging staging(bench_.loop(), *group_);
  const Version second{.epoch = 1, .step = 2};
  const auto added = [&](const std::shared_ptr<const staging::HeldVersion>& held) {
    bool ready = false;
    staging.add(held, [&] { ready = true; });
    EXPECT_TRUE(bench_.until([&] { return ready; }));
    return staging.find(held->version())->memory;
  };
  SharedArena arena = model_.arena(kV1);
  KeptMappings kept;
  std::shared_ptr<const device::RegisteredMemory> first;
  {
    const auto held = stage(kV1, arena, &kept);
    first = added(held);
    staging.remove(kV1);
    store_.release(kV1);
  }
  EXPECT_FALSE(first->ended()) << "the mapping is kept, so it stays registered";
  ASSERT_TRUE(model_.write(arena, second));
  {
    const auto held = stage(second, arena, &kept);
    EXPECT_EQ(added(held), first);
    const Version third{.epoch = 1, .step = 3};
    EXPECT_NE(added(stage(third)), first) << "another mapping";
    (void)kept.take_all();
    EXPECT_FALSE(first->ended()) << "a version is in the mapping";
    staging.remove(second);
    store_.release(second);
  }
  EXPECT_TRUE(bench_.until([&] { return first->ended(); })) << "the mapping has ended";
}

// A registration that says whether a run was on when it went.
class WatchedSlice final : public device::HostRegistration {
 public:
  WatchedSlice(const std::atomic<bool>& running, std::atomic<bool>& gone, bool& beside_a_run)
      : running_(running), gone_(gone), beside_a_run_(beside_a_run) {}
  ~WatchedSlice() override {
    beside_a_run_ = running_;
    gone_ = true;
  }
  [[nodiscard]] bool registered() const noexcept override { return true; }
  [[nodiscard]] std::string_view fallback() const noexcept override { return {}; }

 private:
  const std::atomic<bool>& running_;
  std::atomic<bool>& gone_;
  bool& beside_a_run_;
};

TEST(RegisteredMemoryTest, IsUnregisteredBetweenRuns) {
  std::atomic<bool> running = true;
  std::atomic<bool> gone = false;
  bool beside_a_run = true;
  device::RegisteredMemory memory;
  memory.add(std::make_unique<WatchedSlice>(running, gone, beside_a_run));
  auto run = device::MemoryGate::run();
  std::promise<void> begun;
  std::thread ends([&] {
    begun.set_value();
    memory.end();
  });
  begun.get_future().wait();
  for (int i = 0; i < 10'000 && !gone; ++i) std::this_thread::yield();  // the chance to be wrong
  running = false;
  run.unlock();
  ends.join();
  EXPECT_TRUE(gone);
  EXPECT_FALSE(beside_a_run);
  EXPECT_TRUE(memory.ended());
  memory.end();
}

TEST_F(DeviceStagingTest, OneThatIsRemovedBeforeItIsReadyIsNotFound) {
  DeviceStaging staging(bench_.loop(), *group_);
  const Version second{.epoch = 1, .step = 2};
  bool first_ready = false;
  bool second_ready = false;
  staging.add(stage(kV1), [&] { first_ready = true; });
  staging.remove(kV1);
  staging.add(stage(second), [&] { second_ready = true; });
  ASSERT_TRUE(bench_.until([&] { return second_ready; }));
  EXPECT_FALSE(first_ready);
  EXPECT_EQ(staging.find(kV1), nullptr);
  EXPECT_NE(staging.find(second), nullptr);
}

TEST_F(DeviceStagingTest, OneThatIsStillInTheLoopAtTheEndLetsItsVersionGo) {
  auto held = stage(kV1);
  const std::weak_ptr<const staging::HeldVersion> watched = held;
  {
    DeviceStaging staging(bench_.loop(), *group_);
    staging.add(std::move(held), [] { FAIL() << "its owner is gone"; });
  }
  store_.release(kV1);
  EXPECT_TRUE(watched.expired());
}

// ---- bytes that nobody has read ----

TEST_F(DeviceStagingTest, AVersionIsVerifiedForThoseWhoReturnNoSums) {
  Worker worker(bench_.loop(), {.name = "plans"});
  const auto cache = std::make_shared<LoadCache>();
  const auto prepare = [&](const std::shared_ptr<const staging::HeldVersion>& held,
                           std::vector<control::EngineTensor> tensors, bool maps) {
    const auto shared = std::make_shared<const std::vector<control::EngineTensor>>(tensors);
    std::optional<Result<std::shared_ptr<const PreparedLoad>>> made;
    cache->request(worker, held, limits::kBucketBytesMin,
                   {.list = shared, .key = tensors_key(*shared), .maps_version = maps},
                   [&](auto load) { made = std::move(load); });
    EXPECT_TRUE(bench_.until([&] { return made.has_value(); }));
    return *made;
  };
  auto columns = model_.tensors();
  for (auto& tensor : columns)
    if (tensor.shape.size() == 2) tensor.ranges = {{.dim = 1, .begin = 10, .length = 10}};

  const auto whole = stage(kV1, model_.protected_arena(kV1));
  EXPECT_TRUE(prepare(whole, model_.tensors(), false).has_value());
  EXPECT_TRUE(prepare(whole, columns, false).has_value());
  EXPECT_FALSE(whole->is_verified()) << "its engines sum each byte that they copy";
  EXPECT_TRUE(prepare(whole, model_.tensors(), true).has_value());
  EXPECT_TRUE(whole->is_verified()) << "its engine serves from it";
}

TEST_F(DeviceStagingTest, AVersionThatIsForgottenIsNotReadToItsEnd) {
  Worker worker(bench_.loop(), {.name = "plans"});
  const auto cache = std::make_shared<LoadCache>();
  const auto held = stage(kV1, model_.protected_arena(kV1));
  const auto tensors = std::make_shared<const std::vector<control::EngineTensor>>(model_.tensors());
  // The worker is occupied until the version has been forgotten.
  std::promise<void> forgotten;
  ASSERT_TRUE(worker.submit([&] { forgotten.get_future().wait(); }, [] {}).has_value());
  bool is_answered = false;
  cache->request(worker, held, limits::kBucketBytesMin,
                 {.list = tensors, .key = tensors_key(*tensors), .maps_version = true},
                 [&](const auto&) { is_answered = true; });
  cache->forget(kV1);
  forgotten.set_value();
  bool is_over = false;
  ASSERT_TRUE(worker.submit([] {}, [&] { is_over = true; }).has_value());
  ASSERT_TRUE(bench_.until([&] { return is_over; }));
  EXPECT_FALSE(is_answered);
  EXPECT_FALSE(held->is_verified()) << "all of its bytes were read";
}

// ---- who may attach to which devices ----

std::string refusal_of(DeviceKind kind, control::EngineHello hello) {
  Bench bench;
  EngineHubOptions options;
  options.socket = bench.directory() + "/engines";
  options.devices.kind = kind;
  const auto hub = EngineHub::create(bench.loop(), std::move(options), [](auto&&...) {}).value();
  RawEngine engine(bench, hub->socket(), "a");
  hello.tensors = Model().tensors();
  engine.say(std::move(hello));
  const auto refused = engine.next<control::Refuse>();
  return refused ? refused->second.reason : "";
}

TEST(EngineHubDevices, EnginesThatDoNotFitHostDevicesAreToldWhatToDo) {
  const std::string gpu = "GPU-00000000-0000-0000-0000-000000000001";
  EXPECT_EQ(refusal_of(DeviceKind::kSeparate, {.gpu = gpu}),
            "the engine's weights are on " + gpu +
                ", but this sidecar's devices are separate host devices: set devices.kind: cuda "
                "for the sidecar, or start the engine with --device host");
  EXPECT_NE(refusal_of(DeviceKind::kUnified, {.gpu = gpu}).find("unified host devices"),
            std::string::npos);
  EXPECT_EQ(refusal_of(DeviceKind::kSeparate, {.device = 1}),
            "device 1 does not exist: this sidecar has 1 devices, so the engine's --device-index "
            "must be below 1");
  EXPECT_EQ(refusal_of(DeviceKind::kSeparate, {.take = control::TakeMode::kAdopt}),
            "separate devices do not support adoption: load pieces or whole tensors");
}

}  // namespace
}  // namespace wsync::agent::test
