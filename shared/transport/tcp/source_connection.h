// One connection of a TcpSource: reads requests and writes buckets. Only for the bulk thread.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <uv.h>

#include "shared/base/clock.h"
#include "shared/transport/stream_offers.h"
#include "shared/transport/tcp/channel.h"
#include "shared/transport/tcp/frame_reader.h"

namespace wsync::transport::tcp {

// State that all connections of a source share. It belongs to the source's Server.
struct SourceShared {
  StreamOffers offers;
  std::chrono::milliseconds stall_deadline;
  std::chrono::milliseconds offer_wait;
  SourceCounters counters;
};

// Keeps itself alive from accept() until its channel has left the loop.
class SourceConnection : public std::enable_shared_from_this<SourceConnection> {
 public:
  SourceConnection(std::shared_ptr<SourceShared> shared, std::shared_ptr<Channel> channel);
  // `closed` is called once, when the channel has left the loop.
  void on_closed(std::function<void()> closed) { on_closed_ = std::move(closed); }

  // Accepts the pending connection of a listener. Returns false if it is already gone.
  [[nodiscard]] bool accept(uv_loop_t* loop, uv_stream_t* listener);
  // Sends what can be sent now. Called when an offer or a bucket has arrived.
  void pump();
  // Answers every pending request for this version with a failure.
  void withdraw(Version version, const std::string& reason);
  // Checks deadlines and sends keep-alives.
  void tick(TimePoint at);
  // Ends the connection if the key of its peer belongs to an older fence.
  void close_if_older_than(const StreamFence& fence);
  void close();

 private:
  struct Request {
    Frame frame;
    TimePoint since;
    std::size_t leaf = 0;  // the next one; those before it have been sent one by one
  };
  enum class Writing : std::uint8_t { kNothing, kSmall, kPayload };

  void on_read(std::size_t n);
  void close_as_garbage(const Error& error);
  void answer(const Request& request, const Error& error);
  // Begins to send what can be sent now for this request: leaves, changes, or the whole bucket.
  // Returns whether it is done with then. If nothing is being written, it was answered with a
  // failure.
  [[nodiscard]] bool start(const std::shared_ptr<Offered>& offered, Request& request);
  [[nodiscard]] bool start_bucket(const std::shared_ptr<Offered>& offered, const Request& request);
  void start_payload(Frame header, std::span<const std::byte> payload, const Digest& digest);
  // `header`: what goes before it.
  void write_next_slice(std::span<const std::byte> header);
  void write(std::initializer_list<std::span<const std::byte>> pieces);
  void on_written();

  std::shared_ptr<SourceShared> shared_;
  std::function<void()> on_closed_;
  std::shared_ptr<SourceConnection> self_;
  const std::shared_ptr<Channel> channel_;
  FrameReader reader_;
  std::deque<Request> pending_;
  Writing writing_ = Writing::kNothing;
  Bytes outbox_;  // complete small frames that wait
  Bytes small_;   // complete small frames that the current write borrows
  // kPayload: what is being sent behind its header, and what keeps it.
  std::span<const std::byte> payload_;
  std::shared_ptr<const Offered> offered_;
  std::shared_ptr<const Bytes> changes_;   // instead of the bucket
  std::shared_ptr<const Bytes> composed_;  // the bucket, of a version held as its changes alone
  bool ends_bucket_ = false;               // false: more leaves follow
  std::uint64_t sent_ = 0;                 // bytes of it handed to the socket
  bool trailer_sent_ = false;
  std::array<std::byte, kFrameBytes> header_{};
  std::array<std::byte, kTrailerBytes> trailer_{};
  TimePoint last_progress_;
  bool is_open_ = false;
  bool closing_ = false;
};

}  // namespace wsync::transport::tcp
