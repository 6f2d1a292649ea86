#include "bench/gpu/copies.h"

#include <algorithm>
#include <cmath>

#include "bench/gpu/batch.h"
#include "bench/gpu/staged_arena.h"
#include "bench/gpu/timing.h"
#include "shared/base/format.h"
#include "shared/weights/cast.h"
#include "trainer_side/publish/draft.h"
#include "trainer_side/publish/publisher.h"
#include "trainer_side/publish/snapshot.h"
#include "trainer_side/publish/trainer_gpus.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;
using Sample = std::function<Result<nanoseconds>(unsigned times)>;

constexpr unsigned kTimesMax = 10'000;

// A product operation and the driver call that is its upper limit.
struct Contest {
  CopyCase result;
  Sample ceiling;
  Sample ours;
};

double rate_of(const Contest& contest, nanoseconds taken) {
  return static_cast<double>(contest.result.bytes) * contest.result.times /
         std::max(seconds(taken), 1e-9);
}

// Chooses the number of copies so that the faster side takes about the wanted time. Warms up both
// sides.
Result<> choose_times(Contest& contest, double wanted) {
  double min = 1e9;
  for (const Sample* sample : {&contest.ceiling, &contest.ours}) {
    (void)WSYNC_TRY((*sample)(1));
    const auto taken = WSYNC_TRY((*sample)(1));
    min = std::min(min, std::max(seconds(taken), 1e-6));
  }
  contest.result.times =
      static_cast<unsigned>(std::clamp(std::ceil(wanted / min), 1.0, double{kTimesMax}));
  return {};
}

Result<> run_round(Contest& contest, bool ceiling_first) {
  CopyCase& result = contest.result;
  for (const bool ceiling : {ceiling_first, !ceiling_first}) {
    const auto taken = ceiling ? contest.ceiling(result.times) : contest.ours(result.times);
    if (!taken) return fail(taken.error().with_context(result.name));
    (ceiling ? result.ceiling_rates : result.rates).push_back(rate_of(contest, *taken));
  }
  return {};
}

void summarize(CopyCase& result) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < result.rates.size(); ++i)
    ratios.push_back(result.rates[i] / result.ceiling_rates[i]);
  result.ceiling_rate = spread_of(result.ceiling_rates);
  result.rate = spread_of(result.rates);
  result.ratio = spread_of(ratios);
}

Result<> same(std::uint64_t check, std::uint64_t expected, std::string_view what) {
  if (check == expected) return {};
  return fail(ErrorCode::kDigestMismatch,
              fmt::format("{}: the copied bytes have the checksum {:x}, expected {:x}", what, check,
                          expected));
}

// The buffers of a GPU and all operations on them.
class Bench {
 public:
  explicit Bench(const CopyOptions& options) : options_(options) {}

  Result<> prepare(const device::CudaBackend& backend, const Interrupt& interrupt,
                   std::vector<std::string>& notes);
  [[nodiscard]] std::vector<Contest> contests();

 private:
  [[nodiscard]] Result<> make_device();
  [[nodiscard]] Result<> make_arena(std::vector<std::string>& notes);
  [[nodiscard]] Result<> make_reader(const Interrupt& interrupt);
  [[nodiscard]] CopyCase named(std::string name, std::string ceiling, double target) const {
    CopyCase result;
    result.name = std::move(name);
    result.ceiling = std::move(ceiling);
    result.gpu = options_.gpu;
    result.bytes = options_.bytes;
    result.target = target;
    return result;
  }
  [[nodiscard]] Result<nanoseconds> copy_in(unsigned times);
  [[nodiscard]] Result<nanoseconds> publish(unsigned times);
  [[nodiscard]] Result<nanoseconds> publish_converted(unsigned times);
  [[nodiscard]] Result<nanoseconds> run_batch(const Batch& batch, unsigned times,
                                              std::string_view what);
  [[nodiscard]] Result<nanoseconds> read_elsewhere(unsigned times);

  const CopyOptions& options_;
  std::unique_ptr<device::Ceilings> ceilings_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<StagedArena> arena_;
  std::unique_ptr<device::HostRegistration> registration_;
  std::unique_ptr<device::Memory> from_, to_;
  std::vector<SplitSum> sums_;
  std::unique_ptr<TimedStream> h2d_, reload_;
  std::unique_ptr<Reader> reader_;
  std::shared_ptr<publish::TrainerGpus> gpus_ = std::make_shared<publish::TrainerGpus>();
  std::shared_ptr<publish::Snapshotter> snapshotter_ = std::make_shared<publish::Snapshotter>(
      publish::SnapshotterOptions{.arenas = 1,
                                  .threads = publish::Publisher::threads(0),
                                  .huge_pages = HugePages::kAdvise});
  // Of versions that are half as large: one snapshotter would make its arena anew in each turn.
  std::shared_ptr<publish::Snapshotter> converted_ = std::make_shared<publish::Snapshotter>(
      publish::SnapshotterOptions{.arenas = 1, .threads = publish::Publisher::threads(0)});
  std::uint64_t expected_ = 0;
  std::uint64_t expected_converted_ = 0;
  Batch copied_, summed_;
};

