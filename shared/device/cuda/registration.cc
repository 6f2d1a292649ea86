#include "shared/device/cuda/registration.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <unistd.h>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::device::cuda {

namespace {

struct PinnedChunk {
  std::uintptr_t end = 0;
  std::uint32_t users = 0;
  OwnedRegistered owner;
};

// Pinning is slow, but look-ups must be fast. Therefore there are two locks; acquire `pinning`
// first.
struct PinnedChunks {
  std::mutex pinning;
  std::mutex looking;
  std::map<std::uintptr_t, PinnedChunk> all;  // keyed by first address; no overlaps
};
PinnedChunks& pinned_chunks() {
  static PinnedChunks chunks;
  return chunks;
}

std::string all_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Adds one user to the chunk [begin, end) and pins it if it is not pinned yet. Call with `pinning`
// held. Returns the first address of the chunk.
Result<std::uintptr_t> pin(const Gpu& gpu, std::uintptr_t begin, std::uintptr_t end,
                           unsigned int flags) {
  auto& chunks = pinned_chunks();
  {
    const std::lock_guard lock(chunks.looking);
    auto at = chunks.all.upper_bound(begin);
    if (at != chunks.all.begin() && end <= (--at)->second.end) {
      ++at->second.users;
      return at->first;
    }
  }
  const Driver& cuda = gpu.cuda();
  auto* address = reinterpret_cast<void*>(begin);
  WSYNC_TRY(check(cuda, cuda.cuMemHostRegister(address, end - begin, flags), "cuMemHostRegister"));
  const std::lock_guard lock(chunks.looking);
  chunks.all.insert_or_assign(
      begin, PinnedChunk{.end = end, .users = 1, .owner = OwnedRegistered(gpu.context(), address)});
  return begin;
}

// Removes one user from each chunk. Call with `pinning` held, so that a removed chunk is unpinned
// before its pages can be pinned again.
void unpin(const std::vector<std::uintptr_t>& begins) {
  auto& chunks = pinned_chunks();
  for (const auto begin : begins) {
    std::map<std::uintptr_t, PinnedChunk>::node_type gone;  // unpinned without the lock
    const std::lock_guard lock(chunks.looking);
    const auto at = chunks.all.find(begin);
    WSYNC_CHECK(at != chunks.all.end(), "a registration's chunks are there until it goes");
    if (--at->second.users == 0) gone = chunks.all.extract(at);
  }
}

std::string fallback_sentence(const Gpu& gpu, std::span<const std::byte> range,
                              std::string_view why) {
  const auto made = gpu.make_bounce_ring();
  return fmt::format(
      "{}: {} bytes of host memory cannot be pinned: {}; each copy from this memory goes through "
      "{} "
      "pinned buffers, which costs the processors one more pass over host memory",
      gpu.name(), range.size(), why,
      made ? std::string("wsync's own")
           : fmt::format("the driver's (wsync's own cannot be made: {})", made.error().message()));
}

}  // namespace

bool writable_in(std::string_view maps, std::span<const std::byte> range) {
  const auto first = reinterpret_cast<std::uintptr_t>(range.data());
  const auto last = first + range.size();
  while (!maps.empty()) {
    const auto line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(maps.size(), line.size() + 1));
    // "begin-end rwxp ..."
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    const char* stop = line.data() + line.size();
    const auto left = std::from_chars(line.data(), stop, begin, 16);
    if (left.ec != std::errc{} || left.ptr == stop || *left.ptr != '-') continue;
    const auto right = std::from_chars(left.ptr + 1, stop, end, 16);
    if (right.ec != std::errc{} || stop - right.ptr < 3) continue;
    if (begin < last && first < end && right.ptr[2] != 'w') return false;
  }
  return true;
}

std::unique_ptr<Registration> Registration::make(const Gpu& gpu, std::span<const std::byte> range,
                                                 std::uint64_t chunk_bytes) {
  std::unique_ptr<Registration> made(new Registration());
  if (range.empty()) return made;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  WSYNC_CHECK(chunk_bytes > 0 && chunk_bytes % page == 0, "chunks are made of whole pages");
  const auto first = reinterpret_cast<std::uintptr_t>(range.data()) & ~(page - 1);
  const auto last =
      (reinterpret_cast<std::uintptr_t>(range.data()) + range.size() + page - 1) & ~(page - 1);
  unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE;
  if (!writable_in(all_of("/proc/self/maps"), range)) {
    if (!gpu.registers_read_only()) {
      made->fallback_ = fallback_sentence(gpu, range,
                                          "it is mapped read-only, which this GPU or driver "
                                          "cannot pin");
      return made;
    }
    flags |= CU_MEMHOSTREGISTER_READ_ONLY;
  }
  const std::lock_guard lock(pinned_chunks().pinning);
  const ContextGuard guard(*gpu.context());
  auto state = guard.entered();
  for (auto at = first; state && at < last;
       at += std::min<std::uintptr_t>(chunk_bytes, last - at)) {
    const auto chunk = pin(gpu, at, at + std::min<std::uintptr_t>(chunk_bytes, last - at), flags);
    if (chunk)
      made->chunks_.push_back(*chunk);
    else
      state = fail(chunk.error());
  }
  if (state) return made;
  unpin(made->chunks_);
  made->chunks_.clear();
  made->fallback_ = fallback_sentence(gpu, range, state.error().message());
  return made;
}

Registration::~Registration() {
  const std::lock_guard lock(pinned_chunks().pinning);
  unpin(chunks_);
}

HostPart first_part(const std::byte* at, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  const auto end = begin + bytes;
  auto& chunks = pinned_chunks();
  const std::lock_guard lock(chunks.looking);
  const auto next = chunks.all.upper_bound(begin);
  if (next != chunks.all.begin()) {
    if (const auto holder = std::prev(next)->second.end; begin < holder)
      return {.bytes = std::min(end, holder) - begin, .is_pinned = true};
  }
  // Not in a chunk: up to the next one.
  const auto limit = next == chunks.all.end() ? end : std::min(end, next->first);
  return {.bytes = limit - begin, .is_pinned = false};
}

}  // namespace wsync::device::cuda
