#include "bench/pipeline/host_pipeline.h"

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "inference_side/reload/device_group.h"
#include "inference_side/reload/pipeline_runner.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/memory_limit.h"
#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"

namespace wsync::bench {
namespace {

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return fold(word_sum(bytes, {}), bytes.size());
}

constexpr std::chrono::minutes kStageDeadline{5};
constexpr std::uint64_t kBuffersOfOneDevice = 3;
// one for each separate stage, for two stages and for three stages
constexpr std::uint64_t kGroups = 5;

double cpu_now_s() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Stopwatch {
 public:
  [[nodiscard]] Taken taken() const {
    return {.wall_s = seconds(now() - begin_), .cpu_s = cpu_now_s() - cpu_};
  }

 private:
  TimePoint begin_ = now();
  double cpu_ = cpu_now_s();
};

// Counts events that other threads report, and keeps the first error.
class Countdown {
 public:
  explicit Countdown(std::uint64_t left) : left_(left) {}
  void done(const Result<>& outcome) {
    const std::lock_guard lock(mutex_);
    if (!outcome && outcome_) outcome_ = outcome;
    --left_;
    changed_.notify_all();
  }
  Result<> wait(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto at = std::chrono::steady_clock::time_point(
        std::chrono::nanoseconds(static_cast<std::int64_t>(deadline)));
    if (!changed_.wait_until(lock, at, [&] { return left_ == 0; }))
      return fail(ErrorCode::kDeadline,
                  fmt::format("{} operations of a stage did not end before the deadline", left_));
    return outcome_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t left_;
  Result<> outcome_;
};

struct FreeDeleter {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
constexpr std::size_t kEngineAlignment = 4096;

// An engine of one device: a thread that copies buckets out of an IPC buffer on request.
class ThreadEngine {
 public:
  // A bucket to copy, and the callback for its end.
  struct Task {
    std::span<const std::byte> from;
    std::uint64_t offset = 0;
    std::function<void(std::uint64_t checksum)> done;
  };

  // `rate`: see LinkRates::reload.
  ThreadEngine(std::uint64_t bytes, double rate)
      : bytes_(bytes),
        rate_(rate),
        memory_(static_cast<std::byte*>(std::aligned_alloc(
            kEngineAlignment,
            (bytes + kEngineAlignment - 1) / kEngineAlignment * kEngineAlignment))) {
    if (memory_) std::memset(memory_.get(), 0, bytes);
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  [[nodiscard]] bool has_memory() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] std::span<std::byte> weights() noexcept { return {memory_.get(), bytes_}; }

  void give(Task task) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void serve(const std::stop_token& stop) {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return !queue_.empty(); })) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      const TimePoint begin = now();
      const std::uint64_t found =
          fold(copy_streaming_sum(weights().subspan(task.offset, task.from.size()), task.from, {}),
               task.from.size());
      wait_for_link(begin, task.from.size(), rate_);
      task.done(found);
    }
  }

  const std::uint64_t bytes_;
  const double rate_;
  std::unique_ptr<std::byte, FreeDeleter> memory_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> queue_;
  std::jthread thread_;
};

Result<std::vector<std::unique_ptr<device::Device>>> make_devices(
    const HostPipelineOptions& options) {
  std::vector<std::unique_ptr<device::Device>> made;
  for (std::uint32_t d = 0; d < options.devices; ++d) {
    auto one = WSYNC_TRY(
        device::make_device({.kind = DeviceKind::kSeparate, .index = device::DeviceIndex{d}}));
    made.push_back(options.rates.given() ? paced(std::move(one), options.rates) : std::move(one));
  }
  return made;
}

using Mappings = std::vector<std::array<std::unique_ptr<device::Memory>, reload::kIpcSlots>>;

