// What is where in the segment that the ranks of a host share; their only means of communication.
//
//   SegmentHeader | RankSlot of each rank | ReasonSlot of each rank and of the launcher |
//   a channel for each ordered pair of ranks: ChannelState, then channel_bytes of a byte ring
//
// Every part begins at a multiple of kLineBytes. Messages in a ring: 8 bytes that say how many
// follow, then these.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/process_group/memory/memory_group.h"

namespace wsync::collective::memory {

inline constexpr std::uint64_t kSegmentMagic = 0x4b4e415243535357;  // "WSSCRANK"
inline constexpr std::uint32_t kSegmentFormat = 2;
inline constexpr std::uint64_t kLineBytes = 64;

struct alignas(kLineBytes) SegmentHeader {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t size;  // number of ranks
  std::uint64_t channel_bytes;
  std::uint64_t segment_bytes;
  std::atomic<std::uint32_t> first_reason;  // 1 + index of the valid ReasonSlot; 0 = not broken
};

struct alignas(kLineBytes) RankSlot {
  // Incremented after every change that this rank may wait for. The rank sleeps on it (futex). The
  // writer wakes the rank only if `sleeping` is set.
  std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> sleeping;
  std::atomic<RankPhase> phase;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int64_t> last_beat;  // TimePoint
  std::atomic<std::uint64_t> word;      // status word of the rank
};

// The reason why one rank or the launcher broke the group. Its owner fills it once. It is read only
// after first_reason names it, so a slot whose owner was killed while writing is never read.
struct alignas(kLineBytes) ReasonSlot {
  std::atomic<std::uint32_t> taken;
  ErrorCode code;
  std::uint32_t bytes;
  std::array<char, 512> message;
};

// Bytes transferred since the start. Each counter is written by one rank only.
struct ChannelState {
  alignas(kLineBytes) std::atomic<std::uint64_t> written;
  alignas(kLineBytes) std::atomic<std::uint64_t> read;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "a futex is four bytes");

// Offsets in the file.
struct Layout {
  std::uint32_t size = 0;
  std::uint64_t channel_bytes = 0;

  [[nodiscard]] constexpr std::uint64_t rank_slot(std::uint32_t rank) const {
    return sizeof(SegmentHeader) + rank * sizeof(RankSlot);
  }
  // `reporter` is a rank, or `size` for the launcher.
  [[nodiscard]] constexpr std::uint64_t reason_slot(std::uint32_t reporter) const {
    return rank_slot(size) + reporter * sizeof(ReasonSlot);
  }
  [[nodiscard]] constexpr std::uint64_t channel(std::uint32_t from, std::uint32_t to) const {
    const std::uint64_t before = std::uint64_t{from} * (size - 1) + (to < from ? to : to - 1);
    return channels_begin() + before * channel_stride();
  }
  [[nodiscard]] constexpr std::uint64_t segment_bytes() const {
    return channels_begin() + std::uint64_t{size} * (size - 1) * channel_stride();
  }

 private:
  [[nodiscard]] constexpr std::uint64_t channels_begin() const { return reason_slot(size + 1); }
  [[nodiscard]] constexpr std::uint64_t channel_stride() const {
    return sizeof(ChannelState) + channel_bytes;
  }
};

}  // namespace wsync::collective::memory
