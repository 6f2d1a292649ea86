#include "shared/process_group/memory/host_segment.h"

#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/process_group/memory/segment.h"

namespace wsync::collective::memory {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Result<> check_options(const HostSegmentOptions& options) {
  if (options.size < 1 || options.size > kHostRankCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a group of {} ranks on a host, expected 1 to {}", options.size,
                            kHostRankCount));
  if (!std::has_single_bit(options.channel_bytes) || options.channel_bytes < kChannelBytesMin ||
      options.channel_bytes > kChannelBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("channels of {} bytes, expected a power of two from {} to {}",
                            options.channel_bytes, kChannelBytesMin, kChannelBytesMax));
  return {};
}

Result<HostSegment> HostSegment::create(const HostSegmentOptions& options) {
  WSYNC_TRY(check_options(options));
  const Layout layout{.size = options.size, .channel_bytes = options.channel_bytes};
  const std::uint64_t bytes = layout.segment_bytes();
  const std::string what = fmt::format("the channels of {} ranks", options.size);
  WSYNC_TRY(require_memory(bytes, what));
  UniqueFd fd(::memfd_create("wsync-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return fail_errno(what + ": memfd_create", errno);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return fail_errno(fmt::format("{}: cannot reserve {} bytes", what, bytes), errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return fail_errno(what + ": cannot seal the memfd", errno);
  auto region = MappedRegion::map(fd.get(), bytes, true);
  if (!region) return fail(region.error().with_context(what));
  return HostSegment(std::move(fd), Segment::make(std::move(*region), layout));
}

std::uint32_t HostSegment::size() const noexcept { return segment_->size(); }

Result<std::unique_ptr<MemoryGroup>> HostSegment::attach(std::uint32_t rank) const {
  return memory::attach(segment_, rank);
}

std::vector<RankSign> HostSegment::ranks() const {
  std::vector<RankSign> signs;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    const RankSlot& slot = segment_->rank(rank);
    const RankPhase phase = slot.phase.load(std::memory_order_acquire);
    signs.push_back({.phase = phase,
                     .pid = slot.pid.load(std::memory_order_relaxed),
                     .last_beat = TimePoint{slot.last_beat.load(std::memory_order_relaxed)},
                     .word = slot.word.load(std::memory_order_acquire)});
  }
  return signs;
}

void HostSegment::abort(const Error& reason) const {
  segment_->break_with(segment_->launcher(), reason);
}

Result<> HostSegment::health() const { return segment_->health(); }

}  // namespace wsync::collective::memory