// Maps the IPC buffers of a group as its engines see them.
Result<Mappings> map_buffers(const reload::DeviceGroup& group) {
  Mappings made(group.size());
  for (std::uint32_t d = 0; d < group.size(); ++d)
    for (std::uint32_t slot = 0; slot < reload::kIpcSlots; ++slot) {
      auto handle = WSYNC_TRY(group.ipc_handle(device::DeviceIndex{d}, reload::SlotIndex{slot}));
      auto memory =
          WSYNC_TRY(group.device(device::DeviceIndex{d}).import_memory(std::move(handle)));
      made[d][slot] = std::move(memory);
    }
  return made;
}

}  // namespace

struct HostPipeline::Parts {
  HostPipelineOptions options;
  std::unique_ptr<SharedArena> arena;
  std::vector<std::uint64_t> checks;  // one per bucket
  // Groups of the separate stages. The stages can run at the same time and share only the machine.
  std::unique_ptr<reload::DeviceGroup> h2d_group, broadcast_group, reload_group;
  struct Runner {
    std::unique_ptr<reload::PipelineRunner> runner;
    Mappings buffers;
  };
  Runner two, three;
  Mappings buffers;  // mappings of reload_group
  std::deque<ThreadEngine> engines;
  std::uint64_t checked_bytes = 0;

  [[nodiscard]] std::uint64_t count() const {
    return (options.bytes + options.buffer_bytes - 1) / options.buffer_bytes;
  }
  [[nodiscard]] std::uint64_t offset(std::uint64_t bucket) const {
    return bucket * options.buffer_bytes;
  }
  [[nodiscard]] std::span<const std::byte> bucket(std::uint64_t b) const {
    return arena->data().subspan(offset(b),
                                 std::min(options.buffer_bytes, options.bytes - offset(b)));
  }

  Result<> make_model();
  Result<> make_group(std::unique_ptr<reload::DeviceGroup>& to);
  Result<> make_groups();
  Result<> make_runner(Runner& to, Stages stages);
  Result<> compare();
};

Result<> HostPipeline::Parts::make_model() {
  auto made = WSYNC_TRY(SharedArena::create({.name = "wsync-bench", .data_bytes = options.bytes}));
  arena = std::make_unique<SharedArena>(std::move(made));
  auto lease = WSYNC_TRY(arena->try_write_lease({}));
  std::uint64_t state = 0x9e3779b97f4a7c15ULL;
  const auto data = lease.data();
  for (std::size_t at = 0; at < data.size(); at += sizeof state) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    std::memcpy(data.data() + at, &state, std::min(sizeof state, data.size() - at));
  }
  std::move(lease).complete({});
  for (std::uint64_t b = 0; b < count(); ++b) checks.push_back(checksum_of(bucket(b)));
  return {};
}

Result<> HostPipeline::Parts::make_runner(Runner& to, Stages stages) {
  auto devices = WSYNC_TRY(make_devices(options));
  reload::PipelineOptions wanted;
  wanted.devices = std::move(devices);
  wanted.buffer_bytes = options.buffer_bytes;
  wanted.stages = stages;
  to.runner = WSYNC_TRY(reload::PipelineRunner::create(std::move(wanted)));
  to.buffers = WSYNC_TRY(map_buffers(to.runner->group()));
  return {};
}

Result<> HostPipeline::Parts::make_group(std::unique_ptr<reload::DeviceGroup>& to) {
  auto devices = WSYNC_TRY(make_devices(options));
  reload::DeviceGroupOptions wanted;
  wanted.devices = std::move(devices);
  wanted.buffer_bytes = options.buffer_bytes;
  to = WSYNC_TRY(reload::DeviceGroup::create(std::move(wanted)));
  return to->connect(now() + kStageDeadline);
}

Result<> HostPipeline::Parts::make_groups() {
  for (auto* group : {&h2d_group, &broadcast_group, &reload_group}) WSYNC_TRY(make_group(*group));
  buffers = WSYNC_TRY(map_buffers(*reload_group));
  WSYNC_TRY(make_runner(two, Stages::kTwo));
  return make_runner(three, Stages::kThree);
}

