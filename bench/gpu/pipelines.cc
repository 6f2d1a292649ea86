#include "bench/gpu/pipelines.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "bench/gpu/batch.h"
#include "bench/gpu/staged_arena.h"
#include "bench/gpu/stages.h"
#include "bench/gpu/timing.h"
#include "inference_side/reload/pipeline_runner.h"
#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kGranule = 2 * limits::kMiB;
constexpr std::chrono::minutes kUpdateDeadline{5};
// Three buffers each for the separate stages, for two stages and for three stages.
constexpr std::uint64_t kBuffersOfDevice = 9;
// Percent of a GPU's free memory for buffers and for the engines' weights. The rest is for
// contexts.
constexpr std::uint64_t kBufferShare = 50;
constexpr std::uint64_t kWeightsShare = 25;

// One engine, which waits for buckets and lets its process copy them.
class BenchEngine {
 public:
  BenchEngine(reload::PipelineRunner& runner, Reader& reader, std::size_t first_mapping,
              std::span<const std::uint64_t> checks, std::uint64_t bucket_bytes)
      : runner_(runner),
        reader_(reader),
        first_mapping_(first_mapping),
        checks_(checks),
        bucket_bytes_(bucket_bytes),
        thread_([this](const std::stop_token& stop) { serve(stop); }) {}

  void give(const reload::BucketReady& ready) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(ready);
    }
    changed_.notify_one();
  }

 private:
  void serve(const std::stop_token& stop) {
    for (;;) {
      reload::BucketReady ready;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return !queue_.empty(); })) return;
        ready = queue_.front();
        queue_.pop_front();
      }
      if (const auto copied = copy(ready); copied)
        runner_.handle_bucket_ack(ready.engine, ready.bucket);
      else
        runner_.engine_lost(ready.engine, copied.error());
    }
  }
  Result<> copy(const reload::BucketReady& ready) {
    const auto copied = WSYNC_TRY(
        reader_.copy({.mapping = first_mapping_ + reload::index_of(ready.slot),
                      .bytes = ready.bytes,
                      .offset = reload_offset(ready.bucket, bucket_bytes_, reader_.bytes())}));
    if (copied.check == checks_[ready.bucket]) return {};
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format(
            "bucket {}: the engine of device {} read bytes with the checksum {:x}, expected {:x}",
            ready.bucket, reload::index_of(ready.device), copied.check, checks_[ready.bucket]));
  }

  reload::PipelineRunner& runner_;
  Reader& reader_;
  const std::size_t first_mapping_;
  const std::span<const std::uint64_t> checks_;
  const std::uint64_t bucket_bytes_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<reload::BucketReady> queue_;
  std::jthread thread_;
};

class Listener final : public reload::PipelineListener {
 public:
  explicit Listener(std::deque<BenchEngine>& engines) : engines_(engines) {}
  void on_bucket_ready(const reload::BucketReady& ready) override {
    engines_[reload::number(ready.engine)].give(ready);
  }
  void on_engine_dropped(const reload::LostEngine&) override {}
  void on_finished(const Result<reload::PipelineReport>&) override {}

 private:
  std::deque<BenchEngine>& engines_;
};

// All parts of one case.
class Case {
 public:
  explicit Case(const PipelineCaseOptions& options) : options_(options) {}
  Result<> prepare(const Interrupt& interrupt);
  Result<PipelineCase::Round> round(unsigned number);
  [[nodiscard]] PipelineCase result() const {
    PipelineCase made;
    made.gpus = options_.gpus;
    made.buffer_bytes = buckets_.bucket_bytes;
    made.bytes = buckets_.bytes.size();
    return made;
  }

 private:
  // A device that is alone has no group.
  [[nodiscard]] std::optional<collective::GroupKind> group_kind() const {
    return options_.gpus.size() > 1 ? options_.collective : std::nullopt;
  }
  Result<> choose_sizes();
  Result<> make_arena();
  Result<> make_readers(const Interrupt& interrupt);
  Result<std::unique_ptr<reload::PipelineRunner>> make_runner(Stages stages);
  Result<> import_buffers(const reload::PipelineRunner& runner);
  Result<double> update(reload::PipelineRunner& runner, std::size_t first_mapping);

  const PipelineCaseOptions& options_;
  std::uint64_t model_bytes_ = 0;
  std::uint64_t reader_bytes_ = 0;
  Buckets buckets_;
  std::unique_ptr<StagedArena> arena_;
  std::vector<std::uint64_t> checks_;
  std::unique_ptr<LoneStages> lone_;
  std::unique_ptr<reload::PipelineRunner> two_, three_;
  std::vector<std::unique_ptr<device::HostRegistration>> registrations_;
  std::vector<Reader> readers_;
};