Result<> Bench::make_device() {
  auto device = device::make_device(
      {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{0}, .gpu = options_.gpu});
  if (!device) return fail(std::move(device).error());
  device_ = std::move(*device);
  for (auto* memory : {&from_, &to_}) {
    *memory = WSYNC_TRY(device_->allocate(options_.bytes));
  }
  for (auto [work, role] : {std::pair{&h2d_, device::StreamRole::kHostToDevice},
                            std::pair{&reload_, device::StreamRole::kReload}}) {
    auto made = WSYNC_TRY(TimedStream::create(*device_, role));
    *work = std::make_unique<TimedStream>(std::move(made));
  }
  copied_ = make_batch({.from = from_.get(), .to = to_.get(), .bytes = options_.bytes});
  summed_ = make_batch({.from = from_.get(), .bytes = options_.bytes});
  sums_.resize(copied_.sums);
  return {};
}

Result<> Bench::make_arena(std::vector<std::string>& notes) {
  auto arena = WSYNC_TRY(StagedArena::create(
      {.bytes = options_.bytes, .seed = options_.gpu, .huge_pages = HugePages::kAdvise}));
  arena_ = std::make_unique<StagedArena>(std::move(arena));
  registration_ = WSYNC_TRY(device_->register_host(arena_->mapping()));
  if (!registration_->registered())
    notes.push_back(fmt::format("GPU {}: staging memory could not be pinned: {}", options_.gpu,
                                registration_->fallback()));
  const auto expected = WSYNC_TRY(expected_check(arena_->data()));
  expected_ = expected;
  return {};
}

Result<> Bench::make_reader(const Interrupt& interrupt) {
  auto reader = WSYNC_TRY(Reader::start(
      options_.executable, fmt::format("{}/reader{}.log", options_.directory, options_.gpu),
      {.gpu = options_.gpu, .device_index = 0, .bytes = options_.bytes}, interrupt));
  reader_ = std::make_unique<Reader>(std::move(reader));
  const auto handle = WSYNC_TRY(from_->export_handle());
  (void)WSYNC_TRY(reader_->import(handle));
  return {};
}

Result<> Bench::prepare(const device::CudaBackend& backend, const Interrupt& interrupt,
                        std::vector<std::string>& notes) {
  WSYNC_TRY(make_device());
  ceilings_ = WSYNC_TRY(backend.make_ceilings(options_.gpu, options_.bytes));
  WSYNC_TRY(make_arena(notes));
  WSYNC_TRY(make_reader(interrupt));
  return copy_in(1).map([](nanoseconds) {});
}

Result<nanoseconds> Bench::copy_in(unsigned times) {
  return h2d_->run(times, [&](device::Stream& stream) {
    return stream.copy_to_device({.memory = from_.get(), .offset = 0, .bytes = options_.bytes},
                                 arena_->data());
  });
}

// The snapshot of a trainer whose weights are on the GPU, digest included. The next arena is made
// writable between two publishes, as in a trainer.
Result<nanoseconds> Bench::publish(unsigned times) {
  const TensorInfo info{.name = "weights", .dtype = DType::kU8, .shape = {options_.bytes}};
  nanoseconds taken{};
  std::shared_ptr<publish::Snapshot> last;
  for (unsigned i = 0; i < times; ++i) {
    last.reset();
    snapshotter_->prepare_next();
    const TimePoint begin = now();
    auto bytes = WSYNC_TRY(gpus_->bytes(options_.gpu, {from_->address(), options_.bytes}, 0));
    auto source = WSYNC_TRY(publish::MemorySource::create({{.info = info, .bytes = bytes}}));
    last = WSYNC_TRY(snapshotter_->take(
        source, {.version = {.epoch = 1, .step = 1}, .deadline = begin + kGpuWorkDeadline}));
    taken += now() - begin;
  }
  WSYNC_TRY(
      same(WSYNC_TRY(expected_check(last->data().first(options_.bytes))), expected_, "publish"));
  return taken;
}

