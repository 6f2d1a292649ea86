#include "deploy/demo/copy_floor.h"

#include <algorithm>
#include <cstring>

#include "shared/base/clock.h"
#include "shared/base/memory_limit.h"
#include "shared/base/private_memory.h"
#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"
#include "shared/base/thread_pool.h"
#include "shared/base/units.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kBytesMin = 1 * limits::kMiB;
constexpr std::uint64_t kChunkBytes = 8 * limits::kMiB;  // interval of checking `cancelled`

Result<SharedArena> make_source(std::uint64_t bytes) {
  auto arena = WSYNC_TRY(SharedArena::create({.name = "wsync-floor", .data_bytes = bytes}));
  auto lease = WSYNC_TRY(arena.try_write_lease({}));
  // Some processors copy zeros faster than other bytes.
  std::memset(lease.data().data(), 0x5a, lease.data().size());
  std::move(lease).complete({});
  return arena;
}

void copy_in_chunks(std::span<std::byte> to, std::span<const std::byte> from,
                    const std::atomic<bool>& cancelled) {
  for (std::uint64_t at = 0; at < from.size() && !cancelled; at += kChunkBytes) {
    const std::uint64_t n = std::min<std::uint64_t>(kChunkBytes, from.size() - at);
    copy_streaming(to.subspan(at, n), from.subspan(at, n));
  }
}

}  // namespace

Result<> CopyFloor::measure(std::uint64_t bytes, unsigned copiers, unsigned rounds,
                            const std::atomic<bool>& cancelled) {
  const auto available = WSYNC_TRY(available_memory());
  while (bytes > kBytesMin && bytes * (copiers + 1) > available.bytes / 2) bytes /= 2;
  const auto source = WSYNC_TRY(make_source(bytes));
  std::vector<PrivateMemory> memories;
  for (unsigned i = 0; i < copiers; ++i) {
    auto memory = WSYNC_TRY(PrivateMemory::allocate(bytes, "the copies of the floor"));
    memories.push_back(std::move(memory));
  }
  bytes_ = bytes;
  ThreadPool helpers(copiers - 1);  // this thread copies as well
  for (unsigned round = 0; round < rounds; ++round) {
    const TimePoint begin = now();
    for_each_index(&helpers, copiers, [&](std::size_t i) {
      copy_in_chunks(memories[i].bytes(), source.data().first(bytes), cancelled);
    });
    rates_.push_back(static_cast<double>(bytes * copiers) / seconds(now() - begin));
  }
  if (cancelled) return fail(ErrorCode::kCancelled, "the measurement of the floor was stopped");
  return {};
}

}  // namespace wsync::cli
