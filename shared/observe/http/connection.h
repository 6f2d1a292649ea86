// Connection: the socket of one client of an HttpServer, with a limit on every wait and every size.
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
inline constexpr std::int64_t kPollMs = 100;  // between looks at `stopping`
inline constexpr std::int64_t kBodyDeadlineMs = 60'000;
inline constexpr std::int64_t kWriteStallMs = 10'000;  // a client that reads nothing
inline constexpr std::int64_t kStopGraceMs = 2'000;    // for what is under way at a stop
// The rest of a request that was refused is read for so long, and so many bytes. A connection that
// is closed with unread bytes is reset, and the client could lose the response.
inline constexpr std::int64_t kLingerMs = 2'000;
inline constexpr std::uint64_t kLingerBytes = 4 * kMaxBodyBytes;

static_assert(kMaxHeadBytes < kMaxBodyBytes && kPollMs < kStopGraceMs);

// What the clients of one server may use.
struct ServerLimits {
  std::size_t connections = 8192;          // at once; more of them wait to be accepted
  std::int64_t idle_ms = 60'000;           // a connection without a request
  std::int64_t head_deadline_ms = 10'000;  // of a request's head, from when it is waited for
};

// Thread: the one that answers it.
class Connection {
 public:
  // `socket` is non-blocking. `stopping`, borrowed: the server stops; what is under way may take
  // kStopGraceMs more.
  Connection(UniqueFd socket, const std::atomic<bool>& stopping, const ServerLimits& limits = {});

  enum class Next : std::uint8_t { kRequest, kGone, kRefused };
  // Reads the next request's head. kRefused: head() says why; kGone: the client has gone, or its
  // request did not come in time.
  [[nodiscard]] Next read_head();
  [[nodiscard]] const RequestHead& head() const noexcept { return head_; }
  enum class BodyEnd : std::uint8_t { kWhole, kTooLarge, kBroken };
  // Reads the body of the request; once for each request. A client that waits to be asked for it
  // (Expect: 100-continue) is asked. kTooLarge: more than kMaxBodyBytes, perhaps without reading
  // it; kBroken: it ended early, came too slowly, or has a bad chunk.
  [[nodiscard]] BodyEnd read_body(std::string& body);
  // No request follows this one.
  void close_after() noexcept { close_after_ = true; }
  // Whether the server can read another request: this one has been read completely, and neither a
  // handler nor a stop ends the connection.
  [[nodiscard]] bool reusable() const noexcept;
  // Some of the next request has been read already.
  [[nodiscard]] bool has_more() const noexcept { return used_ < received_.size(); }

  // The client closed its connection, or its sending half.
  [[nodiscard]] bool hung_up() const noexcept;
  [[nodiscard]] bool stopping() const noexcept { return stopping_.load(); }
  // Writes all of it. False: the client has gone, reads nothing, or the grace of a stop is over.
  [[nodiscard]] bool send_all(std::string_view bytes);
  // Ends the sending half, then reads and drops what the client still sends (see kLingerMs).
  void linger();

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  // For its keeper.
  TimePoint idle_since = now();

 private:
  // What one attempt to receive came to.
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
  std::size_t used_ = 0;  // bytes of it
  RequestHead head_;
  bool body_read_ = false;  // all of it
  bool close_after_ = false;
};

}  // namespace wsync::http
