// How the ranks of a communicator meet: by an abstract Unix socket named in the unique id, which a
// thread of the id's maker listens on. When all ranks have come it sends each its result and, when
// all is well, the memory that broadcasts go through.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <nccl.h>

namespace emulated_nccl {

inline constexpr std::uint32_t kMaxRanks = 64;
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20U;

// Shared by the ranks. Chunks of all broadcasts are numbered from 1; a root writes one when every
// rank has consumed the one before.
struct Segment {
  std::atomic<std::uint64_t> published;
  std::array<std::atomic<std::uint64_t>, kMaxRanks> consumed;
  alignas(64) std::array<std::byte, kChunkBytes> data;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Hello {
  std::uint32_t size = 0;
  std::uint32_t rank = 0;
  std::array<char, 16> gpu{};  // UUID
};

// Starts listening; ncclSystemError when the socket cannot be made.
ncclResult_t make_unique_id(ncclUniqueId& id);

// Waits for the others, until `*stop`. On success `segment` is mapped, for the caller to unmap.
ncclResult_t meet(const ncclUniqueId& id, const Hello& hello, const std::atomic<bool>& stop,
                  Segment*& segment);

// Ends the threads of ids whose ranks have not all come; at exit.
void stop_listening();

}  // namespace emulated_nccl
