// WorkerStream: what the streams of every backend have in common. Each has one worker thread,
// started by its first work, which carries out the queue in order; so streams truly run beside each
// other, an idle one costs nothing, a wait can be cancelled, and an error reaches every callback
// behind it.
//
// A backend's work may be complete when it returns (host), or only submitted to hardware (CUDA).
// The worker settles what was submitted before it calls back, completes an event or runs work of a
// communicator. Order between streams is therefore kept by the workers, and hardware that hangs
// holds up one stream, whose destruction ends at settle()'s own deadline.
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

// What record() and wait() share; outlives the Event and the streams that use it.
class EventState {
 public:
  // The ticket of a new record.
  [[nodiscard]] std::uint64_t record();
  // The ticket of the newest record; 0 when there is none.
  [[nodiscard]] std::uint64_t newest() const;
  void complete(std::uint64_t ticket, const Result<>& outcome);
  [[nodiscard]] Result<bool> query(std::uint64_t ticket) const;
  [[nodiscard]] Result<> wait(std::uint64_t ticket, TimePoint deadline) const;
  // Without a deadline, for a stream's worker: ends with kCancelled when its stream is destroyed.
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
  // One piece of work, run on the worker; it returns soon after `stop` is requested.
  using Work = std::function<Result<>(const std::stop_token& stop)>;

  // `name` for error messages.
  WorkerStream(DeviceKind kind, std::string name) : kind_(kind), name_(std::move(name)) {}
  // Cancels what has not begun, tells its callbacks and joins the worker. A backend's destructor
  // calls it first, while its own members are there.
  void close();
  void enqueue(Work work);

  // ---- of a backend, on the worker ----

  // Before the first work.
  [[nodiscard]] virtual Result<> attach() { return {}; }
  // Waits until everything that was submitted is complete, also after a stop: what has been
  // submitted cannot be recalled. Its error. Never without a deadline of its own.
  [[nodiscard]] virtual Result<> settle() { return {}; }
  // Submits a copy between addresses of the device, or does it.
  [[nodiscard]] virtual Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                                      const std::stop_token& stop) = 0;

 private:
  class Turn;
  // `always` work runs after a failure too, and is told of it: callbacks and event records.
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

// kInvalidInput unless the region lies inside its memory (and may be written to, when asked).
[[nodiscard]] Result<> check_region(const Region& region, bool to_be_written);
// The same for what a batch reads and writes, and for its sums.
[[nodiscard]] Result<> check_pieces(std::span<const Piece> pieces, std::size_t sums);

}  // namespace wsync::device
