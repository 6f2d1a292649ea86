// Memory of a version is unregistered while another one is broadcast, on two GPUs of the emulated
// driver and with the emulated NCCL: a driver's call waits for kernels that run, and keeps those of
// the other GPU from being launched.
#include "shared/device/memory_gate.h"

#include <array>
#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <thread>

#include "inference_side/reload/pipeline_runner.h"
#include "shared/base/bytes.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/device/registered_memory.h"
#include "tests/support/misuse_report.h"

namespace wsync::agent {
namespace {

[[maybe_unused]] const auto* const kReportIsEmpty =
    ::testing::AddGlobalTestEnvironment(new MisuseReport);

constexpr std::uint64_t kBuckets = 48;
constexpr int kRuns = 12;  // the two seldom meet in one run on a busy machine
constexpr std::uint64_t kBucketBytes = limits::kBucketBytesMin;

// Engines that have read a bucket as soon as it is ready.
class ReadsAtOnce final : public reload::PipelineListener {
 public:
  explicit ReadsAtOnce(reload::PipelineRunner*& runner) : runner_(runner) {}
  void on_bucket_ready(const reload::BucketReady& ready) override {
    if (ready.bucket == 2 && !running.exchange(true)) runs.set_value();
    runner_->handle_bucket_ack(ready.engine, ready.bucket);
  }
  void on_engine_dropped(const reload::LostEngine&) override {}
  void on_finished(const Result<reload::PipelineReport>&) override {
    finished = true;
    if (!running.exchange(true)) runs.set_value();
  }
  std::atomic<bool> finished = false;
  std::atomic<bool> running = false;
  std::promise<void> runs;  // some buckets have arrived, and many have not

 private:
  reload::PipelineRunner*& runner_;
};

std::unique_ptr<device::Device> gpu(std::uint32_t number) {
  auto made = device::make_device(
      {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{number}, .gpu = number});
  EXPECT_TRUE(made.has_value()) << made.error().message();
  return std::move(*made);
}

TEST(MemoryGate, NothingIsUnregisteredBesideABroadcast) {
  reload::PipelineOptions options{
      .devices = {}, .buffer_bytes = kBucketBytes, .bucket_ack_deadline = std::chrono::seconds(60)};
  for (const std::uint32_t number : {0U, 1U}) options.devices.push_back(gpu(number));
  const auto registering = gpu(0);
  auto made = reload::PipelineRunner::create(std::move(options));
  ASSERT_TRUE(made.has_value()) << made.error().message();
  reload::PipelineRunner* runner = made->get();
  const Bytes version(kBuckets * kBucketBytes, std::byte{7});
  for (int run = 0; run < kRuns && !HasFailure(); ++run) {
    ReadsAtOnce listener(runner);
    ASSERT_TRUE(runner->start(
        {.buckets = kBuckets,
         .bucket_bytes = [&version](std::uint64_t i) -> Result<std::span<const std::byte>> {
           return std::span(version).subspan(i * kBucketBytes, kBucketBytes);
         },
         .engines = {{.engine = reload::EngineId{1}, .device = device::DeviceIndex{0}},
                     {.engine = reload::EngineId{2}, .device = device::DeviceIndex{1}}},
         .deadline = now() + std::chrono::seconds(20)},
        listener));
    listener.runs.get_future().wait();
    // Memory of small versions comes and goes for as long as the run is on.
    std::thread comes_and_goes([&] {
      constexpr std::size_t kSliceBytes = 64 * limits::kKiB;
      alignas(4096) static std::array<std::byte, 8 * kSliceBytes>
          all;  // whole pages are registered
      do {
        device::RegisteredMemory memory;
        for (std::size_t at = 0; at < all.size(); at += kSliceBytes) {
          auto slice = registering->register_host(std::span(all).subspan(at, kSliceBytes));
          EXPECT_TRUE(slice.has_value() && (*slice)->registered());
          memory.add(std::move(*slice));
        }
        memory.end();
        EXPECT_TRUE(memory.ended());
      } while (!listener.finished);
    });
    const auto report = runner->wait();
    comes_and_goes.join();
    ASSERT_TRUE(report.has_value()) << "the run waited for itself: " << report.error().message();
    EXPECT_EQ(report->bytes, version.size());
  }
}

}  // namespace
}  // namespace wsync::agent
