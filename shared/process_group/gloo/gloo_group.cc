#include "shared/process_group/gloo/gloo_group.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <gloo/transport/unbound_buffer.h>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/process_group/collectives.h"
#include "shared/process_group/gloo/mesh.h"
#include "shared/process_group/gloo/wire.h"
#include "shared/process_group/rank_words.h"

namespace wsync::collective::gloo {
namespace {

using Buffer = ::gloo::transport::UnboundBuffer;

// Longer than any run. When a timeout of Gloo expires, Gloo closes all connections, and the reason
// could not be sent to the peers. Therefore clock_ ends the waits.
constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365 * 10);
constexpr std::chrono::milliseconds kFarewell{500};   // to send all peers the reason of the break
constexpr std::chrono::milliseconds kHearWhy{1'000};  // for the watcher of a lost peer
constexpr std::chrono::milliseconds kLastLook{300};   // for completed operations of a lost peer
constexpr std::chrono::milliseconds kLateLook{20};    // for one message after the deadline

// One message in transfer.
struct Operation {
  std::uint32_t peer = 0;
  std::uint64_t bytes = 0;
  std::uint64_t length = 0;         // as sent, or as received
  std::unique_ptr<Buffer> head;     // both null when complete
  std::unique_ptr<Buffer> payload;  // always null for an empty message
};

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(const GlooOptions& options, std::shared_ptr<::gloo::Context> context)
      : rank_(options.rank), context_(std::move(context)), peers_(options.size) {}
  ~GlooGroup() override;

  // Starts the threads. Call before the first exchange().
  Result<> start();

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override {
    return static_cast<std::uint32_t>(peers_.size());
  }
  [[nodiscard]] Result<> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                  TimePoint deadline) override;
  void abort(const Error& reason) override { break_with(reason); }
  [[nodiscard]] Result<> health() const override;

 private:
  enum class Direction : std::uint8_t { kSend, kReceive };
  struct Peer {
    std::uint64_t sent = 0;      // messages
    std::uint64_t received = 0;  // messages
    Farewell farewell;           // written by Gloo, read by the watcher
    std::unique_ptr<Buffer> farewell_buffer;
    std::optional<std::string> lost;  // Gloo's message; guarded by the mutex
    std::thread watcher;
  };

  Result<> check_message(std::uint32_t peer, std::uint64_t bytes, std::string_view what) const;
  Result<> post(std::span<const Send> sends, std::span<const Receive> receives);
  // Throws the exceptions of Gloo.
  void begin(Operation& operation, Direction direction, std::uint64_t number,
             std::span<std::byte> memory);
  Result<> finish(TimePoint deadline);
  Result<> finish(Operation& operation, Direction direction, TimePoint deadline);
  bool wait(std::unique_ptr<Buffer>& buffer, std::uint32_t peer, Direction direction,
            TimePoint deadline);
  Error why(std::uint32_t peer, TimePoint deadline);
  Error lost(std::uint32_t peer);
  Error late();
  std::vector<std::uint32_t> unfinished(std::vector<Operation>& operations, Direction direction);

  void keep_time(const std::stop_token& stop);
  void stop_waiting() const {
    waited_for_->abortWaitSend();
    waited_for_->abortWaitRecv();
  }
  void watch(std::uint32_t peer);
  void break_with(const Error& reason);
  void notify_peers(const Error& reason);

  const std::uint32_t rank_;
  std::shared_ptr<::gloo::Context> context_;
  std::vector<Peer> peers_;  // one per rank; this rank's own entry is unused
  std::vector<Operation> sends_;
  std::vector<Operation> receives_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> broken_;
  // The operation that exchange() waits for, its peer and its deadline; null if it does not wait.
  Buffer* waited_for_ = nullptr;
  std::uint32_t waited_peer_ = 0;
  TimePoint waited_until_{};
  TimePoint clock_wakes_{};
  std::condition_variable_any earlier_;  // wakes the clock
  std::jthread clock_;                   // ends waits at their deadline
};

Result<> GlooGroup::start() {
  try {
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      Peer& other = peers_[peer];
      other.farewell_buffer = context_->createUnboundBuffer(&other.farewell, sizeof other.farewell);
      other.farewell_buffer->recv(static_cast<int>(peer), kReasonSlot);
      const SignalsBlocked blocked(SignalsBlocked::Which::kAll);
      other.watcher = std::thread([this, peer] { watch(peer); });
    }
    const SignalsBlocked blocked(SignalsBlocked::Which::kAll);
    clock_ = std::jthread([this](const std::stop_token& stop) { keep_time(stop); });
  } catch (const std::exception& error) {
    return fail(ErrorCode::kPeerLost, fmt::format("rank {}: {}", rank_, error.what()));
  }
  return {};
}

GlooGroup::~GlooGroup() {
  for (Peer& peer : peers_) {
    if (!peer.watcher.joinable()) continue;
    peer.farewell_buffer->abortWaitRecv();
    peer.watcher.join();
  }
  for (Peer& peer : peers_) peer.farewell_buffer.reset();
}

