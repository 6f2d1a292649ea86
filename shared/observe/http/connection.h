// Connection: one client's socket, as the HTTP library reads and writes it, with a limit on every
// wait and every size.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <httplib.h>
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
// A client that is refused in the middle of its body is listened to for so long, and so many
// bytes, or the answer would be lost with the connection.
inline constexpr std::int64_t kLingerMs = 2'000;
inline constexpr std::uint64_t kLingerBytes = 4 * kMaxBodyBytes;

static_assert(kMaxHeadBytes < kMaxBodyBytes && kPollMs < kStopGraceMs);

// What the clients of one server may take of it.
struct ServerLimits {
  std::size_t connections = 8192;          // at once; more of them wait to be taken in
  std::int64_t idle_ms = 60'000;           // a connection without a request
  std::int64_t head_deadline_ms = 10'000;  // of a request's head, from when it is waited for
};

// Thread: the one that answers it.
class Connection final : public httplib::Stream {
 public:
  // `socket` does not wait by itself. `stopping`, borrowed: the server ends; what is under way is
  // given kStopGraceMs.
  Connection(UniqueFd socket, const std::atomic<bool>& stopping, const ServerLimits& limits = {});

  enum class Next : std::uint8_t { kRequest, kGone, kRefused };
  // Reads the next request's head. kRefused: `refusal` has the answer; kGone: there is none and
  // nobody to tell.
  [[nodiscard]] Next read_head();
  [[nodiscard]] const RequestHead& head() const noexcept { return head_; }
  enum class BodyEnd : std::uint8_t { kWhole, kTooLarge, kBroken };
  // Reads the body of the request; once for each. kTooLarge: more than kMaxBodyBytes, perhaps
  // without reading it; kBroken: it ended early, came too slowly, or its chunks are none.
  [[nodiscard]] BodyEnd read_body(std::string& body);
  // No request follows this one.
  void close_after() noexcept { close_after_ = true; }
  // Whether another request can follow: this one has been read whole, and nobody wants to close.
  [[nodiscard]] bool reusable() const noexcept;
  [[nodiscard]] bool closes() const noexcept { return close_after_ || stopping(); }
  // Some of the next request has been read already.
  [[nodiscard]] bool has_more() const noexcept { return used_ < received_.size(); }

  // The client closed its connection, or its sending half.
  [[nodiscard]] bool hung_up() const noexcept;
  [[nodiscard]] bool stopping() const noexcept { return stopping_.load(); }
  // Writes all of it. False: the client is gone, reads nothing or the server's grace is over.
  [[nodiscard]] bool send_all(std::string_view bytes);
  // Lets the client read the last answer although not all it sends has been read.
  void linger();

  // For its keeper.
  TimePoint idle_since = now();

  // httplib::Stream; reads the head.
  [[nodiscard]] bool is_readable() const override;
  [[nodiscard]] bool is_writable() const override;
  ssize_t read(char* into, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // Its number as the library may have it, which knows descriptors below 1024 only.
  [[nodiscard]] socket_t socket() const override;
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  // What one look for bytes came to.
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
  std::size_t head_read_ = 0;  // of head_.text
  bool body_read_ = false;     // all of it
  bool close_after_ = false;
};

}  // namespace wsync::http
