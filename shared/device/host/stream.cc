#include "shared/device/host/stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::device::host {
namespace {

constexpr std::uint64_t kCopyWindowBytes = 4 * limits::kMiB;

std::chrono::steady_clock::time_point clock_time(TimePoint t) {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<std::int64_t>(t)));
}

Error cancelled(std::string_view stream) {
  return {ErrorCode::kCancelled, fmt::format("{}: the stream was closed before its work", stream)};
}

}  // namespace

std::uint64_t EventState::record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

std::uint64_t EventState::newest() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void EventState::complete(std::uint64_t ticket, const Result<>& outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (ticket <= completed_) return;  // a newer record, on another stream, came first
    completed_ = ticket;
    error_ = outcome ? std::nullopt : std::optional<Error>(outcome.error());
  }
  changed_.notify_all();
}

Result<> EventState::outcome() const {
  if (error_) return fail(*error_);
  return {};
}

Result<bool> EventState::query(std::uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  if (!done(ticket)) return false;
  WSYNC_TRY(outcome());
  return true;
}

Result<> EventState::wait(std::uint64_t ticket, TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, clock_time(deadline), [&] { return done(ticket); }))
    return fail(ErrorCode::kDeadline, "the work before an event was not complete at its deadline");
  return outcome();
}

Result<> EventState::wait(std::uint64_t ticket, const std::stop_token& stop) const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return done(ticket); }))
    return fail(ErrorCode::kCancelled, "the stream was closed while it waited for an event");
  return outcome();
}

HostStream::~HostStream() {
  if (!worker_.joinable()) return;
  worker_.request_stop();
  worker_.join();
}

void HostStream::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    if (!worker_.joinable())
      worker_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  changed_.notify_one();
}

// After a stop the rest of the queue is still walked: work is skipped, callbacks and events hear.
void HostStream::run(const std::stop_token& stop) {
  while (true) {
    Item item;
    Result<> so_far;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !queue_.empty(); })) return;
      item = std::move(queue_.front());
      queue_.pop_front();
      if (!error_ && stop.stop_requested()) error_ = cancelled(name_);
      if (error_) so_far = fail(*error_);
    }
    if (item.always) {
      item.always(so_far);
      continue;
    }
    if (!so_far) continue;
    if (auto done = item.work(stop); !done) {
      const std::lock_guard lock(mutex_);
      error_ = std::move(done).error().with_context(name_);
    }
  }
}

void HostStream::enqueue(Work work) { push({.work = std::move(work), .always = {}}); }

Result<> HostStream::copy_to_device(const Region& to, std::span<const std::byte> source) {
  WSYNC_TRY(check_region(to, true));
  if (to.bytes != source.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of {} bytes into a region of {} bytes", name_,
                            source.size(), to.bytes));
  enqueue([at = to.memory->address() + to.offset, source](const std::stop_token& stop) {
    return copy_bytes(at, source.data(), source.size(), stop);
  });
  return {};
}

Result<> HostStream::copy_to_host(std::span<std::byte> to, const Region& from) {
  WSYNC_TRY(check_region(from, false));
  if (to.size() != from.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of a region of {} bytes into {} bytes", name_, from.bytes,
                            to.size()));
  enqueue([to, at = from.memory->address() + from.offset](const std::stop_token& stop) {
    return copy_bytes(to.data(), at, to.size(), stop);
  });
  return {};
}

Result<> HostStream::copy_on_device(const Region& to, const Region& from) {
  WSYNC_TRY(check_region(from, false));
  return copy_to_device(to, {from.memory->address() + from.offset, from.bytes});
}

Result<> HostStream::record(Event& event) {
  auto* own = dynamic_cast<HostEvent*>(&event);
  if (own == nullptr)
    return fail(ErrorCode::kInvalidInput, name_ + ": the event is not one of a host device");
  const auto ticket = own->state()->record();
  push({.work = {}, .always = [state = own->state(), ticket](const Result<>& outcome) {
          state->complete(ticket, outcome);
        }});
  return {};
}

Result<> HostStream::wait(const Event& event) {
  const auto* own = dynamic_cast<const HostEvent*>(&event);
  if (own == nullptr)
    return fail(ErrorCode::kInvalidInput, name_ + ": the event is not one of a host device");
  enqueue([state = own->state(), ticket = own->state()->newest()](const std::stop_token& stop) {
    return state->wait(ticket, stop);
  });
  return {};
}

Result<> HostStream::notify(StreamCallback callback) {
  WSYNC_CHECK(callback != nullptr, "a stream callback must be callable");
  push({.work = {}, .always = std::move(callback)});
  return {};
}

Result<> HostStream::status() const {
  const std::lock_guard lock(mutex_);
  if (error_) return fail(*error_);
  return {};
}

Result<> copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes,
                    const std::stop_token& stop) {
  for (std::uint64_t at = 0; at < bytes; at += kCopyWindowBytes) {
    if (stop.stop_requested())
      return fail(ErrorCode::kCancelled, fmt::format("copy stopped at byte {} of {}", at, bytes));
    std::memcpy(to + at, from + at, std::min(kCopyWindowBytes, bytes - at));
  }
  return {};
}

Result<> check_region(const Region& region, bool to_be_written) {
  if (region.memory == nullptr)
    return fail(ErrorCode::kInvalidInput, "a device copy names no memory");
  const std::uint64_t size = region.memory->bytes();
  if (region.offset > size || region.bytes > size - region.offset)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a device copy of {} bytes at offset {} leaves its memory of {} bytes",
                            region.bytes, region.offset, size));
  if (to_be_written && !region.memory->writable())
    return fail(ErrorCode::kInvalidInput,
                "a device copy writes into memory that is imported or aliased, which is read-only");
  return {};
}

}  // namespace wsync::device::host
