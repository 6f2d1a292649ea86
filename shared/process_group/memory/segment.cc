#include "shared/process_group/memory/segment.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <new>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/process_group/memory/host_segment.h"

namespace wsync::collective::memory {
namespace {

constexpr int kNeededSeals = F_SEAL_SHRINK | F_SEAL_GROW;

tl::unexpected<Error> no_segment(int fd, const std::string& why) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("descriptor {} is not a segment of ranks: {}; pass the descriptor that "
                          "the launcher has created",
                          fd, why));
}

// Returns the file's size after its seals are checked. With a fixed size, a mapping never raises
// SIGBUS.
Result<std::uint64_t> sealed_size(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return no_segment(fd, std::strerror(errno));
  if (const int seals = ::fcntl(fd, F_GET_SEALS);
      seals < 0 || (seals & kNeededSeals) != kNeededSeals)
    return no_segment(fd, "it is not a memfd of sealed size");
  return static_cast<std::uint64_t>(info.st_size);
}

void wake(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns the length of a prefix of at most `max_bytes` that does not cut a character.
std::size_t cut_at(const std::string& text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text.size();
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xc0U) == 0x80U)
    --max_bytes;
  return max_bytes;
}

}  // namespace

template <class T>
T& Segment::at(std::uint64_t offset) const noexcept {
  return *std::launder(reinterpret_cast<T*>(region_.bytes().data() + offset));
}

std::shared_ptr<Segment> Segment::make(MappedRegion region, const Layout& layout) {
  std::byte* const base = region.bytes().data();
  auto* header = new (base) SegmentHeader{};
  for (std::uint32_t rank = 0; rank < layout.size; ++rank)
    new (base + layout.rank_slot(rank)) RankSlot{};
  for (std::uint32_t reporter = 0; reporter <= layout.size; ++reporter)
    new (base + layout.reason_slot(reporter)) ReasonSlot{};
  for (std::uint32_t from = 0; from < layout.size; ++from)
    for (std::uint32_t to = 0; to < layout.size; ++to)
      if (from != to) new (base + layout.channel(from, to)) ChannelState{};
  header->magic = kSegmentMagic;
  header->format = kSegmentFormat;
  header->size = layout.size;
  header->channel_bytes = layout.channel_bytes;
  header->segment_bytes = layout.segment_bytes();
  return std::make_shared<Segment>(std::move(region), layout);
}

Result<std::shared_ptr<Segment>> Segment::open(int fd) {
  const auto bytes = WSYNC_TRY(sealed_size(fd));
  if (bytes < sizeof(SegmentHeader))
    return no_segment(fd, fmt::format("it has {} bytes, but its header alone needs {}", bytes,
                                      sizeof(SegmentHeader)));
  auto region = MappedRegion::map(fd, bytes, true);
  if (!region)
    return fail(region.error().with_context(fmt::format("segment of ranks, descriptor {}", fd)));
  const auto* header = reinterpret_cast<const SegmentHeader*>(region->bytes().data());
  if (header->magic != kSegmentMagic)
    return no_segment(
        fd, fmt::format("it begins with {:016x}, expected {:016x}", header->magic, kSegmentMagic));
  if (header->format != kSegmentFormat)
    return no_segment(fd,
                      fmt::format("it has format {}, but this program supports format {}; start "
                                  "the launcher and the ranks from the same version of wsync",
                                  header->format, kSegmentFormat));
  const HostSegmentOptions options{.size = header->size, .channel_bytes = header->channel_bytes};
  if (auto valid = check_options(options); !valid) return no_segment(fd, valid.error().message());
  const Layout layout{.size = options.size, .channel_bytes = options.channel_bytes};
  if (header->segment_bytes != layout.segment_bytes() || bytes != layout.segment_bytes())
    return no_segment(fd, fmt::format("it has {} bytes and its header says {}; a segment for {} "
                                      "ranks with channels of {} bytes has {}",
                                      bytes, header->segment_bytes, layout.size,
                                      layout.channel_bytes, layout.segment_bytes()));
  return std::make_shared<Segment>(std::move(*region), layout);
}

RankSlot& Segment::rank(std::uint32_t rank) const noexcept {
  return at<RankSlot>(layout_.rank_slot(rank));
}

Channel Segment::channel(std::uint32_t from, std::uint32_t to) const noexcept {
  const std::uint64_t offset = layout_.channel(from, to);
  return {.state = &at<ChannelState>(offset),
          .ring = region_.bytes().subspan(offset + sizeof(ChannelState), layout_.channel_bytes)};
}

// seq_cst is required. This function increments the doorbell and then reads `sleeping`; sleep()
// writes `sleeping` and then reads the doorbell. A single total order guarantees that a rank that
// is about to sleep sees the increment, or that this function sees it sleeping and wakes it.
void Segment::ring(std::uint32_t rank) const noexcept {
  RankSlot& slot = this->rank(rank);
  slot.doorbell.fetch_add(1);
  if (slot.sleeping.load() != 0) wake(slot.doorbell);
}

void Segment::ring_all() const noexcept {
  for (std::uint32_t rank = 0; rank < size(); ++rank) ring(rank);
}

void Segment::sleep(std::uint32_t rank, std::uint32_t heard, TimePoint deadline) const noexcept {
  RankSlot& slot = this->rank(rank);
  slot.sleeping.store(1);
  if (slot.doorbell.load() == heard) {
    // FUTEX_WAIT_BITSET takes an absolute time of the monotonic clock, which now() also reads.
    const auto until = std::max<std::int64_t>(static_cast<std::int64_t>(deadline), 0);
    const timespec time{.tv_sec = until / 1'000'000'000, .tv_nsec = until % 1'000'000'000};
    ::syscall(SYS_futex, &slot.doorbell, FUTEX_WAIT_BITSET, heard, &time, nullptr,
              FUTEX_BITSET_MATCH_ANY);
  }
  slot.sleeping.store(0);
}

void Segment::break_with(std::uint32_t reporter, const Error& reason) const noexcept {
  auto& header = at<SegmentHeader>(0);
  auto& own = at<ReasonSlot>(layout_.reason_slot(reporter));
  std::uint32_t free = 0;
  if (!broken() && own.taken.compare_exchange_strong(free, 1)) {
    own.code = reason.code();
    own.bytes = static_cast<std::uint32_t>(cut_at(reason.message(), own.message.size()));
    std::memcpy(own.message.data(), reason.message().data(), own.bytes);
    std::uint32_t none = 0;
    header.first_reason.compare_exchange_strong(none, reporter + 1);
  }
  ring_all();
}

bool Segment::broken() const noexcept {
  return at<SegmentHeader>(0).first_reason.load(std::memory_order_acquire) != 0;
}

Result<> Segment::health() const {
  const std::uint32_t first = at<SegmentHeader>(0).first_reason.load(std::memory_order_acquire);
  if (first == 0) return {};
  const auto& slot = at<ReasonSlot>(layout_.reason_slot(std::min(first - 1, launcher())));
  return fail(
      std::min(slot.code, kLastErrorCode),
      std::string(slot.message.data(), std::min<std::size_t>(slot.bytes, slot.message.size())));
}

}  // namespace wsync::collective::memory
