#include "shared/broadcast/nccl/roster.h"

#include <algorithm>

#include "shared/base/format.h"

namespace wsync::collective::nccl {
namespace {

constexpr std::uint32_t plain(Rank rank) { return static_cast<std::uint32_t>(rank); }

Error has_left(Rank rank) {
  return {ErrorCode::kPeerLost, fmt::format("rank {} has left the group", plain(rank))};
}

}  // namespace

Result<> Roster::join(Rank rank) {
  const std::lock_guard lock(mutex_);
  if (plain(rank) >= size_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} in a group of {}", plain(rank), size_));
  if (joined_[plain(rank)])
    return fail(ErrorCode::kRefused, fmt::format("rank {} has joined already", plain(rank)));
  WSYNC_TRY(broken());
  joined_[plain(rank)] = true;
  return {};
}

void Roster::forget(Rank rank) {
  const std::lock_guard lock(mutex_);
  joined_[plain(rank)] = false;
}

std::uint32_t Roster::count() const {
  return static_cast<std::uint32_t>(std::count(joined_.begin(), joined_.end(), true));
}

std::uint32_t Roster::here() const {
  const std::lock_guard lock(mutex_);
  return count();
}

Result<> Roster::broken() const {
  if (broken_) return fail(*broken_);
  return {};
}

void Roster::break_now(const Error& reason) {
  if (!broken_) broken_ = reason;
  changed_.notify_all();
}

void Roster::break_with(const Error& reason) {
  const std::lock_guard lock(mutex_);
  break_now(reason);
}

Result<> Roster::health() const {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(broken());
  if (left_) return fail(has_left(*left_));
  return {};
}

bool Roster::leave(Rank rank) {
  const std::lock_guard lock(mutex_);
  if (!left_) left_ = rank;
  if (!meetings_.empty()) break_now(has_left(rank));
  return !broken_;
}

template <class Ready, class Missing>
Result<> Roster::wait(std::unique_lock<std::mutex>& lock, const Visit& visit,
                      const std::stop_token& stop, Ready ready, Missing missing) {
  const bool in_time = changed_.wait_until(lock, stop, steady_time(visit.deadline),
                                           [&] { return broken_ || ready(); });
  if (!in_time && stop.stop_requested())
    break_now({ErrorCode::kCancelled, "a rank's stream was closed in the middle of a broadcast"});
  else if (!in_time)
    break_now({ErrorCode::kDeadline, missing()});
  return broken();
}

Result<> Roster::arrive(const Visit& visit, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (left_) break_now(has_left(*left_));
  WSYNC_TRY(broken());
  const auto [at, first] = meetings_.try_emplace(visit.sequence);
  Meeting& meeting = at->second;
  if (first) {
    meeting.bytes = visit.bytes;
    meeting.root = visit.root;
  } else if (meeting.bytes != visit.bytes || meeting.root != visit.root) {
    break_now({ErrorCode::kInvalidInput,
               fmt::format("rank {} takes part in a broadcast of {} bytes from rank {}, but the "
                           "other ranks take part in one of {} bytes from rank {}",
                           plain(visit.rank), visit.bytes, plain(visit.root), meeting.bytes,
                           plain(meeting.root))});
    return broken();
  }
  ++meeting.came;
  meeting.root_came = meeting.root_came || visit.rank == visit.root;
  changed_.notify_all();
  return wait(
      lock, visit, stop, [&] { return meeting.came == count(); },
      [&] {
        if (!meeting.root_came && joined_[plain(visit.root)])
          return fmt::format("rank {} waited until its deadline for root {} to begin a broadcast",
                             plain(visit.rank), plain(visit.root));
        return fmt::format("{} of {} ranks have not begun a broadcast from rank {}",
                           count() - meeting.came, count(), plain(visit.root));
      });
}

Result<> Roster::depart(const Visit& visit, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  WSYNC_TRY(broken());
  const auto at = meetings_.find(visit.sequence);
  Meeting& meeting = at->second;
  ++meeting.done;
  changed_.notify_all();
  // The other ranks need not wait. The last rank to leave removes the broadcast.
  if (visit.rank == visit.root)
    WSYNC_TRY(wait(
        lock, visit, stop, [&] { return meeting.done == count(); },
        [&] {
          return fmt::format(
              "a broadcast from rank {} was not read by all {} ranks before its deadline",
              plain(visit.root), count());
        }));
  if (++meeting.gone == count()) meetings_.erase(at);
  return {};
}

}  // namespace wsync::collective::nccl
