#include "bench/gpu/page_sizes.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "bench/gpu/staged_arena.h"
#include "bench/gpu/timing.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/huge_pages.h"
#include "shared/device/registered_memory.h"

namespace wsync::bench {
namespace {

constexpr unsigned kPageCopiesMax = 1'000;

struct PageSize {
  HugePages huge_pages;
  const char* name;
};
constexpr PageSize kPageSizes[] = {{HugePages::kOff, "4 KiB"},
                                   {HugePages::kAdvise, "huge, on request"},
                                   {HugePages::kExplicit, "huge, of the pool"}};

// One arena, and what is measured with it.
struct Contestant {
  PageSizeCase result;
  std::unique_ptr<StagedArena> arena;
  unsigned times = 1;  // copies of a sample
};

class PageSizes {
 public:
  explicit PageSizes(const CopyOptions& options) : options_(options) {}

  Result<> prepare();
  Result<> round(unsigned number, const Interrupt& interrupt);
  [[nodiscard]] std::vector<PageSizeCase> take();

 private:
  [[nodiscard]] Result<Contestant> make(const PageSize& size);
  [[nodiscard]] Result<> measure(Contestant& contestant);
  [[nodiscard]] Result<double> copy(const Contestant& contestant, unsigned times);
  [[nodiscard]] Result<> check(const Contestant& contestant);

  const CopyOptions& options_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Memory> to_;
  std::unique_ptr<TimedStream> stream_;
  std::vector<Contestant> contestants_;
};

Result<> PageSizes::prepare() {
  device_ = WSYNC_TRY(device::make_device(
      {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{0}, .gpu = options_.gpu}));
  to_ = WSYNC_TRY(device_->allocate(options_.bytes));
  auto stream = WSYNC_TRY(TimedStream::create(*device_, device::StreamRole::kHostToDevice));
  stream_ = std::make_unique<TimedStream>(std::move(stream));
  for (const PageSize& size : kPageSizes) {
    auto made = WSYNC_TRY(make(size));
    contestants_.push_back(std::move(made));
  }
  return {};
}

Result<Contestant> PageSizes::make(const PageSize& size) {
  Contestant made;
  made.result.pages = size.name;
  made.result.gpu = options_.gpu;
  made.result.bytes = options_.bytes;
  const std::string setting = shared_huge_pages();
  if (size.huge_pages == HugePages::kAdvise && !gives_on_request(setting)) {
    made.result.missing = fmt::format("shmem_enabled is '{}', expected advise or always", setting);
    return made;
  }
  auto arena = WSYNC_TRY(StagedArena::create(
      {.bytes = options_.bytes, .seed = options_.gpu, .huge_pages = size.huge_pages}));
  if (arena.fallback().empty())
    made.arena = std::make_unique<StagedArena>(std::move(arena));
  else
    made.result.missing = arena.fallback();
  return made;
}

Result<double> PageSizes::copy(const Contestant& contestant, unsigned times) {
  const auto taken = WSYNC_TRY(stream_->run(times, [&](device::Stream& stream) {
    return stream.copy_to_device({.memory = to_.get(), .offset = 0, .bytes = options_.bytes},
                                 contestant.arena->data());
  }));
  return std::max(seconds(taken), 1e-9);
}

Result<> PageSizes::check(const Contestant& contestant) {
  std::vector<std::byte> back(options_.bytes);
  (void)WSYNC_TRY(stream_->run(1, [&](device::Stream& stream) {
    return stream.copy_to_host(back, {.memory = to_.get(), .offset = 0, .bytes = back.size()});
  }));
  if (digest_of(back) == digest_of(contestant.arena->data())) return {};
  return fail(ErrorCode::kDigestMismatch,
              fmt::format("H2D of pages of {}: the bytes that arrived have the check sum {}, "
                          "expected {}",
                          contestant.result.pages, digest_of(back).to_string(),
                          digest_of(contestant.arena->data()).to_string()));
}

// The memory is registered for each sample, as at the first version that an arena holds.
Result<> PageSizes::measure(Contestant& contestant) {
  device::RegisteredMemory memory;
  const TimePoint begin = now();
  auto why = WSYNC_TRY(memory.register_with(*device_, contestant.arena->mapping()));
  const double registered = seconds(now() - begin);
  if (contestant.result.taken.empty()) {
    contestant.result.fallback = std::move(why);
    (void)WSYNC_TRY(copy(contestant, 1));
    const double once = WSYNC_TRY(copy(contestant, 1));
    contestant.times = static_cast<unsigned>(
        std::clamp(std::ceil(options_.sample_seconds / once), 1.0, double{kPageCopiesMax}));
    WSYNC_TRY(check(contestant));
  }
  const double copied = WSYNC_TRY(copy(contestant, contestant.times));
  contestant.result.taken.push_back(registered);
  contestant.result.copied.push_back(static_cast<double>(options_.bytes) * contestant.times /
                                     copied);
  return {};
}

Result<> PageSizes::round(unsigned number, const Interrupt& interrupt) {
  for (std::size_t i = 0; i < contestants_.size(); ++i) {
    WSYNC_TRY(resume(interrupt));
    Contestant& contestant = contestants_[(i + number) % contestants_.size()];
    if (contestant.arena) WSYNC_TRY(measure(contestant));
  }
  return {};
}

std::vector<PageSizeCase> PageSizes::take() {
  std::vector<PageSizeCase> cases;
  for (Contestant& contestant : contestants_) {
    contestant.result.register_s = spread_of(contestant.result.taken);
    contestant.result.rate = spread_of(contestant.result.copied);
    cases.push_back(std::move(contestant.result));
  }
  return cases;
}

}  // namespace

Result<std::vector<PageSizeCase>> run_page_sizes(const CopyOptions& options,
                                                 const Interrupt& interrupt,
                                                 const OnGpuProgress& on_progress) {
  PageSizes sizes(options);
  on_progress(fmt::format("GPU {}: page sizes", options.gpu), 0, options.rounds);
  if (auto ready = sizes.prepare(); !ready)
    return fail(ready.error().with_context(fmt::format("GPU {}", options.gpu)));
  for (unsigned round = 0; round < options.rounds; ++round) {
    on_progress(fmt::format("GPU {}: page sizes", options.gpu), round, options.rounds);
    if (auto done = sizes.round(round, interrupt); !done)
      return fail(done.error().with_context(fmt::format("GPU {}", options.gpu)));
  }
  return sizes.take();
}

}  // namespace wsync::bench
