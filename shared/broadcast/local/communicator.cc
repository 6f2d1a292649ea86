#include "shared/broadcast/local/communicator.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "shared/base/format.h"

namespace wsync::collective::local {
namespace {

constexpr std::uint32_t number(Rank rank) { return static_cast<std::uint32_t>(rank); }

// State shared by the ranks of a group. Each rank numbers its broadcasts in its own order; equal
// numbers mean the same broadcast.
class Meeting {
 public:
  explicit Meeting(std::uint32_t size) : size_(size), joined_(size, false) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  Result<> join(Rank rank) {
    const std::lock_guard lock(mutex_);
    if (number(rank) >= size_)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("rank {} in a group of {}", number(rank), size_));
    if (joined_[number(rank)])
      return fail(ErrorCode::kRefused, fmt::format("rank {} has joined already", number(rank)));
    joined_[number(rank)] = true;
    changed_.notify_all();
    return {};
  }

  Result<> wait_joined(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto missing = [&] { return std::count(joined_.begin(), joined_.end(), false); };
    changed_.wait_until(lock, steady_time(deadline), [&] { return broken_ || missing() == 0; });
    if (broken_) return fail(*broken_);
    if (missing() == 0) return {};
    return fail(ErrorCode::kDeadline,
                fmt::format("{} of {} ranks of a group have not joined", missing(), size_));
  }

  void abort(const Error& reason) {
    const std::lock_guard lock(mutex_);
    break_with(reason);
  }

  Result<> health() const {
    const std::lock_guard lock(mutex_);
    return broken();
  }

  // Executes one rank's part of broadcast number `sequence`, on its stream's worker.
  Result<> take_part(Rank rank, std::uint64_t sequence, const Broadcast& b,
                     device::StreamTurn& turn) {
    const std::stop_token& stop = turn.stop();
    const auto source = WSYNC_TRY(meet(rank, sequence, b, stop));
    std::byte* to = b.destination.memory->address() + b.destination.offset;
    if (source != to) {
      if (auto copied = turn.copy(to, source, b.destination.bytes); !copied) {
        abort(copied.error());
        return copied;
      }
    }
    return leave(rank, sequence, b, stop);
  }

 private:
  struct Operation {
    std::uint64_t bytes = 0;
    Rank root{};
    std::uint32_t copied = 0;
    std::uint32_t left = 0;
    const std::byte* source = nullptr;  // null until the root has arrived
  };

  [[nodiscard]] Result<> broken() const {
    if (broken_) return fail(*broken_);
    return {};
  }

  void break_with(const Error& reason) {
    if (!broken_) broken_ = reason;
    changed_.notify_all();
  }

  // Waits for `ready`. Breaks the group at the deadline or when the stream is closed.
  template <class Ready>
  Result<> wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop, const Broadcast& b,
                const std::string& what, Ready ready) {
    const bool in_time = changed_.wait_until(lock, stop, steady_time(b.deadline),
                                             [&] { return broken_ || ready(); });
    if (!in_time && stop.stop_requested())
      break_with(
          {ErrorCode::kCancelled, "a rank's stream was closed in the middle of a broadcast"});
    else if (!in_time)
      break_with({ErrorCode::kDeadline, what});
    return broken();
  }

  // Registers the rank at the broadcast. Returns the address of the root's bytes.
  Result<const std::byte*> meet(Rank rank, std::uint64_t sequence, const Broadcast& b,
                                const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    WSYNC_TRY(broken());
    const auto [at, first] = operations_.try_emplace(sequence);
    Operation& op = at->second;
    if (first) {
      op.bytes = b.destination.bytes;
      op.root = b.root;
    } else if (op.bytes != b.destination.bytes || op.root != b.root) {
      break_with({ErrorCode::kInvalidInput,
                  fmt::format("rank {} takes part in a broadcast of {} bytes from rank {}, but the "
                              "other ranks take part in one of {} bytes from rank {}",
                              number(rank), b.destination.bytes, number(b.root), op.bytes,
                              number(op.root))});
      return fail(*broken_);
    }
    if (rank == b.root) op.source = b.source.memory->address() + b.source.offset;
    changed_.notify_all();
    WSYNC_TRY(wait(lock, stop, b,
                   fmt::format("rank {} waited until its deadline for root {} to begin a broadcast",
                               number(rank), number(b.root)),
                   [&] { return op.source != nullptr; }));
    return op.source;
  }

  // The root waits until every rank has read its bytes. The last rank to leave removes the
  // operation.
  Result<> leave(Rank rank, std::uint64_t sequence, const Broadcast& b,
                 const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto at = operations_.find(sequence);
    Operation& op = at->second;
    ++op.copied;
    changed_.notify_all();
    if (rank == b.root) {
      WSYNC_TRY(wait(
          lock, stop, b,
          fmt::format("a broadcast from rank {} was not read by all {} ranks before its deadline",
                      number(rank), size_),
          [&] { return op.copied == size_; }));
    }
    WSYNC_TRY(broken());
    if (++op.left == size_) operations_.erase(at);
    return {};
  }

  const std::uint32_t size_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<bool> joined_;
  std::optional<Error> broken_;
  std::map<std::uint64_t, Operation> operations_;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(Rank rank, std::shared_ptr<Meeting> meeting)
      : rank_(rank), meeting_(std::move(meeting)) {}
  ~LocalCommunicator() override {
    meeting_->abort(
        {ErrorCode::kPeerLost, fmt::format("rank {} has left the group", number(rank_))});
  }

  [[nodiscard]] Rank rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return meeting_->size(); }
  [[nodiscard]] Result<> wait_joined(TimePoint deadline) const override {
    return meeting_->wait_joined(deadline);
  }
  [[nodiscard]] Result<> broadcast(const Broadcast& broadcast, device::Stream& stream) override {
    WSYNC_TRY(check_broadcast(broadcast, rank_, size()));
    const std::lock_guard lock(order_);
    WSYNC_TRY(stream.run(
        [meeting = meeting_, rank = rank_, sequence = next_, broadcast](device::StreamTurn& turn) {
          return meeting->take_part(rank, sequence, broadcast, turn);
        }));
    ++next_;
    return {};
  }
  void abort(const Error& reason) override { meeting_->abort(reason); }
  [[nodiscard]] Result<> health() const override { return meeting_->health(); }

 private:
  const Rank rank_;
  std::shared_ptr<Meeting> meeting_;
  std::mutex order_;
  std::uint64_t next_ = 0;
};

class LocalGroup final : public Group {
 public:
  explicit LocalGroup(std::uint32_t size) : meeting_(std::make_shared<Meeting>(size)) {}
  [[nodiscard]] std::uint32_t size() const noexcept override { return meeting_->size(); }
  [[nodiscard]] Result<std::unique_ptr<Communicator>> join(Rank rank,
                                                           device::Device& /*device*/) override {
    WSYNC_TRY(meeting_->join(rank));
    return std::unique_ptr<Communicator>(std::make_unique<LocalCommunicator>(rank, meeting_));
  }

 private:
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_local_group(std::uint32_t size) {
  return std::unique_ptr<Group>(std::make_unique<LocalGroup>(size));
}

}  // namespace wsync::collective::local