// The same bytes as F32 that are put as BF16. The GPU converts them.
Result<nanoseconds> Bench::publish_converted(unsigned times) {
  const TensorInfo info{.name = "weights", .dtype = DType::kBF16, .shape = {options_.bytes / 4}};
  nanoseconds taken{};
  std::shared_ptr<publish::Snapshot> last;
  for (unsigned i = 0; i < times; ++i) {
    last.reset();
    converted_->prepare_next();
    const TimePoint begin = now();
    const publish::SnapshotRequest request{.version = {.epoch = 1, .step = 1},
                                           .deadline = begin + kGpuWorkDeadline};
    const auto draft = WSYNC_TRY(publish::Draft::begin(converted_, {{.info = info, .range = {}}},
                                                       request, publish::Publisher::threads(0)));
    publish::DraftPart part{.name = info.name, .dtype = DType::kF32, .shape = info.shape};
    part.on_gpu = WSYNC_TRY(gpus_->bytes(options_.gpu, {from_->address(), options_.bytes}, 0));
    WSYNC_TRY(draft->put(part));
    WSYNC_TRY(draft->seal());
    last = WSYNC_TRY(converted_->take(*draft->source(), request));
    taken += now() - begin;
  }
  if (expected_converted_ == 0) {
    std::vector<std::byte> converted(options_.bytes / 2);
    cast(DType::kF32, arena_->data().first(options_.bytes), DType::kBF16, converted);
    expected_converted_ = WSYNC_TRY(expected_check(converted));
  }
  WSYNC_TRY(same(WSYNC_TRY(expected_check(last->data().first(options_.bytes / 2))),
                 expected_converted_, "publish of F32 as BF16"));
  return taken;
}

Result<nanoseconds> Bench::run_batch(const Batch& batch, unsigned times, std::string_view what) {
  const auto taken = reload_->run(
      times, [&](device::Stream& stream) { return stream.copy_pieces(batch.pieces, sums_); });
  if (!taken) return fail(taken.error());
  WSYNC_TRY(same(check_of(sums_), expected_, what));
  return taken;
}

Result<nanoseconds> Bench::read_elsewhere(unsigned times) {
  const auto copied = WSYNC_TRY(reader_->copy({.bytes = options_.bytes, .times = times}));
  WSYNC_TRY(same(copied.check, expected_, "reload in another process"));
  return copied.taken;
}

std::vector<Contest> Bench::contests() {
  const auto copy = [this](unsigned times) { return ceilings_->device_copy(times); };
  return {
      {.result = named("H2D", "cuMemcpyHtoDAsync, pinned by the driver", kH2DTarget),
       .ceiling = [this](unsigned times) { return ceilings_->host_to_device(times); },
       .ours = [this](unsigned times) { return copy_in(times); }},
      {.result = named("publish", "cuMemcpyDtoHAsync, pinned by the driver", kPublishTarget),
       .ceiling = [this](unsigned times) { return ceilings_->device_to_host(times); },
       .ours = [this](unsigned times) { return publish(times); }},
      {.result = named("publish of F32 as BF16",
                       "cuMemcpyDtoHAsync of the F32, pinned by the driver", kConvertTarget),
       .ceiling = [this](unsigned times) { return ceilings_->device_to_host(times); },
       .ours = [this](unsigned times) { return publish_converted(times); }},
      {.result = named("reload", "cuMemcpyAsync", kReloadTarget),
       .ceiling = copy,
       .ours = [this](unsigned times) { return run_batch(copied_, times, "reload"); }},
      {.result = named("reload in another process", "cuMemcpyAsync", kReloadTarget),
       .ceiling = copy,
       .ours = [this](unsigned times) { return read_elsewhere(times); }},
      {.result = named("sum", "a kernel that only reads", kSumTarget),
       .ceiling = [this](unsigned times) { return ceilings_->device_read(times); },
       .ours = [this](unsigned times) { return run_batch(summed_, times, "sum"); }},
  };
}

}  // namespace

Result<std::vector<CopyCase>> run_copies(const CopyOptions& options,
                                         const device::CudaBackend& backend,
                                         const Interrupt& interrupt,
                                         const OnGpuProgress& on_progress,
                                         std::vector<std::string>& notes) {
  Bench bench(options);
  on_progress(fmt::format("GPU {}: buffers", options.gpu), 0, options.rounds);
  if (auto ready = bench.prepare(backend, interrupt, notes); !ready)
    return fail(ready.error().with_context(fmt::format("GPU {}", options.gpu)));
  auto contests = bench.contests();
  for (Contest& contest : contests) WSYNC_TRY(choose_times(contest, options.sample_seconds));
  for (unsigned round = 0; round < options.rounds; ++round) {
    on_progress(fmt::format("GPU {}: copies and sums", options.gpu), round, options.rounds);
    for (Contest& contest : contests) {
      WSYNC_TRY(resume(interrupt));
      WSYNC_TRY(run_round(contest, round % 2 == 0));
    }
  }
  std::vector<CopyCase> cases;
  for (Contest& contest : contests) {
    summarize(contest.result);
    cases.push_back(std::move(contest.result));
  }
  return cases;
}

}  // namespace wsync::bench
