#include "bench/baseline/workbench.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <latch>

#include "bench/gpu/copies.h"
#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::size_t kStampEveryBytes = 4096;
constexpr std::uint64_t kNoiseSeed = 7;

std::chrono::nanoseconds process_cpu() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

Stopwatch::Stopwatch() noexcept : cpu_(process_cpu()), begin_(now()) {}

Spent Stopwatch::stop() const noexcept {
  const auto wall = now() - begin_;
  return {.wall = wall, .cpu = process_cpu() - cpu_};
}

Workbench::Workbench(Pages source, Pages target, unsigned threads)
    : source_(std::move(source)),
      target_(std::move(target)),
      helpers_(threads > 1 ? std::make_unique<ThreadPool>(threads - 1) : nullptr) {}

Result<std::unique_ptr<Workbench>> Workbench::create(std::size_t bytes, unsigned threads) {
  WSYNC_CHECK(bytes > 0 && bytes % kStampEveryBytes == 0 && threads > 0, "whole pages");
  auto source = Pages::make_private(bytes, PageKind::kHuge);
  if (!source) return fail(std::move(source).error());
  auto target = Pages::make_private(bytes, PageKind::kHuge);
  if (!target) return fail(std::move(target).error());
  fill_with_noise(source->bytes(), kNoiseSeed);
  target->touch();
  return std::unique_ptr<Workbench>(new Workbench(std::move(*source), std::move(*target), threads));
}

std::span<const std::byte> Workbench::stamped() {
  ++stamp_;
  const auto bytes = source_.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += kStampEveryBytes)
    std::memcpy(bytes.data() + at, &stamp_, sizeof stamp_);
  return bytes;
}

Result<> Workbench::check_arrived() const {
  const auto expected = source_.bytes();
  const auto found = target_.bytes();
  if (std::memcmp(expected.data(), found.data(), expected.size()) == 0) return {};
  const auto [at, other] = std::ranges::mismatch(expected, found);
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format("byte {} of {} arrived as {}, expected {}", at - expected.begin(),
                  expected.size(), static_cast<unsigned>(*other), static_cast<unsigned>(*at)));
}

void Workbench::spoil_target() noexcept {
  const auto bytes = target_.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += kStampEveryBytes) bytes[at] ^= std::byte{0x5a};
}

void Workbench::parallel(unsigned threads, const std::function<void(unsigned)>& work) {
  WSYNC_CHECK(threads == 1 || (helpers_ && threads <= helpers_->size() + 1), "threads are there");
  std::latch done(threads - 1);
  for (unsigned i = 1; i < threads; ++i)
    helpers_->post([&, i] {
      work(i);
      done.count_down();
    });
  work(0);
  done.wait();
}

}  // namespace wsync::bench
