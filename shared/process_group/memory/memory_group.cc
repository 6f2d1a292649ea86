#include "shared/process_group/memory/memory_group.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/process_group/memory/segment.h"
#include "shared/process_group/rank_words.h"

namespace wsync::collective::memory {
namespace {

constexpr std::uint64_t kLengthBytes = sizeof(std::uint64_t);  // precedes each message
constexpr int kSpinPauses = 100;                               // pauses before a rank sleeps

void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The messages of one exchange in one direction of a pair, in order.
template <class Byte>
struct Lane {
  std::vector<std::span<Byte>> messages;
  std::size_t current = 0;   // first incomplete message
  std::uint64_t done = 0;    // transferred bytes of it, including its length
  std::uint64_t length = 0;  // receiving: as sent by the sender

  [[nodiscard]] bool pending() const noexcept { return current < messages.size(); }
  void clear() noexcept {
    messages.clear();
    current = 0;
    done = 0;
  }
  // Advances to the next message if this one is complete.
  void advance(std::uint64_t bytes) noexcept {
    done += bytes;
    if (done < kLengthBytes + messages[current].size()) return;
    ++current;
    done = 0;
  }
};

// Copies between a ring, starting at `position`, and plain memory. The ring's size is a power of
// two.
void put(std::span<std::byte> ring, std::uint64_t position, const std::byte* from,
         std::uint64_t bytes) {
  const std::uint64_t begin = position & (ring.size() - 1);
  const std::uint64_t first = std::min<std::uint64_t>(bytes, ring.size() - begin);
  std::memcpy(ring.data() + begin, from, first);
  if (bytes > first) std::memcpy(ring.data(), from + first, bytes - first);
}
void take(std::span<const std::byte> ring, std::uint64_t position, std::byte* to,
          std::uint64_t bytes) {
  const std::uint64_t begin = position & (ring.size() - 1);
  const std::uint64_t first = std::min<std::uint64_t>(bytes, ring.size() - begin);
  std::memcpy(to, ring.data() + begin, first);
  if (bytes > first) std::memcpy(to + first, ring.data(), bytes - first);
}

class SegmentGroup final : public MemoryGroup {
 public:
  SegmentGroup(std::shared_ptr<Segment> segment, std::uint32_t rank)
      : segment_(std::move(segment)), rank_(rank), sends_(size()), receives_(size()) {}
  ~SegmentGroup() override {
    segment_->rank(rank_).phase.store(RankPhase::kLeft, std::memory_order_release);
    segment_->ring_all();
  }

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return segment_->size(); }
  [[nodiscard]] Result<> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                  TimePoint deadline) override {
    WSYNC_TRY(segment_->health());
    auto done = transfer(sends, receives, deadline);
    if (done) return done;
    segment_->break_with(rank_, done.error());
    WSYNC_TRY(segment_->health());  // the first reason, which may differ
    return done;
  }
  void abort(const Error& reason) override { segment_->break_with(rank_, reason); }
  [[nodiscard]] Result<> health() const override { return segment_->health(); }
  void beat() noexcept override {
    segment_->rank(rank_).last_beat.store(static_cast<std::int64_t>(now()),
                                          std::memory_order_relaxed);
  }
  void notify(std::uint64_t word) noexcept override {
    segment_->rank(rank_).word.store(word, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t told(std::uint32_t rank) const noexcept override {
    return segment_->rank(rank).word.load(std::memory_order_acquire);
  }

 private:
  // Limits one step, so that both sides work concurrently: the reader copies one piece of a channel
  // while the writer writes the next.
  [[nodiscard]] std::uint64_t piece_bytes(const Channel& channel) const noexcept {
    return channel.ring.size() / 4;
  }

  [[nodiscard]] Result<> check_peer(std::uint32_t peer, std::string_view what) const {
    if (peer < size() && peer != rank_) return {};
    return fail(ErrorCode::kInvalidInput, fmt::format("rank {} {} rank {}, expected another rank "
                                                      "of a group of {}",
                                                      rank_, what, peer, size()));
  }

  Result<> begin(std::span<const Send> sends, std::span<const Receive> receives) {
    for (auto& lane : sends_) lane.clear();
    for (auto& lane : receives_) lane.clear();
    for (const Send& send : sends) {
      WSYNC_TRY(check_peer(send.to, "sends to"));
      sends_[send.to].messages.push_back(send.bytes);
    }
    for (const Receive& receive : receives) {
      WSYNC_TRY(check_peer(receive.from, "receives from"));
      receives_[receive.from].messages.push_back(receive.bytes);
    }
    return {};
  }

  Result<> transfer(std::span<const Send> sends, std::span<const Receive> receives,
                    TimePoint deadline) {
    WSYNC_TRY(begin(sends, receives));
    const RankSlot& slot = segment_->rank(rank_);
    for (;;) {
      const std::uint32_t heard = slot.doorbell.load(std::memory_order_acquire);
      bool moved = false;
      bool pending = false;
      for (std::uint32_t peer = 0; peer < size(); ++peer) {
        if (sends_[peer].pending()) moved |= push(peer);
        if (receives_[peer].pending()) {
          auto pulled = WSYNC_TRY(pull(peer));
          moved |= pulled;
        }
        pending |= sends_[peer].pending() || receives_[peer].pending();
      }
      if (!pending) return {};
      WSYNC_TRY(segment_->health());
      if (now() >= deadline) return fail(late());
      if (moved) continue;
      WSYNC_TRY(check_left());
      wait(slot, heard, deadline);
    }
  }

  void wait(const RankSlot& slot, std::uint32_t heard, TimePoint deadline) const {
    for (int i = 0; i < kSpinPauses; ++i) {
      if (slot.doorbell.load(std::memory_order_acquire) != heard) return;
      pause_briefly();
    }
    segment_->sleep(rank_, heard, deadline);
  }

  // Writes as much as fits, at most one piece. Returns true if it wrote anything.
  bool push(std::uint32_t to) {
    Lane<const std::byte>& lane = sends_[to];
    const Channel channel = segment_->channel(rank_, to);
    const std::uint64_t begin = channel.state->written.load(std::memory_order_relaxed);
    const std::uint64_t held = begin - channel.state->read.load(std::memory_order_acquire);
    const std::uint64_t end = begin + std::min(channel.ring.size() - held, piece_bytes(channel));
    std::uint64_t at = begin;
    while (lane.pending() && at < end) {
      const std::span<const std::byte> message = lane.messages[lane.current];
      const std::uint64_t length = message.size();
      const bool head = lane.done < kLengthBytes;
      const std::uint64_t left = (head ? kLengthBytes : kLengthBytes + length) - lane.done;
      const std::uint64_t bytes = std::min(left, end - at);
      const auto* from = head ? reinterpret_cast<const std::byte*>(&length) + lane.done
                              : message.data() + (lane.done - kLengthBytes);
      put(channel.ring, at, from, bytes);
      lane.advance(bytes);
      at += bytes;
    }
    if (at == begin) return false;
    channel.state->written.store(at, std::memory_order_release);
    segment_->ring(to);
    return true;
  }

  // Reads what is available, at most one piece. Returns true if it read anything.
  Result<bool> pull(std::uint32_t from) {
    Lane<std::byte>& lane = receives_[from];
    const Channel channel = segment_->channel(from, rank_);
    const std::uint64_t begin = channel.state->read.load(std::memory_order_relaxed);
    const std::uint64_t there = channel.state->written.load(std::memory_order_acquire) - begin;
    const std::uint64_t end = begin + std::min(there, piece_bytes(channel));
    std::uint64_t at = begin;
    while (lane.pending() && at < end) {
      const std::span<std::byte> message = lane.messages[lane.current];
      const bool head = lane.done < kLengthBytes;
      const std::uint64_t left = (head ? kLengthBytes : kLengthBytes + message.size()) - lane.done;
      const std::uint64_t bytes = std::min(left, end - at);
      auto* to = head ? reinterpret_cast<std::byte*>(&lane.length) + lane.done
                      : message.data() + (lane.done - kLengthBytes);
      take(channel.ring, at, to, bytes);
      at += bytes;
      if (head && lane.done + bytes == kLengthBytes && lane.length != message.size())
        return fail(
            ErrorCode::kInvalidInput,
            fmt::format("rank {} has sent {} to rank {}, which receives {}", from,
                        counted(lane.length, "byte"), rank_, counted(message.size(), "byte")));
      lane.advance(bytes);
    }
    if (at == begin) return false;
    channel.state->read.store(at, std::memory_order_release);
    segment_->ring(from);
    return true;
  }

  // Fails if a rank has left whose messages are all read, because nothing more will arrive from it.
  [[nodiscard]] Result<> check_left() const {
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      const bool sends = sends_[peer].pending();
      const bool receives = receives_[peer].pending();
      if (!sends && !receives) continue;
      if (segment_->rank(peer).phase.load(std::memory_order_acquire) != RankPhase::kLeft) continue;
      const ChannelState& inbound = *segment_->channel(peer, rank_).state;
      if (!sends && inbound.written.load(std::memory_order_acquire) !=
                        inbound.read.load(std::memory_order_relaxed))
        continue;
      return fail(ErrorCode::kPeerLost,
                  fmt::format("rank {} has left the group, but rank {} still {} it", peer, rank_,
                              sends ? "sends to" : "receives from"));
    }
    return {};
  }

  [[nodiscard]] Error late() const {
    std::vector<std::uint32_t> silent;
    std::vector<std::uint32_t> full;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (receives_[peer].pending()) silent.push_back(peer);
      if (sends_[peer].pending()) full.push_back(peer);
    }
    return {ErrorCode::kDeadline, late_in_words(rank_, silent, full)};
  }

