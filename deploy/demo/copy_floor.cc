#include "deploy/demo/copy_floor.h"

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/memory_limit.h"
#include "shared/base/private_memory.h"
#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"
#include "shared/base/unique_fd.h"
#include "shared/base/units.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kBytesMin = 1 * limits::kMiB;
constexpr std::uint64_t kChunkBytes = 8 * limits::kMiB;  // interval of checking `cancelled`

Result<MappedRegion> make_source(std::uint64_t bytes) {
  const UniqueFd fd(::memfd_create("wsync-floor", MFD_CLOEXEC));
  if (!fd.valid()) return fail_errno("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return fail_errno("the source of the floor", errno);
  auto region = MappedRegion::map(fd.get(), bytes, true);
  if (!region) return region;
  WSYNC_TRY(region->populate(true, 2));
  std::uint64_t value = 0;
  for (std::uint64_t at = 0; at + sizeof value <= bytes; at += sizeof value) {
    value = value * 0x9e3779b97f4a7c15U + at;
    std::memcpy(region->bytes().data() + at, &value, sizeof value);
  }
  return region;
}

void copy_in_chunks(std::span<std::byte> to, std::span<const std::byte> from,
                    const std::atomic<bool>& cancelled) {
  for (std::uint64_t at = 0; at < from.size() && !cancelled; at += kChunkBytes) {
    const std::uint64_t n = std::min<std::uint64_t>(kChunkBytes, from.size() - at);
    copy_streaming(to.subspan(at, n), from.subspan(at, n));
  }
}

}  // namespace

Result<FloorRounds> measure_copy_floor(std::uint64_t bytes, unsigned copiers, unsigned rounds,
                                       const std::atomic<bool>& cancelled) {
  const auto available = WSYNC_TRY(available_memory());
  while (bytes > kBytesMin && bytes * (copiers + 1) > available.bytes / 2) bytes /= 2;
  const auto source = WSYNC_TRY(make_source(bytes));
  std::vector<PrivateMemory> memories;
  for (unsigned i = 0; i < copiers; ++i) {
    auto memory = WSYNC_TRY(PrivateMemory::allocate(bytes, "the copies of the floor"));
    memories.push_back(std::move(memory));
  }
  FloorRounds measured{.bytes = bytes, .copiers = copiers, .rounds = {}};
  TimePoint begin{};
  // Synchronizes all copiers and the measuring thread, so that a round starts for all at once and
  // ends when the last copier has finished.
  std::barrier barrier(static_cast<std::ptrdiff_t>(copiers) + 1);
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < copiers; ++i)
    threads.emplace_back([&, to = memories[i].bytes()] {
      for (unsigned round = 0; round < rounds; ++round) {
        barrier.arrive_and_wait();
        copy_in_chunks(to, source.bytes(), cancelled);
        barrier.arrive_and_wait();
      }
    });
  for (unsigned round = 0; round < rounds; ++round) {
    begin = now();
    barrier.arrive_and_wait();
    barrier.arrive_and_wait();
    measured.rounds.push_back(now() - begin);
  }
  if (cancelled) return fail(ErrorCode::kCancelled, "the measurement of the floor was stopped");
  return measured;
}

void CopyFloor::add(const FloorRounds& measured) {
  bytes_ = measured.bytes;
  copiers_ = measured.copiers;
  for (const std::chrono::nanoseconds round : measured.rounds)
    rates_.push_back(static_cast<double>(measured.bytes * measured.copiers) / seconds(round));
  std::sort(rates_.begin(), rates_.end());
}

double CopyFloor::bytes_per_s() const {
  if (rates_.empty()) return 0;
  const std::size_t half = rates_.size() / 2;
  return rates_.size() % 2 == 1 ? rates_[half] : (rates_[half - 1] + rates_[half]) / 2;
}

}  // namespace wsync::cli
