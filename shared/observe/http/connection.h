// Connection: the socket of one client of an HttpServer. Every wait and every size has a limit.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/clock.h"
#include "shared/base/unique_fd.h"
#include "shared/base/units.h"
#include "shared/observe/http/request_head.h"

namespace wsync::http {

inline constexpr std::uint64_t kMaxBodyBytes = 16 * limits::kMiB;
inline constexpr std::int64_t kPollMs = 100;  // interval of checking `stopping`
inline constexpr std::int64_t kBodyDeadlineMs = 60'000;
inline constexpr std::int64_t kWriteStallMs = 10'000;  // client accepts no bytes
inline constexpr std::int64_t kStopGraceMs = 2'000;    // for active requests at shutdown
// Limits for draining the rest of a refused request. Closing a socket with unread bytes sends a
// reset, and the client could lose the response.
inline constexpr std::int64_t kLingerMs = 2'000;
inline constexpr std::uint64_t kLingerBytes = 4 * kMaxBodyBytes;

static_assert(kMaxHeadBytes < kMaxBodyBytes && kPollMs < kStopGraceMs);

// Resource limits for the clients of one server.
struct ServerLimits {
  std::size_t connections = 8192;          // maximum at once; others wait to be accepted
  std::int64_t idle_ms = 60'000;           // open connection without a request
  std::int64_t head_deadline_ms = 10'000;  // request head, measured from the start of the wait
};

// Thread: the one that serves this connection.
class Connection {
 public:
  // `socket` must be non-blocking. `stopping` is borrowed. It is set when the server stops; a
  // response that is being sent then has kStopGraceMs to finish.
  Connection(UniqueFd socket, const std::atomic<bool>& stopping, const ServerLimits& limits = {});

  enum class Next : std::uint8_t { kRequest, kGone, kRefused };
  // Reads the head of the next request. kRefused: head() holds the reason. kGone: the client
  // disconnected or its request did not arrive before the deadline.
  [[nodiscard]] Next read_head();
  [[nodiscard]] const RequestHead& head() const noexcept { return head_; }
  enum class BodyEnd : std::uint8_t { kWhole, kTooLarge, kBroken };
  // Reads the body of the request. Call once per request. Sends "100 Continue" if the client
  // expects it. kTooLarge: the body exceeds kMaxBodyBytes (it may not have been read). kBroken: the
  // body ended early, missed its deadline or has an invalid chunk.
  [[nodiscard]] BodyEnd read_body(std::string& body);
  // Closes the connection after the current request.
  void close_after() noexcept { close_after_ = true; }
  // Returns true if another request can be read: the body of this one was read completely, and
  // neither a handler nor a shutdown closes the connection.
  [[nodiscard]] bool reusable() const noexcept;
  // Returns true if bytes of the next request have already been received.
  [[nodiscard]] bool has_more() const noexcept { return used_ < received_.size(); }

  // Returns true if the client closed its connection or its sending half.
  [[nodiscard]] bool hung_up() const noexcept;
  [[nodiscard]] bool stopping() const noexcept { return stopping_.load(); }
  // Sends all bytes. Returns false if the client disconnected, accepts no bytes for kWriteStallMs,
  // or kStopGraceMs expired during a shutdown.
  [[nodiscard]] bool send_all(std::string_view bytes);
  // Closes the sending half, then reads and drops what the client still sends (see kLingerMs).
  void linger();

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  // Set by the Acceptor.
  TimePoint idle_since = now();

 private:
  // Result of one attempt to receive.
  enum class Received : std::uint8_t { kSome, kEnd, kLate };
  Received receive(TimePoint deadline);
  bool wait_for(short events, TimePoint deadline) const;
  BodyEnd read_chunks(std::string& body, TimePoint deadline);
  BodyEnd read_sized(std::string& body, TimePoint deadline);
  [[nodiscard]] std::string_view unused() const noexcept {
    return std::string_view(received_).substr(used_);
  }

  UniqueFd socket_;
  const std::atomic<bool>& stopping_;
  std::chrono::milliseconds head_deadline_;
  std::string received_;
  std::size_t used_ = 0;  // consumed bytes of received_
  RequestHead head_;
  bool body_read_ = false;  // the complete body
  bool close_after_ = false;
};

}  // namespace wsync::http