Result<> Case::choose_sizes() {
  std::map<std::uint32_t, std::uint64_t> devices_of;
  for (const std::uint32_t gpu : options_.gpus) ++devices_of[gpu];
  const auto bytes = WSYNC_TRY(model_bytes(options_.bytes));
  model_bytes_ = bytes;
  std::uint64_t buffer = std::min(options_.buffer_bytes, model_bytes_);
  reader_bytes_ = model_bytes_;
  for (const auto& [gpu, devices] : devices_of) {
    auto device = WSYNC_TRY(device::make_device(
        {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{0}, .gpu = gpu}));
    const auto memory = WSYNC_TRY(device->memory_info());
    const std::uint64_t share = memory.free_bytes / 100 / devices;
    buffer = std::min(buffer, share * kBufferShare / kBuffersOfDevice / kGranule * kGranule);
    reader_bytes_ = std::min(reader_bytes_, share * kWeightsShare / kGranule * kGranule);
    if (buffer < kGranule || reader_bytes_ < kGranule)
      return fail(
          ErrorCode::kResourceExhausted,
          fmt::format("{} has {} free bytes, which is not enough for {} devices with {} buffers of "
                      "at least {} bytes each; measure fewer devices",
                      device->name(), memory.free_bytes, devices, kBuffersOfDevice, kGranule));
  }
  reader_bytes_ = std::max(reader_bytes_, buffer);
  buckets_.bucket_bytes = buffer;
  return {};
}

Result<> Case::make_arena() {
  auto arena = WSYNC_TRY(StagedArena::create(
      {.bytes = model_bytes_, .seed = options_.gpus.size(), .huge_pages = HugePages::kAdvise}));
  arena_ = std::make_unique<StagedArena>(std::move(arena));
  buckets_.bytes = arena_->data();
  for (std::uint64_t b = 0; b < buckets_.count(); ++b) {
    const auto check = WSYNC_TRY(expected_check(buckets_.at(b)));
    checks_.push_back(check);
  }
  return {};
}

Result<std::unique_ptr<reload::PipelineRunner>> Case::make_runner(Stages stages) {
  reload::PipelineOptions wanted;
  for (std::uint32_t i = 0; i < options_.gpus.size(); ++i) {
    auto device = WSYNC_TRY(device::make_device(
        {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{i}, .gpu = options_.gpus[i]}));
    wanted.devices.push_back(std::move(device));
  }
  wanted.buffer_bytes = buckets_.bucket_bytes;
  wanted.stages = stages;
  wanted.collective = group_kind();
  return reload::PipelineRunner::create(std::move(wanted));
}

Result<> Case::import_buffers(const reload::PipelineRunner& runner) {
  for (std::uint32_t d = 0; d < readers_.size(); ++d)
    for (std::uint32_t slot = 0; slot < reload::kIpcSlots; ++slot) {
      const auto handle =
          WSYNC_TRY(runner.group().ipc_handle(device::DeviceIndex{d}, reload::SlotIndex{slot}));
      if (auto number = readers_[d].import(handle); !number) return fail(number.error());
    }
  return {};
}

Result<> Case::make_readers(const Interrupt& interrupt) {
  for (std::uint32_t d = 0; d < options_.gpus.size(); ++d) {
    auto reader = WSYNC_TRY(Reader::start(
        options_.executable,
        fmt::format("{}/engine{}of{}.log", options_.directory, d, options_.gpus.size()),
        {.gpu = options_.gpus[d], .device_index = d, .bytes = reader_bytes_}, interrupt));
    readers_.push_back(std::move(reader));
  }
  WSYNC_TRY(import_buffers(*two_));
  return import_buffers(*three_);
}

Result<> Case::prepare(const Interrupt& interrupt) {
  WSYNC_TRY(choose_sizes());
  WSYNC_TRY(make_arena());
  lone_ = WSYNC_TRY(LoneStages::create(options_.gpus, buckets_.bucket_bytes, group_kind()));
  for (auto [runner, stages] :
       {std::pair{&two_, Stages::kTwo}, std::pair{&three_, Stages::kThree}}) {
    *runner = WSYNC_TRY(make_runner(stages));
  }
  for (std::size_t d = 0; d < options_.gpus.size(); ++d) {
    auto registration = WSYNC_TRY(lone_->device(d).register_host(arena_->mapping()));
    registrations_.push_back(std::move(registration));
  }
  return make_readers(interrupt);
}

