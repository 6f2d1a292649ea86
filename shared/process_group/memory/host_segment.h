// The launcher's side of a process group inside a host. It makes the segment, observes which ranks
// are alive, and can break the group. The launcher is not a rank.
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
  std::uint32_t size = 0;  // number of ranks, 1 to kHostRankCount
  // Capacity of the channel from one rank to another; a power of two. The segment has one channel
  // for each ordered pair of ranks.
  std::uint64_t channel_bytes = 256ULL << 10U;
};

// Returns kInvalidInput if an option is out of its range.
[[nodiscard]] Result<> check_options(const HostSegmentOptions& options);

class Segment;

// The launcher's view of a rank. The launcher itself decides which rank is lost.
struct RankSign {
  RankPhase phase = RankPhase::kAway;
  int pid = 0;             // set once attached
  TimePoint last_beat{};   // this host's clock; attaching counts as the first beat
  std::uint64_t word = 0;  // set by MemoryGroup::notify()
};

class HostSegment {
 public:
  // Reserves all memory. kResourceExhausted if it is not available.
  [[nodiscard]] static Result<HostSegment> create(const HostSegmentOptions& options);

  [[nodiscard]] std::uint32_t size() const noexcept;
  // The descriptor for rank processes. It is borrowed and close-on-exec; duplicate it for a child.
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  // Attaches a rank that is a thread of this process, as memory::attach().
  [[nodiscard]] Result<std::unique_ptr<MemoryGroup>> attach(std::uint32_t rank) const;
  // Returns one entry per rank, in rank order.
  [[nodiscard]] std::vector<RankSign> ranks() const;
  // Breaks the group for all ranks and wakes them. Only the first reason counts; its text is cut to
  // 512 bytes.
  void abort(const Error& reason) const;
  // Returns success, or the error that broke the group.
  [[nodiscard]] Result<> health() const;

 private:
  HostSegment(UniqueFd fd, std::shared_ptr<Segment> segment) noexcept
      : fd_(std::move(fd)), segment_(std::move(segment)) {}
  UniqueFd fd_;
  std::shared_ptr<Segment> segment_;
};

}  // namespace wsync::collective::memory
