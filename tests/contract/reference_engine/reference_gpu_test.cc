// The reference engine with its weights on a GPU: steps read them there, and versions come through
// buffers of another process. Over the emulated driver (tests/emulated_cuda).
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "inference_side/reference_engine/reference_engine.h"
#include "shared/weights/checkpoint_dir.h"
#include "tests/contract/engine_link/gpu_sidecar.h"

namespace wsync::engine::reference {
namespace {

using control::RankState;
using test::soon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Version kNext{.epoch = 1, .step = 1};

class ReferenceEngineOnGpu : public testing::Test {
 protected:
  ReferenceEngineOnGpu()
      : model_(test::Model::make()), directory_(testing::TempDir() + "wsync-gpu-XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    EXPECT_TRUE(write_checkpoint_directory(
        directory_ + "/checkpoint", model_.manifest,
        [](std::size_t index, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
          for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<std::byte>(index * 37 + (offset + i) * 11);
          return {};
        }));
  }
  ~ReferenceEngineOnGpu() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] ReferenceEngineOptions options() const {
    return {.sidecar_socket = peer_.path(),
            .run_directory = directory_,
            .replica = "r0",
            .gpu = 0,
            .checkpoint = directory_ + "/checkpoint",
            .load_weights = true,
            .step_interval = std::chrono::microseconds(200)};
  }
  // Steps beyond those that were counted before.
  static void expect_steps(const ReferenceEngine& engine) {
    const std::uint64_t before = engine.stats().steps;
    const TimePoint until = soon();
    while (engine.stats().steps < before + 3 && now() < until) std::this_thread::yield();
    EXPECT_GE(engine.stats().steps, before + 3);
  }

  test::Model model_;
  std::string directory_;
  test::SidecarPeer peer_;
};

TEST_F(ReferenceEngineOnGpu, ServesItsCheckpointAndThenTheNextVersion) {
  test::GpuSidecar sidecar(model_.plan.largest_bucket());
  std::mutex mutex;
  std::vector<EngineEvent> events;
  auto engine = ReferenceEngine::create(options(), [&](const EngineEvent& event) {
                  const std::lock_guard lock(mutex);
                  events.push_back(event);
                }).value();
  // From start() on the serving thread speaks as well: what create() said is taken before it.
  ASSERT_EQ(events.size(), 1U);
  const EngineEvent placed = events.front();
  EXPECT_EQ(placed.name, "placed");
  EXPECT_GE(engine->model().gpu_bytes(), engine->model().bytes());
  engine->start();
  const auto hello = peer_.accept();
  EXPECT_EQ(hello.state, RankState::kServing);
  EXPECT_EQ(std::get<std::string>(placed.fields.at(1).second), hello.gpu);
  expect_steps(*engine);

  peer_.send(control::EngineWelcome{.generation = test::GpuSidecar::kGeneration,
                                    .device_kind = DeviceKind::kCuda,
                                    .buffer_bytes = model_.plan.largest_bucket(),
                                    .buffers = sidecar.handles()},
             sidecar.fds());
  const SharedArena arena = model_.arena(kNext);
  const auto plan = reload::LoadPlan::make(model_.manifest, model_.plan, hello.tensors).value();
  ByteWriter layout;
  model_.manifest.encode(layout);
  EXPECT_EQ(
      peer_
          .ask<control::Prepared>(control::Prepare{.version = kNext,
                                                   .layout_digest = model_.manifest.layout_digest(),
                                                   .layout = std::move(layout).take(),
                                                   .bucket_bytes = model_.plan.bucket_bytes(),
                                                   .arena_bytes = model_.plan.arena_bytes()})
          .failure,
      "");
  peer_.ask<control::Paused>(control::Pause{});
  peer_.send(control::Load{.version = kNext});
  for (std::uint64_t bucket = 0; bucket < plan.bucket_count(); ++bucket) {
    const auto slot = static_cast<std::uint32_t>(bucket % 2);
    sidecar.put(slot, plan.bucket_of(arena.data(), bucket));
    EXPECT_EQ(
        peer_.ask<control::BucketAck>(control::BucketReady{.bucket = bucket, .slot = slot}).failure,
        "");
  }
  EXPECT_EQ(peer_.expect<control::Loaded>().failure, "");
  EXPECT_EQ(peer_.ask<control::Committed>(control::Commit{.version = kNext}).failure, "");
  peer_.ask<control::Resumed>(control::Resume{});
  expect_steps(*engine);
  const auto digests = peer_.ask<control::Digests>(control::ReadDigests{});
  EXPECT_EQ(digests.failure, "");
  ASSERT_EQ(digests.tensors.size(), plan.tensors().size());
  for (std::size_t t = 0; t < plan.tensors().size(); ++t)
    EXPECT_EQ(digests.tensors[t].digest, reload::expected_digest(plan.tensors()[t], arena.data()));
  engine->stop();
  const ServingStats stats = engine->stats();
  EXPECT_EQ(stats.torn, 0U);
  EXPECT_GE(stats.by_version.at(kNext), 3U);
  EXPECT_GE(stats.by_version.at(Version{}), 3U);
}

TEST_F(ReferenceEngineOnGpu, MemoryThatIsShortAndGpusThatAreNotThereAreRefused) {
  const auto ignore = [](const EngineEvent&) {};
  auto missing = options();
  missing.gpu = 9;
  const auto no_gpu = ReferenceEngine::create(missing, ignore);
  ASSERT_FALSE(no_gpu);
  EXPECT_THAT(no_gpu.error().message(), HasSubstr("9"));
  const auto device = device::make_device({.kind = DeviceKind::kCuda}).value();
  std::vector<std::unique_ptr<device::Memory>> filled;
  constexpr std::uint64_t kLeft = std::uint64_t{2} << 20U;
  while (device->memory_info().value().free_bytes >= 2 * kLeft)
    filled.push_back(device->allocate(device->memory_info().value().free_bytes - kLeft).value());
  const auto full = ReferenceEngine::create(options(), ignore);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(full.error().message(),
              AllOf(HasSubstr("the weights of this rank need"), HasSubstr("are free")));
}

}  // namespace
}  // namespace wsync::engine::reference