Result<> GlooGroup::health() const {
  const std::lock_guard lock(mutex_);
  if (broken_) return fail(*broken_);
  return {};
}

Result<> GlooGroup::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                             TimePoint deadline) {
  WSYNC_TRY(health());
  const SignalsBlocked blocked(SignalsBlocked::Which::kPipe);
  auto done = post(sends, receives);
  if (done) done = finish(deadline);
  // On failure, closes the connections before the caller may reuse the memory.
  if (!done) break_with(done.error());
  sends_.clear();
  receives_.clear();
  if (!done) WSYNC_TRY(health());  // the first reason, which may differ
  return done;
}

Result<> GlooGroup::check_message(std::uint32_t peer, std::uint64_t bytes,
                                  std::string_view what) const {
  if (peer >= size() || peer == rank_)
    return fail(ErrorCode::kInvalidInput, fmt::format("rank {} {} rank {}, expected another rank "
                                                      "of a group of {}",
                                                      rank_, what, peer, size()));
  if (bytes > kGlooMessageBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} {} rank {} a message of {} bytes, expected {} at most", rank_,
                            what, peer, bytes, kGlooMessageBytes));
  return {};
}

Result<> GlooGroup::post(std::span<const Send> sends, std::span<const Receive> receives) {
  for (const Send& send : sends) WSYNC_TRY(check_message(send.to, send.bytes.size(), "sends to"));
  for (const Receive& receive : receives)
    WSYNC_TRY(check_message(receive.from, receive.bytes.size(), "receives from"));
  sends_ = std::vector<Operation>(sends.size());
  receives_ = std::vector<Operation>(receives.size());
  std::uint32_t peer = 0;
  try {
    for (std::size_t i = 0; i < receives.size(); ++i) {
      peer = receives_[i].peer = receives[i].from;
      begin(receives_[i], Direction::kReceive, peers_[peer].received++, receives[i].bytes);
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      peer = sends_[i].peer = sends[i].to;
      sends_[i].length = sends[i].bytes.size();
      // Gloo has only one buffer type. It does not write to a buffer that it sends.
      auto* memory = const_cast<std::byte*>(sends[i].bytes.data());
      begin(sends_[i], Direction::kSend, peers_[peer].sent++, {memory, sends[i].bytes.size()});
    }
  } catch (const std::exception&) {
    return fail(lost(peer));
  }
  return {};
}

void GlooGroup::begin(Operation& operation, Direction direction, std::uint64_t number,
                      std::span<std::byte> memory) {
  const auto post_one = [&](void* at, std::uint64_t bytes, std::uint64_t slot) {
    auto buffer = context_->createUnboundBuffer(at, bytes);
    const int peer = static_cast<int>(operation.peer);
    direction == Direction::kSend ? buffer->send(peer, slot) : buffer->recv(peer, slot);
    return buffer;
  };
  operation.bytes = memory.size();
  operation.head = post_one(&operation.length, sizeof operation.length, length_slot(number));
  if (memory.empty()) return;
  operation.payload = post_one(memory.data(), memory.size(), payload_slot(number, memory.size()));
}

Result<> GlooGroup::finish(TimePoint deadline) {
  for (Operation& operation : receives_)
    WSYNC_TRY(finish(operation, Direction::kReceive, deadline));
  for (Operation& operation : sends_) WSYNC_TRY(finish(operation, Direction::kSend, deadline));
  return {};
}

Result<> GlooGroup::finish(Operation& operation, Direction direction, TimePoint deadline) {
  if (!wait(operation.head, operation.peer, direction, deadline))
    return fail(why(operation.peer, deadline));
  if (operation.length != operation.bytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("rank {} has sent {} to rank {}, which receives {}", operation.peer,
                    counted(operation.length, "byte"), rank_, counted(operation.bytes, "byte")));
  if (operation.payload && !wait(operation.payload, operation.peer, direction, deadline))
    return fail(why(operation.peer, deadline));
  return {};
}

// Waits for the buffer's operation and releases the buffer if it is complete. If a connection
// breaks in the middle of a message, Gloo does not wake the waiting thread; the peer's watcher
// does.
bool GlooGroup::wait(std::unique_ptr<Buffer>& buffer, std::uint32_t peer, Direction direction,
                     TimePoint deadline) {
  for (bool last_look = false;; last_look = true) {
    {
      const std::lock_guard lock(mutex_);
      if (broken_) return false;
      last_look |= peers_[peer].lost.has_value();
      waited_for_ = buffer.get();
      waited_peer_ = peer;
      waited_until_ = last_look ? now() + kLastLook : deadline;
      if (waited_until_ < clock_wakes_) earlier_.notify_all();
    }
    bool done = false;
    try {
      done =
          direction == Direction::kSend ? buffer->waitSend(kForEver) : buffer->waitRecv(kForEver);
    } catch (const std::exception&) {
      last_look = true;
    }
    const std::lock_guard lock(mutex_);
    waited_for_ = nullptr;
    if (done) buffer.reset();
    if (done || last_look || broken_ || now() >= deadline) return done;
  }
}

