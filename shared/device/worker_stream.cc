#include "shared/device/worker_stream.h"

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::device {
namespace {

Error cancelled(std::string_view stream) {
  return {ErrorCode::kCancelled,
          fmt::format("{}: the stream was closed before its work was done", stream)};
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
    if (ticket <= completed_) return;  // a newer record on another stream completed first
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
  if (!changed_.wait_until(lock, steady_time(deadline), [&] { return done(ticket); }))
    return fail(ErrorCode::kDeadline, "the work before an event was not complete at its deadline");
  return outcome();
}

Result<> EventState::wait(std::uint64_t ticket, const std::stop_token& stop) const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return done(ticket); }))
    return fail(ErrorCode::kCancelled, "the stream was closed while it waited for an event");
  return outcome();
}

// Access to the stream for work of a communicator.
class WorkerStream::Turn final : public StreamTurn {
 public:
  Turn(WorkerStream& stream, const std::stop_token& stop) : stream_(stream), stop_(stop) {}
  [[nodiscard]] const std::stop_token& stop() const noexcept override { return stop_; }
  [[nodiscard]] Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    WSYNC_TRY(stream_.copy(to, from, bytes, stop_));
    return stream_.settle();
  }

 private:
  WorkerStream& stream_;
  const std::stop_token& stop_;
};

WorkerStream::~WorkerStream() {
  WSYNC_CHECK(!worker_.joinable(),
              "a backend closes its stream before its own members are destroyed");
}

void WorkerStream::close() {
  if (!worker_.joinable()) return;
  worker_.request_stop();
  worker_.join();
}

void WorkerStream::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    if (!worker_.joinable())
      worker_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  changed_.notify_one();
}

void WorkerStream::failed(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error.with_context(name_);
}

Result<> WorkerStream::so_far(const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  if (!error_ && stop.stop_requested()) error_ = cancelled(name_);
  if (error_) return fail(*error_);
  return {};
}

// After a stop the loop still drains the queue: it skips work, but completes callbacks and events.
void WorkerStream::serve(const std::stop_token& stop) {
  if (auto attached = attach(); !attached) failed(attached.error());
  while (true) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !queue_.empty(); })) break;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    execute(std::move(item), stop);
  }
  if (auto settled = settle(); !settled) failed(settled.error());
}

void WorkerStream::execute(Item item, const std::stop_token& stop) {
  if (item.always) {
    if (auto settled = settle(); !settled) failed(settled.error());
    item.always(so_far(stop));
    return;
  }
  if (!so_far(stop)) return;
  if (auto done = item.work(stop); !done) failed(done.error());
}

void WorkerStream::enqueue(Work work) { push({.work = std::move(work), .always = {}}); }

Result<> WorkerStream::copy_on_device(const Region& to, const Region& from) {
  WSYNC_TRY(check_region(from, false));
  WSYNC_TRY(check_region(to, true));
  if (to.bytes != from.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of {} bytes into a region of {} bytes", name_, from.bytes,
                            to.bytes));
  enqueue(
      [this, at = to.memory->address() + to.offset, source = from.memory->address() + from.offset,
       bytes = from.bytes](const std::stop_token& stop) { return copy(at, source, bytes, stop); });
  return {};
}

Result<> WorkerStream::record(Event& event) {
  auto* own = dynamic_cast<WorkerEvent*>(&event);
  if (own == nullptr)
    return fail(ErrorCode::kInvalidInput, name_ + ": the event does not belong to this backend");
  const auto ticket = own->state()->record();
  push({.work = {}, .always = [state = own->state(), ticket](const Result<>& outcome) {
          state->complete(ticket, outcome);
        }});
  return {};
}

Result<> WorkerStream::wait(const Event& event) {
  const auto* own = dynamic_cast<const WorkerEvent*>(&event);
  if (own == nullptr)
    return fail(ErrorCode::kInvalidInput, name_ + ": the event does not belong to this backend");
  enqueue([state = own->state(), ticket = own->state()->newest()](const std::stop_token& stop) {
    return state->wait(ticket, stop);
  });
  return {};
}

Result<> WorkerStream::notify(StreamCallback callback) {
  WSYNC_CHECK(callback != nullptr, "a stream callback must be callable");
  push({.work = {}, .always = std::move(callback)});
  return {};
}

