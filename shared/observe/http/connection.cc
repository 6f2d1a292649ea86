#include "shared/observe/http/connection.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <netinet/in.h>
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

void address_text(const sockaddr_storage& address, std::string& ip, int& port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    port = ntohs(v6.sin6_port);
  }
  ip = text.data();
}

}  // namespace

Connection::Connection(UniqueFd socket, const std::atomic<bool>& stopping,
                       const ServerLimits& limits)
    : socket_(std::move(socket)), stopping_(stopping), head_deadline_(limits.head_deadline_ms) {}

// True when something has happened; false: the time is over or the server stops.
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
  head_read_ = 0;
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

bool Connection::reusable() const noexcept {
  return body_read_ && head_read_ == head_.text.size() && !closes();
}

bool Connection::hung_up() const noexcept {
  return (events_now(socket_.get(), POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool Connection::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(bytes.data(), bytes.size());
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
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

bool Connection::is_readable() const {
  return has_more() || (events_now(socket_.get(), POLLIN) & POLLIN) != 0;
}

bool Connection::is_writable() const {
  return (events_now(socket_.get(), POLLOUT) & POLLOUT) != 0 && !hung_up();
}

ssize_t Connection::read(char* into, size_t size) {
  if (head_read_ == head_.text.size()) return -1;
  const std::size_t n = head_.text.copy(into, size, head_read_);
  head_read_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* from, size_t size) {
  const TimePoint stall = now() + milliseconds(kWriteStallMs);
  std::optional<TimePoint> grace;
  for (;;) {
    const ssize_t n = ::send(socket_.get(), from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return -1;
    if (stopping() && !grace) grace = now() + milliseconds(kStopGraceMs);
    const TimePoint at = now();
    if (at >= stall || (grace && at >= *grace)) return -1;
    pollfd entry{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    (void)::poll(&entry, 1, static_cast<int>(kPollMs));
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0)
    address_text(address, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0)
    address_text(address, ip, port);
}

socket_t Connection::socket() const { return std::min(socket_.get(), FD_SETSIZE - 1); }

}  // namespace wsync::http
