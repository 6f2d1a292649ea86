// The mapped segment. Ranks and launcher use it to find its parts, wake each other and break the
// group. Used only by host_segment.h and memory_group.h.
//
// Thread: any, from several processes at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "shared/base/shared_memory.h"
#include "shared/process_group/memory/layout.h"
#include "shared/process_group/memory/memory_group.h"

namespace wsync::collective::memory {

// One direction of a pair of ranks. Only the sender stores `written`; only the receiver stores
// `read`.
struct Channel {
  ChannelState* state = nullptr;
  std::span<std::byte> ring;
};

class Segment {
 public:
  // Creates the parts in an empty segment of layout.segment_bytes().
  [[nodiscard]] static std::shared_ptr<Segment> make(MappedRegion region, const Layout& layout);
  // Maps a segment that another process made. `fd` is borrowed. kInvalidInput if it is not a
  // segment.
  [[nodiscard]] static Result<std::shared_ptr<Segment>> open(int fd);

  Segment(MappedRegion region, const Layout& layout)
      : region_(std::move(region)), layout_(layout) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return layout_.size; }
  [[nodiscard]] std::uint32_t launcher() const noexcept {
    return layout_.size;
  }  // index of the launcher's ReasonSlot
  [[nodiscard]] RankSlot& rank(std::uint32_t rank) const noexcept;
  [[nodiscard]] Channel channel(std::uint32_t from, std::uint32_t to) const noexcept;

  // Notifies a rank of a change. When the rank looks again, it sees everything stored before this
  // call.
  void ring(std::uint32_t rank) const noexcept;
  void ring_all() const noexcept;
  // Sleeps until the rank's doorbell differs from `heard` or until the deadline. May return early.
  void sleep(std::uint32_t rank, std::uint32_t heard, TimePoint deadline) const noexcept;

  // Breaks the group and wakes every rank. Only the first reason counts, overall and per reporter.
  void break_with(std::uint32_t reporter, const Error& reason) const noexcept;
  // Returns success, or the first reason.
  [[nodiscard]] Result<> health() const;
  [[nodiscard]] bool broken() const noexcept;

 private:
  template <class T>
  [[nodiscard]] T& at(std::uint64_t offset) const noexcept;
  MappedRegion region_;
  Layout layout_;
};

// Like attach() with a descriptor.
[[nodiscard]] Result<std::unique_ptr<MemoryGroup>> attach(std::shared_ptr<Segment> segment,
                                                          std::uint32_t rank);

}  // namespace wsync::collective::memory
