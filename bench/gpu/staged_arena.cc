#include "bench/gpu/staged_arena.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace wsync::bench {

Result<StagedArena> StagedArena::create(const StagedArenaOptions& options) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  std::string fallback;
  auto arena = WSYNC_TRY(
      SharedArena::create({.name = "wsync-bench",
                           .data_bytes = options.bytes,
                           .huge_pages = options.huge_pages,
                           .threads = threads,
                           .on_fallback = [&](const Error& why) { fallback = why.message(); }}));
  {
    auto lease = WSYNC_TRY(arena.try_write_lease({}));
    fill_with_noise(lease.data(), options.seed);
    std::move(lease).complete({});
  }
  const auto shared = WSYNC_TRY(arena.share());
  auto view = WSYNC_TRY(ArenaView::open(shared.get(), {}, threads));
  return StagedArena(std::move(arena), std::move(view), std::move(fallback));
}

void fill_with_noise(std::span<std::byte> bytes, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t word = state ^ (state >> 29U);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

}  // namespace wsync::bench