Result<double> Case::update(reload::PipelineRunner& runner, std::size_t first_mapping) {
  std::deque<BenchEngine> engines;
  reload::PipelineJob job;
  for (std::uint32_t d = 0; d < readers_.size(); ++d) {
    engines.emplace_back(runner, readers_[d], first_mapping, checks_, buckets_.bucket_bytes);
    job.engines.push_back({.engine = reload::EngineId{d}, .device = device::DeviceIndex{d}});
  }
  Listener listener(engines);
  job.buckets = buckets_.count();
  job.bucket_bytes = [this](std::uint64_t bucket) -> Result<std::span<const std::byte>> {
    return buckets_.at(bucket);
  };
  job.deadline = now() + kUpdateDeadline;
  WSYNC_TRY(runner.start(std::move(job), listener));
  const auto report = WSYNC_TRY(runner.wait());
  if (!report.lost.empty()) return fail(report.lost.front().reason);
  return seconds(report.end - report.begin);
}

// Measures every part once. Their order changes with each round.
Result<PipelineCase::Round> Case::round(unsigned number) {
  PipelineCase::Round round;
  const auto in_seconds = [](std::chrono::nanoseconds t) { return seconds(t); };
  const std::function<Result<>()> parts[] = {
      [&] {
        return lone_->copies_in(buckets_).map(in_seconds).map([&](double s) { round.h2d = s; });
      },
      [&] {
        return lone_->broadcasts(buckets_).map(in_seconds).map([&](double s) {
          round.broadcast = s;
        });
      },
      [&] {
        return reloads(readers_, buckets_).map(in_seconds).map([&](double s) { round.reload = s; });
      },
      [&] { return update(*two_, 0).map([&](double s) { round.two_stages = s; }); },
      [&] {
        return update(*three_, reload::kIpcSlots).map([&](double s) { round.three_stages = s; });
      }};
  for (std::size_t i = 0; i < std::size(parts); ++i)
    WSYNC_TRY(parts[(i + number) % std::size(parts)]());
  return round;
}

std::string label_of(const std::vector<std::uint32_t>& gpus) {
  return fmt::format("{} devices on GPUs {}", gpus.size(), fmt::join(gpus, ", "));
}

template <class Value>
Spread spread_over(const std::vector<PipelineCase::Round>& rounds, Value value) {
  std::vector<double> values;
  for (const auto& round : rounds) values.push_back(value(round));
  return spread_of(values);
}

}  // namespace

double PipelineCase::Round::longest() const { return std::max({h2d, broadcast, reload}); }

Result<std::uint64_t> model_bytes(std::uint64_t wanted) {
  const auto free = WSYNC_TRY(available_memory());
  const std::uint64_t bytes = std::min(wanted, free.bytes / 2) / kGranule * kGranule;
  if (bytes == 0)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("the model has {} bytes: expected at least {}, and twice as much free "
                            "host memory ({} bytes are free)",
                            wanted, kGranule, free.bytes));
  return bytes;
}

Result<PipelineCase> run_pipeline_case(const PipelineCaseOptions& options,
                                       const Interrupt& interrupt,
                                       const OnGpuProgress& on_progress) {
  const std::string label = label_of(options.gpus);
  on_progress(label + ": buffers", 0, options.rounds);
  Case made(options);
  if (auto ready = made.prepare(interrupt); !ready) return fail(ready.error().with_context(label));
  PipelineCase result = made.result();
  // The first round warms up everything and is not counted.
  for (unsigned number = 0; number <= options.rounds; ++number) {
    WSYNC_TRY(resume(interrupt));
    on_progress(label, number, options.rounds + 1);
    const auto round = made.round(number);
    if (!round) return fail(round.error().with_context(label));
    if (number > 0) result.rounds.push_back(*round);
  }
  using Round = PipelineCase::Round;
  const auto over = [&](auto value) { return spread_over(result.rounds, value); };
  result.h2d = over([](const Round& r) { return r.h2d; });
  result.broadcast = over([](const Round& r) { return r.broadcast; });
  result.reload = over([](const Round& r) { return r.reload; });
  result.two_stages = over([](const Round& r) { return r.two_stages; });
  result.three_stages = over([](const Round& r) { return r.three_stages; });
  result.two_ratio = over([](const Round& r) { return r.two_stages / r.longest(); });
  result.three_ratio = over([](const Round& r) { return r.three_stages / r.longest(); });
  return result;
}

}  // namespace wsync::bench
