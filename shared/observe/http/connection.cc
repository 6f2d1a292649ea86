#include "shared/observe/http/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <poll.h>
#include <sys/socket.h>

#include "shared/observe/http/chunked_body.h"

namespace wsync::http {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kReadBytes = 64 * 1024;

short events_now(int fd, short events) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  return ::poll(&entry, 1, 0) > 0 ? entry.revents : short{0};
}

}  // namespace

Connection::Connection(UniqueFd socket, const std::atomic<bool>& stopping,
                       const ServerLimits& limits)
    : socket_(std::move(socket)), stopping_(stopping), head_deadline_(limits.head_deadline_ms) {}

// Returns true if an event occurred, false if the deadline passed or the server is stopping.
bool Connection::wait_for(short events, TimePoint deadline) const {
  for (TimePoint at = now(); at < deadline && !stopping(); at = now()) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - at).count();
    pollfd entry{.fd = socket_.get(), .events = events, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(std::min(left, kPollMs))) > 0) return true;
  }
  return false;
}

Connection::Received Connection::receive(TimePoint deadline) {
  received_.erase(0, used_);
  used_ = 0;
  std::array<char, kReadBytes> bytes;
  for (;;) {
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      received_.append(bytes.data(), static_cast<std::size_t>(n));
      return Received::kSome;
    }
    if (n == 0) return Received::kEnd;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Received::kEnd;
    if (!wait_for(POLLIN, deadline)) return Received::kLate;
  }
}

Connection::Next Connection::read_head() {
  head_ = {};
  const TimePoint deadline = now() + head_deadline_;
  for (;;) {
    head_ = examine_head(unused());
    if (head_.state == RequestHead::State::kRefused) return Next::kRefused;
    if (head_.state == RequestHead::State::kWhole) break;
    if (receive(deadline) != Received::kSome) return Next::kGone;
  }
  used_ += head_.bytes;
  body_read_ = head_.body != BodyKind::kChunked && head_.body_bytes == 0;
  return Next::kRequest;
}

Connection::BodyEnd Connection::read_body(std::string& body) {
  if (head_.body_bytes > kMaxBodyBytes) return BodyEnd::kTooLarge;
  if (head_.expects_continue && !has_more() && !send_all("HTTP/1.1 100 Continue\r\n\r\n"))
    return BodyEnd::kBroken;
  const TimePoint deadline = now() + milliseconds(kBodyDeadlineMs);
  const BodyEnd end =
      head_.body == BodyKind::kChunked ? read_chunks(body, deadline) : read_sized(body, deadline);
  body_read_ = end == BodyEnd::kWhole;
  return end;
}

Connection::BodyEnd Connection::read_sized(std::string& body, TimePoint deadline) {
  for (;;) {
    const std::string_view piece = unused().substr(0, head_.body_bytes - body.size());
    body += piece;
    used_ += piece.size();
    if (body.size() == head_.body_bytes) return BodyEnd::kWhole;
    if (receive(deadline) != Received::kSome) return BodyEnd::kBroken;
  }
}

Connection::BodyEnd Connection::read_chunks(std::string& body, TimePoint deadline) {
  ChunkedBody chunks(kMaxBodyBytes);
  for (;;) {
    used_ += chunks.take(unused(), body);
    switch (chunks.state()) {
      case ChunkedBody::State::kEnd:
        return BodyEnd::kWhole;
      case ChunkedBody::State::kTooLarge:
        return BodyEnd::kTooLarge;
      case ChunkedBody::State::kBad:
        return BodyEnd::kBroken;
      case ChunkedBody::State::kMore:
        break;
    }
    if (receive(deadline) != Received::kSome) return BodyEnd::kBroken;
  }
}

bool Connection::reusable() const noexcept { return body_read_ && !close_after_ && !stopping(); }

bool Connection::hung_up() const noexcept {
  return (events_now(socket_.get(), POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool Connection::send_all(std::string_view bytes) {
  std::optional<TimePoint> grace;
  // Every byte that the client accepts restarts the timeout, so that a slow reader is not cut off.
  TimePoint stall = now() + milliseconds(kWriteStallMs);
  while (!bytes.empty()) {
    const ssize_t n =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      stall = now() + milliseconds(kWriteStallMs);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (stopping() && !grace) grace = now() + milliseconds(kStopGraceMs);
    const TimePoint at = now();
    if (at >= stall || (grace && at >= *grace)) return false;
    pollfd entry{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    (void)::poll(&entry, 1, static_cast<int>(kPollMs));
  }
  return true;
}

void Connection::linger() {
  ::shutdown(socket_.get(), SHUT_WR);
  const TimePoint deadline = now() + milliseconds(kLingerMs);
  std::uint64_t dropped = 0;
  do {
    dropped += unused().size();
    used_ = received_.size();
  } while (dropped < kLingerBytes && receive(deadline) == Received::kSome);
}

}  // namespace wsync::http
