// Streams and events of host devices: one worker thread for each stream, started by its first work,
// so that H2D copies and broadcasts truly overlap and an idle stream costs nothing.
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

namespace wsync::device::host {

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

class HostEvent final : public Event {
 public:
  [[nodiscard]] Result<bool> query() const override { return state_->query(state_->newest()); }
  [[nodiscard]] Result<> wait(TimePoint deadline) const override {
    return state_->wait(state_->newest(), deadline);
  }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

class HostStream final : public Stream {
 public:
  // One piece of work, run on the worker; it returns soon after `stop` is requested.
  using Work = std::function<Result<>(const std::stop_token& stop)>;

  explicit HostStream(std::string name) : name_(std::move(name)) {}
  ~HostStream() override;

  [[nodiscard]] Result<> copy_to_device(const Region& to,
                                        std::span<const std::byte> source) override;
  [[nodiscard]] Result<> copy_to_host(std::span<std::byte> to, const Region& from) override;
  [[nodiscard]] Result<> copy_on_device(const Region& to, const Region& from) override;
  [[nodiscard]] Result<> record(Event& event) override;
  [[nodiscard]] Result<> wait(const Event& event) override;
  [[nodiscard]] Result<> notify(StreamCallback callback) override;
  [[nodiscard]] Result<> status() const override;

  // For the host communicator: work of its own in this stream's order.
  void enqueue(Work work);

 private:
  // `always` work runs after a failure too, and is told of it: callbacks and event records.
  struct Item {
    Work work;
    StreamCallback always;
  };
  void push(Item item);
  void run(const std::stop_token& stop);

  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Item> queue_;
  std::optional<Error> error_;
  std::jthread worker_;
};

// memcpy in windows of a few MiB, so that a destroyed stream ends its copy early: kCancelled then.
[[nodiscard]] Result<> copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes,
                                  const std::stop_token& stop);
// kInvalidInput unless the region lies inside its memory (and may be written to, when asked).
[[nodiscard]] Result<> check_region(const Region& region, bool to_be_written);

}  // namespace wsync::device::host