// Compares every engine's memory byte by byte, then clears it, so that the next update has to fill
// it.
Result<> HostPipeline::Parts::compare() {
  std::uint32_t number = 0;
  for (ThreadEngine& engine : engines) {
    if (std::memcmp(engine.weights().data(), arena->data().data(), options.bytes) != 0)
      return fail(
          ErrorCode::kDigestMismatch,
          fmt::format("after an update, the bytes of engine {} differ from those of the model",
                      number));
    std::memset(engine.weights().data(), 0, options.bytes);
    checked_bytes += options.bytes;
    ++number;
  }
  return {};
}

HostPipeline::HostPipeline(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
// The engines must end first, while the memory that they read and the objects that they notify
// still exist.
HostPipeline::~HostPipeline() { parts_->engines.clear(); }

Result<std::unique_ptr<HostPipeline>> HostPipeline::create(const HostPipelineOptions& options) {
  if (options.devices < 1 || options.devices > limits::kDeviceCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} devices: expected 1 to {}", options.devices, limits::kDeviceCount));
  if (options.buffer_bytes < kHandOverBytes || options.buffer_bytes > options.bytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("buffers of {0} bytes: expected {2} bytes to the size of the model ({1} bytes)",
                    options.buffer_bytes, options.bytes, kHandOverBytes));
  const std::uint64_t needed =
      options.bytes * (1 + options.devices) +
      kGroups * kBuffersOfOneDevice * options.devices * options.buffer_bytes;
  WSYNC_TRY(require_memory(needed, fmt::format("a model of {} bytes and its copies in {} engines",
                                               options.bytes, options.devices)));
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  for (std::uint32_t d = 0; d < options.devices; ++d) {
    parts->engines.emplace_back(options.bytes, options.rates.reload);
    if (!parts->engines.back().has_memory())
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("cannot allocate {} bytes of memory for an engine", options.bytes));
  }
  WSYNC_TRY(parts->make_model());
  WSYNC_TRY(parts->make_groups());
  return std::unique_ptr<HostPipeline>(new HostPipeline(std::move(parts)));
}

std::uint64_t HostPipeline::buckets() const noexcept { return parts_->count(); }
std::uint64_t HostPipeline::checked_bytes() const noexcept { return parts_->checked_bytes; }

Result<Taken> HostPipeline::h2d() {
  Parts& p = *parts_;
  auto left = std::make_shared<Countdown>(p.count());
  const Stopwatch watch;
  for (std::uint64_t b = 0; b < p.count(); ++b) {
    std::optional<reload::SlotIndex> slot;
    if (p.h2d_group->alone())
      slot = reload::SlotIndex{static_cast<std::uint32_t>(b % reload::kIpcSlots)};
    WSYNC_TRY(
        p.h2d_group->copy_in(device::DeviceIndex{static_cast<std::uint32_t>(b % p.options.devices)},
                             slot, p.bucket(b), [left](const Result<>& r) { left->done(r); }));
  }
  WSYNC_TRY(left->wait(now() + kStageDeadline));
  return watch.taken();
}

Result<Taken> HostPipeline::broadcasts() {
  Parts& p = *parts_;
  if (p.broadcast_group->alone()) return Taken{};
  const TimePoint deadline = now() + kStageDeadline;
  const Stopwatch watch;
  for (std::uint64_t b = 0; b < p.count(); ++b) {
    auto left = std::make_shared<Countdown>(p.options.devices);
    for (std::uint32_t d = 0; d < p.options.devices; ++d)
      WSYNC_TRY(p.broadcast_group->broadcast(
          {.device = device::DeviceIndex{d},
           .source = device::DeviceIndex{static_cast<std::uint32_t>(b % p.options.devices)},
           .slot = reload::SlotIndex{static_cast<std::uint32_t>(b % reload::kIpcSlots)},
           .bytes = p.bucket(b).size(),
           .deadline = deadline},
          [left](const Result<>& r) { left->done(r); }));
    WSYNC_TRY(left->wait(deadline));
  }
  return watch.taken();
}

