#include "bench/baseline/workbench.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <latch>

#include "bench/gpu/staged_arena.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"

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

std::shared_ptr<const LeafTable> leaves_of(std::uint64_t bytes, std::uint64_t bucket_bytes) {
  std::vector<LeafPlace> leaves;
  std::vector<std::size_t> first;
  for (std::uint64_t bucket = 0; bucket < bytes; bucket += bucket_bytes) {
    first.push_back(leaves.size());
    const std::uint64_t end = std::min(bytes, bucket + bucket_bytes);
    for (std::uint64_t at = bucket; at < end; at += limits::kLeafBytes)
      leaves.push_back({.arena_offset = at,
                        .bytes = std::min(limits::kLeafBytes, end - at),
                        .place = {.seed = 0, .position = at},
                        .tensor = 0});
  }
  first.push_back(leaves.size());
  return std::make_shared<const LeafTable>(std::move(leaves), std::move(first));
}

std::vector<WordSum> sums_of(const LeafTable& leaves, std::span<const std::byte> bytes) {
  std::vector<WordSum> sums;
  sums.reserve(leaves.all().size());
  for (const LeafPlace& leaf : leaves.all())
    sums.push_back(word_sum(bytes.subspan(leaf.arena_offset, leaf.bytes), leaf.place));
  return sums;
}

Stopwatch::Stopwatch() noexcept : cpu_(process_cpu()), begin_(now()) {}

Spent Stopwatch::stop() const noexcept {
  const auto wall = now() - begin_;
  return {.wall = wall, .cpu = process_cpu() - cpu_};
}

Ground::Ground(Pages source, Pages target, unsigned threads)
    : source_(std::move(source)), target_(std::move(target)) {
  for (unsigned i = 1; i < threads; ++i) helpers_.push_back(std::make_unique<ThreadPool>(1));
}

Result<std::unique_ptr<Ground>> Ground::create(std::size_t bytes, unsigned threads) {
  WSYNC_CHECK(bytes > 0 && bytes % kStampEveryBytes == 0 && threads > 0, "whole pages");
  auto source = WSYNC_TRY(Pages::make_private(bytes, PageKind::kHuge));
  auto target = WSYNC_TRY(Pages::make_private(bytes, PageKind::kHuge));
  std::unique_ptr<Ground> ground(new Ground(std::move(source), std::move(target), threads));
  ground->parallel([&](unsigned index, Part part) {
    fill_with_noise(ground->source_.bytes().subspan(part.at, part.bytes), kNoiseSeed + index);
    // Writes the target once, so that every page of it exists. The value does not matter.
    std::ranges::fill(ground->target_.bytes().subspan(part.at, part.bytes), std::byte{0});
  });
  return ground;
}

std::span<const std::byte> Ground::stamped() {
  ++stamp_;
  const auto bytes = source_.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += kStampEveryBytes)
    std::memcpy(bytes.data() + at, &stamp_, sizeof stamp_);
  return bytes;
}

Result<> Ground::check_arrived() const {
  const auto expected = source_.bytes();
  const auto found = target_.bytes();
  if (std::memcmp(expected.data(), found.data(), expected.size()) == 0) return {};
  const auto [at, other] = std::ranges::mismatch(expected, found);
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format("byte {} of {} arrived as {}, expected {}", at - expected.begin(),
                  expected.size(), static_cast<unsigned>(*other), static_cast<unsigned>(*at)));
}

void Ground::spoil_target() noexcept {
  const auto bytes = target_.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += kStampEveryBytes) bytes[at] ^= std::byte{0x5a};
}

void Ground::parallel(const std::function<void(unsigned, Part)>& work) {
  const auto threads = static_cast<unsigned>(helpers_.size() + 1);
  const std::size_t share = bytes() / threads / kStampEveryBytes * kStampEveryBytes;
  const auto part_of = [&](unsigned i) -> Part {
    return {.at = share * i, .bytes = i + 1 == threads ? bytes() - share * i : share};
  };
  std::latch done(threads - 1);
  for (unsigned i = 1; i < threads; ++i)
    helpers_[i - 1]->post([&, i] {
      work(i, part_of(i));
      done.count_down();
    });
  work(0, part_of(0));
  done.wait();
}

Result<std::unique_ptr<Workbench>> Workbench::create(std::size_t bytes) {
  auto ground = WSYNC_TRY(Ground::create(bytes, 1));
  return std::unique_ptr<Workbench>(new Workbench(std::move(ground)));
}

Result<Ground*> Workbench::add_ground(unsigned threads) {
  auto ground = WSYNC_TRY(Ground::create(bytes(), threads));
  grounds_.push_back(std::move(ground));
  return grounds_.back().get();
}

}  // namespace wsync::bench
