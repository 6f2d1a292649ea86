// The launcher's side of a process group inside a host: makes the segment, sees who is alive, and
// can break the group. It is no rank of it.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/process_group/memory/memory_group.h"

namespace wsync::collective::memory {

inline constexpr std::uint32_t kHostRankCount = 256;
inline constexpr std::uint64_t kChannelBytesMin = 64;
inline constexpr std::uint64_t kChannelBytesMax = 64ULL << 20U;

struct HostSegmentOptions {
  std::uint32_t size = 0;  // ranks, 1 to kHostRankCount
  // On the way from one rank to another at most; a power of two. The segment has a channel for
  // each ordered pair of ranks.
  std::uint64_t channel_bytes = 256ULL << 10U;
};

// kInvalidInput when an option is out of its range.
[[nodiscard]] Result<> check_options(const HostSegmentOptions& options);

class Segment;

// What a launcher sees of a rank; it judges by itself who is lost.
struct RankSign {
  RankPhase phase = RankPhase::kAway;
  int pid = 0;             // once attached
  TimePoint last_beat{};   // of this host's clock; attaching is the first beat
  std::uint64_t word = 0;  // as MemoryGroup::tell()
};

class HostSegment {
 public:
  // kResourceExhausted when the memory is not there; all of it is reserved.
  [[nodiscard]] static Result<HostSegment> create(const HostSegmentOptions& options);

  [[nodiscard]] std::uint32_t size() const noexcept;
  // What rank processes attach to. Borrowed, and closed on exec: duplicate it for a child.
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  // A rank that is a thread of this process; as memory::attach().
  [[nodiscard]] Result<std::unique_ptr<MemoryGroup>> attach(std::uint32_t rank) const;
  // One sign for each rank, in their order.
  [[nodiscard]] std::vector<RankSign> ranks() const;
  // Breaks the group for all ranks, which wake up. The first reason counts; its sentence is cut to
  // 512 bytes.
  void abort(const Error& reason) const;
  // Success, or what broke the group.
  [[nodiscard]] Result<> health() const;

 private:
  HostSegment(UniqueFd fd, std::shared_ptr<Segment> segment) noexcept
      : fd_(std::move(fd)), segment_(std::move(segment)) {}
  UniqueFd fd_;
  std::shared_ptr<Segment> segment_;
};

}  // namespace wsync::collective::memory