Result<Taken> HostPipeline::reloads() {
  Parts& p = *parts_;
  auto left = std::make_shared<Countdown>(p.count() * p.options.devices);
  const Stopwatch watch;
  for (std::uint64_t b = 0; b < p.count(); ++b)
    for (std::uint32_t d = 0; d < p.options.devices; ++d)
      p.engines[d].give(
          {.from = p.buffers[d][b % reload::kIpcSlots]->host_view().first(p.bucket(b).size()),
           .offset = p.offset(b),
           .done = [left](std::uint64_t) { left->done({}); }});
  WSYNC_TRY(left->wait(now() + kStageDeadline));
  return watch.taken();
}

Result<Taken> HostPipeline::together() {
  const Stopwatch watch;
  Result<Taken> outcomes[2];
  {
    const std::jthread first([&] { outcomes[0] = h2d(); });
    const std::jthread second([&] { outcomes[1] = broadcasts(); });
    (void)WSYNC_TRY(reloads());
  }
  for (const auto& outcome : outcomes) (void)WSYNC_TRY(outcome);
  return watch.taken();
}

namespace {

// Passes buckets to engines and receives their answers during one update.
class EngineListener final : public reload::PipelineListener {
 public:
  using Give = std::function<void(const reload::BucketReady&)>;
  explicit EngineListener(Give give) : give_(std::move(give)) {}
  void on_bucket_ready(const reload::BucketReady& ready) override { give_(ready); }
  void on_engine_dropped(const reload::LostEngine&) override {}
  void on_finished(const Result<reload::PipelineReport>&) override {}

 private:
  Give give_;
};

}  // namespace

// One run of a runner, with at most `max` bytes of each bucket.
Result<Taken> HostPipeline::run(Stages stages, std::uint64_t max) {
  Parts& p = *parts_;
  Parts::Runner& use = stages == Stages::kThree ? p.three : p.two;
  reload::PipelineRunner& runner = *use.runner;
  const auto bytes_of = [&p, max](std::uint64_t b) {
    return p.bucket(b).first(std::min<std::uint64_t>(max, p.bucket(b).size()));
  };
  const bool whole = max == p.options.buffer_bytes;
  EngineListener listener([&](const reload::BucketReady& ready) {
    const auto d = reload::index_of(ready.device);
    const std::uint64_t expected =
        whole ? p.checks[ready.bucket] : checksum_of(bytes_of(ready.bucket));
    p.engines[d].give(
        {.from = use.buffers[d][reload::index_of(ready.slot)]->host_view().first(ready.bytes),
         .offset = p.offset(ready.bucket),
         .done = [&runner, ready, expected](std::uint64_t found) {
           if (found == expected)
             runner.handle_bucket_ack(ready.engine, ready.bucket);
           else
             runner.engine_lost(
                 ready.engine,
                 {ErrorCode::kDigestMismatch, fmt::format("bucket {}: checksum {:x}, expected {:x}",
                                                          ready.bucket, found, expected)});
         }});
  });
  reload::PipelineJob job;
  job.buckets = p.count();
  job.bucket_bytes = [&](std::uint64_t b) -> Result<std::span<const std::byte>> {
    return bytes_of(b);
  };
  for (std::uint32_t d = 0; d < p.options.devices; ++d)
    job.engines.push_back({.engine = reload::EngineId{d}, .device = device::DeviceIndex{d}});
  job.deadline = now() + kStageDeadline;
  const Stopwatch watch;
  WSYNC_TRY(runner.start(std::move(job), listener));
  const auto report = runner.wait();
  Taken taken = watch.taken();
  if (!report) return fail(report.error());
  if (!report->lost.empty()) return fail(report->lost.front().reason);
  taken.wall_s = seconds(report->end - report->begin);
  return taken;
}

Result<Taken> HostPipeline::update(Stages stages) {
  auto taken = run(stages, parts_->options.buffer_bytes);
  if (taken) WSYNC_TRY(parts_->compare());
  return taken;
}

Result<Taken> HostPipeline::hand_overs() { return run(Stages::kTwo, kHandOverBytes); }

}  // namespace wsync::bench