void GlooGroup::keep_time(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    // Deadlines usually only grow, so the clock may wake at an old deadline and then checks the new
    // one.
    clock_wakes_ = waited_for_ != nullptr ? waited_until_ : now() + std::chrono::seconds(1);
    const TimePoint wakes = clock_wakes_;
    earlier_.wait_for(lock, stop, wakes - now(),
                      [&] { return waited_for_ != nullptr && waited_until_ < wakes; });
    if (waited_for_ == nullptr || now() < waited_until_) continue;
    stop_waiting();
    waited_for_ = nullptr;
  }
}

// Returns the reason why an operation with this peer failed.
Error GlooGroup::why(std::uint32_t peer, TimePoint deadline) {
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return *broken_;
    gone = peers_[peer].lost.has_value();
  }
  return gone || now() < deadline ? lost(peer) : late();
}

Error GlooGroup::lost(std::uint32_t peer) {
  std::unique_lock lock(mutex_);
  // The peer may have sent a reason before it was lost.
  changed_.wait_for(lock, kHearWhy, [&] { return broken_ || peers_[peer].lost; });
  if (broken_) return *broken_;
  return {
      ErrorCode::kPeerLost,
      fmt::format("rank {} has lost its connection to rank {}, which has left or was killed: {}",
                  rank_, peer, peers_[peer].lost.value_or("the connection is closed"))};
}

Error GlooGroup::late() {
  auto silent = unfinished(receives_, Direction::kReceive);
  return {ErrorCode::kDeadline, late_in_words(rank_, silent, unfinished(sends_, Direction::kSend))};
}

std::vector<std::uint32_t> GlooGroup::unfinished(std::vector<Operation>& operations,
                                                 Direction direction) {
  std::vector<std::uint32_t> peers;
  for (Operation& operation : operations) {
    const std::uint32_t peer = operation.peer;
    if (std::find(peers.begin(), peers.end(), peer) != peers.end()) continue;
    const TimePoint until = now() + kLateLook;
    if ((operation.head && !wait(operation.head, peer, direction, until)) ||
        (operation.payload && !wait(operation.payload, peer, direction, until)))
      peers.push_back(peer);
  }
  std::sort(peers.begin(), peers.end());
  return peers;
}

void GlooGroup::watch(std::uint32_t peer) {
  Peer& other = peers_[peer];
  try {
    if (!other.farewell_buffer->waitRecv(nullptr, kForEver)) return;  // the group is ending
    const Farewell& farewell = other.farewell;
    const std::size_t bytes = std::min<std::size_t>(farewell.bytes, farewell.text.size());
    break_with({std::min(farewell.code, kLastErrorCode), std::string(farewell.text.data(), bytes)});
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    other.lost = error.what();
    changed_.notify_all();
    if (waited_for_ != nullptr && waited_peer_ == peer) stop_waiting();
  }
}

void GlooGroup::break_with(const Error& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
    changed_.notify_all();
    if (waited_for_ != nullptr) stop_waiting();
  }
  const SignalsBlocked blocked(SignalsBlocked::Which::kPipe);
  notify_peers(reason);
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    return;  // the connections are closed in that case
  }
}

// Sends the reason to the peers, even if another rank may have sent it already: they must not see a
// closed connection before they know the reason.
void GlooGroup::notify_peers(const Error& reason) {
  Farewell farewell;
  farewell.code = reason.code();
  farewell.bytes =
      static_cast<std::uint32_t>(std::min(reason.message().size(), farewell.text.size()));
  std::memcpy(farewell.text.data(), reason.message().data(), farewell.bytes);
  std::vector<std::unique_ptr<Buffer>> told;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    try {
      auto buffer = context_->createUnboundBuffer(&farewell, sizeof farewell);
      buffer->send(static_cast<int>(peer), kReasonSlot);
      told.push_back(std::move(buffer));
    } catch (const std::exception&) {
      continue;  // the peer is lost
    }
  }
  const TimePoint until = now() + kFarewell;
  for (const auto& buffer : told) {
    try {
      buffer->waitSend(time_left(until));
    } catch (const std::exception&) {
      return;  // an exception here closes the connections
    }
  }
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> join(const GlooOptions& options, TimePoint deadline) {
  const SignalsBlocked blocked(SignalsBlocked::Which::kPipe);
  auto mesh = WSYNC_TRY(connect(options, deadline));
  auto group = std::make_unique<GlooGroup>(options, std::move(mesh.context));
  WSYNC_TRY(group->start());
  std::vector<std::uint32_t> all(options.size);
  for (std::uint32_t rank = 0; rank < options.size; ++rank) all[rank] = rank;
  // After the barrier, every rank has read this rank's files.
  WSYNC_TRY(barrier(Team(group.get(), std::move(all)), deadline));
  return std::unique_ptr<ProcessGroup>(std::move(group));
}

}  // namespace wsync::collective::gloo