Result<> WorkerStream::run(StreamWork work) {
  WSYNC_CHECK(work != nullptr, "work of a stream must be callable");
  enqueue([this, work = std::move(work)](const std::stop_token& stop) -> Result<> {
    WSYNC_TRY(settle());
    Turn turn(*this, stop);
    return work(turn);
  });
  return {};
}

Result<> WorkerStream::status() const {
  const std::lock_guard lock(mutex_);
  if (error_) return fail(*error_);
  return {};
}

Result<> check_rows(std::uint64_t bytes, const RowShape& rows) {
  if (rows.row_bytes > 0 && rows.stride >= rows.row_bytes && bytes >= rows.row_bytes &&
      (bytes - rows.row_bytes) % rows.stride == 0)
    return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{} bytes are not rows of {} bytes that are {} bytes apart", bytes,
                          rows.row_bytes, rows.stride));
}

Result<> check_region(const Region& region, bool to_be_written) {
  if (region.memory == nullptr)
    return fail(ErrorCode::kInvalidInput, "a device copy does not name its memory");
  const std::uint64_t size = region.memory->bytes();
  if (region.offset > size || region.bytes > size - region.offset)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a device copy of {} bytes at offset {} exceeds its memory of {} bytes",
                            region.bytes, region.offset, size));
  if (to_be_written && !region.memory->writable())
    return fail(ErrorCode::kInvalidInput,
                "a device copy writes into memory that is imported or aliased, which is read-only");
  return {};
}

namespace {

Result<> check_cast(const Piece& piece) {
  if (piece.cast.is_none()) return {};
  if (piece.cast.from == FloatFormat::kF8E4M3)
    return fail(ErrorCode::kInvalidInput, "a piece converts from F8_E4M3, which is not possible");
  const auto address = [](const Memory* memory, std::uint64_t offset) {
    return memory == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(memory->address()) + offset;
  };
  const std::uint64_t from = float_bytes(piece.cast.from);
  const std::uint64_t to = float_bytes(piece.cast.to);
  const std::uint64_t distances = piece.row_bytes | (piece.rows > 1 ? piece.from_stride : 0);
  if (distances % from == 0 && address(piece.from, piece.from_offset) % from == 0 &&
      address(piece.to, piece.to_offset) % to == 0)
    return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a piece converts elements of {} bytes to elements of {}, but rows of {} "
                          "bytes, {} bytes apart, from offset {} to offset {} are not aligned to "
                          "them",
                          from, to, piece.row_bytes, piece.from_stride, piece.from_offset,
                          piece.to_offset));
}

}  // namespace

Result<> check_pieces(std::span<const Piece> pieces, std::size_t sums) {
  for (const Piece& piece : pieces) {
    if (piece.row_bytes == 0 || piece.rows == 0) continue;
    const std::uint64_t steps = piece.rows - 1;
    if (steps > 0 && (piece.from_stride < piece.row_bytes || piece.from == nullptr ||
                      piece.from_stride > piece.from->bytes() / steps))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("a piece of {} rows of {} bytes, {} bytes apart, exceeds its memory",
                              piece.rows, piece.row_bytes, piece.from_stride));
    // Used only for reading. The piece's memory is const, but a Region has no const form.
    WSYNC_TRY(check_region({.memory = const_cast<Memory*>(piece.from),
                            .offset = piece.from_offset,
                            .bytes = steps * piece.from_stride + piece.row_bytes},
                           false));
    if (piece.to != nullptr)
      WSYNC_TRY(check_region(
          {.memory = piece.to, .offset = piece.to_offset, .bytes = piece.written_bytes()}, true));
    WSYNC_TRY(check_cast(piece));
    if (piece.sum == Piece::kNoSum) continue;
    if (piece.sum >= sums)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("a piece adds to sum {} of {}", piece.sum, sums));
    const std::uint64_t reach = steps * piece.from_stride + piece.row_bytes;
    if (piece.place.position > piece.place.tensor_bytes ||
        reach > piece.place.tensor_bytes - piece.place.position)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("a piece of {} bytes at position {} ends behind its tensor of {} "
                              "bytes",
                              reach, piece.place.position, piece.place.tensor_bytes));
  }
  return {};
}

}  // namespace wsync::device
