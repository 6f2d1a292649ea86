// WorkerStream: the common part of the streams of every backend. Each stream has one worker thread,
// started by its first work, which executes the queue in order. As a result, streams run
// concurrently, an idle stream costs nothing, a wait can be cancelled, and every callback after a
// failure gets its error.
//
// A backend's work may be complete when it returns (host) or only submitted to hardware (CUDA). The
// worker settles submitted work before it calls back, completes an event or executes work of a
// communicator. The workers therefore keep the order between streams. Hardware that hangs blocks
// only one stream, and destroying that stream ends at settle()'s own deadline.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "shared/device/device.h"

namespace wsync::device {

// State shared by record() and wait(). It outlives the Event and the streams that use it.
class EventState {
 public:
  // Returns the ticket of a new record.
  [[nodiscard]] std::uint64_t record();
  // Returns the ticket of the newest record; 0 if there is none.
  [[nodiscard]] std::uint64_t newest() const;
  void complete(std::uint64_t ticket, const Result<>& outcome);
  [[nodiscard]] Result<bool> query(std::uint64_t ticket) const;
  [[nodiscard]] Result<> wait(std::uint64_t ticket, TimePoint deadline) const;
  // Waits without a deadline, for a stream's worker. kCancelled when its stream is destroyed.
  [[nodiscard]] Result<> wait(std::uint64_t ticket, const std::stop_token& stop) const;

 private:
  [[nodiscard]] bool done(std::uint64_t ticket) const { return completed_ >= ticket; }
  [[nodiscard]] Result<> outcome() const;

  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t completed_ = 0;
  std::optional<Error> error_;  // of the newest completed record
};

class WorkerEvent final : public Event {
 public:
  [[nodiscard]] Result<bool> query() const override { return state_->query(state_->newest()); }
  [[nodiscard]] Result<> wait(TimePoint deadline) const override {
    return state_->wait(state_->newest(), deadline);
  }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

class WorkerStream : public Stream {
 public:
  ~WorkerStream() override;

  [[nodiscard]] Result<> copy_on_device(const Region& to, const Region& from) override;
  [[nodiscard]] Result<> record(Event& event) override;
  [[nodiscard]] Result<> wait(const Event& event) override;
  [[nodiscard]] Result<> notify(StreamCallback callback) override;
  [[nodiscard]] Result<> run(StreamWork work) override;
  [[nodiscard]] Result<> status() const override;

  [[nodiscard]] DeviceKind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 protected:
  // One unit of work, executed on the worker. It must return soon after `stop` is requested.
  using Work = std::function<Result<>(const std::stop_token& stop)>;

  // `name` is used in error messages.
  WorkerStream(DeviceKind kind, std::string name) : kind_(kind), name_(std::move(name)) {}
  // Cancels work that has not started, notifies its callbacks and joins the worker. A backend's
  // destructor must call it first, while the backend's own members still exist.
  void close();
  void enqueue(Work work);

  // ---- implemented by a backend, called on the worker ----

  // Called before the first work.
  [[nodiscard]] virtual Result<> attach() { return {}; }
  // Waits until all submitted work is complete, also after a stop, because submitted work cannot be
  // recalled. Returns the error of that work. Must have its own deadline.
  [[nodiscard]] virtual Result<> settle() { return {}; }
  // Submits or performs a copy between addresses of the device.
  [[nodiscard]] virtual Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                                      const std::stop_token& stop) = 0;

 private:
  class Turn;
  // `always` work (callbacks and event records) also runs after a failure and gets the error.
  struct Item {
    Work work;
    StreamCallback always;
  };
  void push(Item item);
  void serve(const std::stop_token& stop);
  void execute(Item item, const std::stop_token& stop);
  [[nodiscard]] Result<> so_far(const std::stop_token& stop);
  void failed(const Error& error);

  const DeviceKind kind_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Item> queue_;
  std::optional<Error> error_;
  std::jthread worker_;
};

// kInvalidInput unless `bytes` bytes begin with a row of that shape and end with one.
[[nodiscard]] Result<> check_rows(std::uint64_t bytes, const RowShape& rows);
// kInvalidInput unless the region lies inside its memory and, if `to_be_written`, is writable.
[[nodiscard]] Result<> check_region(const Region& region, bool to_be_written);
// Checks the same for the reads and writes of a batch, and its sums.
[[nodiscard]] Result<> check_pieces(std::span<const Piece> pieces, std::size_t sums);

}  // namespace wsync::device