  std::shared_ptr<Segment> segment_;
  const std::uint32_t rank_;
  std::vector<Lane<const std::byte>> sends_;  // one per rank
  std::vector<Lane<std::byte>> receives_;
};

}  // namespace

Result<std::unique_ptr<MemoryGroup>> attach(std::shared_ptr<Segment> segment, std::uint32_t rank) {
  if (rank >= segment->size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} in a group of {}", rank, counted(segment->size(), "rank")));
  WSYNC_TRY(segment->health());
  RankSlot& slot = segment->rank(rank);
  std::int32_t owner = 0;
  if (!slot.pid.compare_exchange_strong(owner, ::getpid()))
    return fail(ErrorCode::kRefused, fmt::format("rank {} is taken by process {}", rank, owner));
  auto group = std::make_unique<SegmentGroup>(std::move(segment), rank);
  group->beat();
  slot.phase.store(RankPhase::kThere, std::memory_order_release);
  return std::unique_ptr<MemoryGroup>(std::move(group));
}

Result<std::unique_ptr<MemoryGroup>> attach(int fd, std::uint32_t rank) {
  auto segment = WSYNC_TRY(Segment::open(fd));
  return attach(std::move(segment), rank);
}

Heartbeat::Heartbeat(MemoryGroup& group, std::chrono::nanoseconds interval)
    : thread_([this, &group, interval](const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (!stop.stop_requested()) {
          group.beat();
          stopped_.wait_for(lock, stop, interval, [] { return false; });
        }
      }) {}

}  // namespace wsync::collective::memory
