#include "bench/recovery/http_client.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

tl::unexpected<Error> bad_reply(const std::string& why) {
  return fail(ErrorCode::kInvalidInput, "an engine's answer: " + why);
}

struct ReplyHead {
  unsigned status = 0;
  std::size_t body_bytes = 0;
};

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool is_name(std::string_view found, std::string_view lower_case) {
  return std::ranges::equal(found, lower_case, {}, [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
}

// `head`: lines, without the empty one at its end.
Result<ReplyHead> read_reply_head(std::string_view head) {
  constexpr std::string_view kBegin = "HTTP/1.1 ";
  const std::string_view first = head.substr(0, head.find(kLineEnd));
  ReplyHead reply;
  if (!first.starts_with(kBegin) || !read_number(first.substr(kBegin.size(), 3), reply.status))
    return bad_reply(fmt::format("it begins with '{}', expected HTTP/1.1 and a status", first));
  bool has_length = false;
  for (std::size_t begin = first.size(); begin < head.size();) {
    begin += kLineEnd.size();
    const std::size_t end = std::min(head.find(kLineEnd, begin), head.size());
    const std::string_view line = head.substr(begin, end - begin);
    begin = end;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_name(line.substr(0, colon), "content-length"))
      continue;
    has_length = read_number(trimmed(line.substr(colon + 1)), reply.body_bytes);
    if (!has_length || reply.body_bytes > kReplyBodyBytes)
      return bad_reply(
          fmt::format("'{}', expected a length of at most {} bytes", line, kReplyBodyBytes));
  }
  if (!has_length) return bad_reply("it has no Content-Length");
  return reply;
}

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::connect(std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return fail_errno("socket", errno);
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons(port),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                            .sin_zero = {}};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail(ErrorCode::kPeerLost,
                fmt::format("127.0.0.1:{} takes no connection: {}", port, std::strerror(errno)));
  const int yes = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(socket)));
}

void HttpClient::cancel() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

Result<> HttpClient::wait_for(short events, TimePoint deadline) const {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()).count();
    if (left <= 0)
      return fail(ErrorCode::kDeadline, "an engine did not answer before the deadline");
    pollfd fd{.fd = socket_.get(), .events = events, .revents = 0};
    const int ready = ::poll(&fd, 1, static_cast<int>(left));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail_errno("poll", errno);
  }
}

Result<> HttpClient::send_all(std::string_view text, TimePoint deadline) {
  while (!text.empty()) {
    WSYNC_TRY(wait_for(POLLOUT, deadline));
    const ssize_t sent =
        ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent < 0)
      return fail(ErrorCode::kPeerLost,
                  fmt::format("an engine takes no request: {}", std::strerror(errno)));
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return {};
}

Result<> HttpClient::receive_more(TimePoint deadline) {
  for (;;) {
    WSYNC_TRY(wait_for(POLLIN, deadline));
    std::array<char, 16384> bytes;
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return fail(ErrorCode::kPeerLost, "an engine has ended the connection");
    received_.append(bytes.data(), static_cast<std::size_t>(got));
    return {};
  }
}

Result<HttpReply> HttpClient::post(std::string_view path, std::string_view json,
                                   TimePoint deadline) {
  WSYNC_TRY(send_all(fmt::format("POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                                 "application/json\r\nContent-Length: {}\r\n\r\n{}",
                                 path, json.size(), json),
                     deadline));
  std::size_t end = 0;
  while ((end = received_.find(kHeadEnd)) == std::string::npos) {
    if (received_.size() > kReplyHeadBytes)
      return bad_reply(fmt::format("its head is longer than {} bytes", kReplyHeadBytes));
    WSYNC_TRY(receive_more(deadline));
  }
  const auto head = read_reply_head(std::string_view(received_).substr(0, end));
  if (!head) return fail(head.error());
  received_.erase(0, end + kHeadEnd.size());
  while (received_.size() < head->body_bytes) WSYNC_TRY(receive_more(deadline));
  HttpReply reply{.status = head->status, .body = received_.substr(0, head->body_bytes)};
  received_.erase(0, head->body_bytes);
  return reply;
}

}  // namespace wsync::bench
