#include "shared/observe/http/http_client.h"

#include <algorithm>
#include <array>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/eventfd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/observe/http/chunked_body.h"
#include "shared/observe/http/http_message.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

constexpr std::size_t kReceiveBytes = 64 * limits::kKiB;
constexpr std::string_view kDoingSend = "sending a request";
constexpr std::string_view kDoingReceive = "waiting for the response";
constexpr std::size_t kVersionBytes = 9;  // "HTTP/1.1 "

// Whether cancel() has not been called.
bool is_quiet(int cancelled) {
  pollfd entry{.fd = cancelled, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

tl::unexpected<Error> ended_early(std::string_view doing) {
  return fail(ErrorCode::kPeerLost,
              fmt::format("the server closed the connection while {}", doing));
}

tl::unexpected<Error> not_http() {
  return fail(ErrorCode::kInvalidInput, "the response is not valid HTTP");
}

// Reads one response from a connection.
class ResponseReader {
 public:
  ResponseReader(ClientStream& stream, const WaitLimit& limit, std::uint64_t max_bytes)
      : stream_(stream), limit_(limit), max_bytes_(max_bytes) {}

  // Returns true if any byte of the response has arrived.
  [[nodiscard]] bool answered() const noexcept { return received_bytes_ > 0; }
  // Returns true if another request can follow: the response has a known end, and no bytes follow
  // it.
  [[nodiscard]] bool can_be_kept() const noexcept {
    return keeps_open_ && (chunked_ || length_) && used_ == received_.size();
  }
  Result<ClientResponse> read() {
    ClientResponse response;
    response.status = WSYNC_TRY(read_head());
    if (response.status == 204 || response.status == 304) length_ = 0;
    if (length_ && *length_ > max_bytes_) return too_long();
    if (chunked_)
      WSYNC_TRY(read_chunks(response.body));
    else
      WSYNC_TRY(read_plain(response.body));
    return response;
  }

 private:
  [[nodiscard]] tl::unexpected<Error> too_long() const {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the response is longer than {}", counted(max_bytes_, "byte")));
  }

  // Returns the number of bytes received; 0 if the peer closed the connection.
  Result<std::size_t> receive() {
    received_.erase(0, used_);
    used_ = 0;
    std::array<char, kReceiveBytes> bytes;
    const std::size_t n = WSYNC_TRY(stream_.receive(bytes, limit_, kDoingReceive));
    received_bytes_ += n;
    if (received_bytes_ > max_bytes_) return too_long();
    received_.append(bytes.data(), n);
    return n;
  }
  // As receive(), but the end of the connection is an error.
  Result<> receive_more() {
    if (WSYNC_TRY(receive()) == 0) return ended_early(kDoingReceive);
    return {};
  }

  // Returns the status code.
  Result<int> read_head() {
    std::size_t end = std::string::npos;
    while (end == std::string::npos && received_.size() <= kMaxResponseHeadBytes) {
      WSYNC_TRY(receive_more());
      end = received_.find(kHeadEnd);
    }
    if (end > kMaxResponseHeadBytes)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the head of the response is longer than {}",
                              counted(kMaxResponseHeadBytes, "byte")));
    std::string_view head = std::string_view(received_).substr(0, end + kLineEnd.size());
    const std::string_view line = next_line(head);
    // Expects "HTTP/1.1 200 OK". Interim responses (1xx) are an error: the request did not ask for
    // one.
    const bool http = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
    if (!http || line.size() > kMaxStatusLineBytes || line.substr(kVersionBytes).starts_with('1'))
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("the response begins with {}; expected HTTP/1.1 and a status of 200 or more",
                      quote_text(line.substr(0, 80))));
    const std::string_view word =
        line.substr(kVersionBytes, line.find(' ', kVersionBytes) - kVersionBytes);
    const auto status = whole_number(word);
    if (word.size() != 3 || !status) return not_http();
    keeps_open_ = line.starts_with("HTTP/1.1 ");
    while (!head.empty())
      if (!add_header(next_line(head))) return not_http();
    used_ = end + kHeadEnd.size();
    return static_cast<int>(*status);
  }
  static std::string_view next_line(std::string_view& head) {
    const std::size_t end = head.find(kLineEnd);
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + kLineEnd.size());
    return line;
  }
  // Returns false if the line is not a header or makes the length of the body ambiguous.
  bool add_header(std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return false;
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (same_word(name, "Connection") && same_word(value, "close")) keeps_open_ = false;
    const bool framed = chunked_ || length_.has_value();
    if (same_word(name, "Content-Length")) {
      length_ = whole_number(value);
      return length_ && !framed;
    }
    if (same_word(name, "Transfer-Encoding")) {
      chunked_ = same_word(value, "chunked");
      return chunked_ && !framed;
    }
    return true;
  }

  Result<> read_plain(std::string& body) {
    for (;;) {
      std::string_view piece = std::string_view(received_).substr(used_);
      if (length_) piece = piece.substr(0, *length_ - body.size());
      body += piece;
      used_ += piece.size();
      if (length_ && body.size() == *length_) return {};
      // Without Content-Length the body ends when the connection closes.
      if (WSYNC_TRY(receive()) == 0) {
        if (length_) return ended_early(kDoingReceive);
        return {};
      }
    }
  }
  Result<> read_chunks(std::string& body) {
    ChunkedBody chunks(max_bytes_);
    for (;;) {
      used_ += chunks.take(std::string_view(received_).substr(used_), body);
      switch (chunks.state()) {
        case ChunkedBody::State::kEnd:
          return {};
        case ChunkedBody::State::kTooLarge:
          return too_long();
        case ChunkedBody::State::kBad:
          return not_http();
        case ChunkedBody::State::kMore:
          break;
      }
      WSYNC_TRY(receive_more());
    }
  }

  ClientStream& stream_;
  WaitLimit limit_;
  std::uint64_t max_bytes_;
  std::uint64_t received_bytes_ = 0;
  std::string received_;
  std::size_t used_ = 0;  // consumed bytes of received_
  bool keeps_open_ = false;
  bool chunked_ = false;
  std::optional<std::uint64_t> length_;
};

}  // namespace

HttpClient::HttpClient(Endpoint endpoint, UniqueFd cancelled)
    : endpoint_(std::move(endpoint)), cancelled_(std::move(cancelled)) {}

Result<std::unique_ptr<HttpClient>> HttpClient::create(Endpoint endpoint) {
  UniqueFd cancelled(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cancelled.valid()) return fail_errno("create an eventfd", errno);
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(endpoint), std::move(cancelled)));
}

void HttpClient::cancel() noexcept { (void)::eventfd_write(cancelled_.get(), 1); }

std::string HttpClient::text_of(const ClientRequest& request) const {
  const bool get = request.body.empty();
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", get ? "GET" : "POST",
                                 request.path, host_header(endpoint_));
  if (!endpoint_.authorization.empty())
    text += fmt::format("Authorization: {}\r\n", endpoint_.authorization);
  if (!get)
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                        request.body.size());
  return text + "\r\n" + request.body;
}

Result<ClientResponse> HttpClient::ask(const ClientRequest& request) {
  was_sent_ = was_repeated_ = false;
  if (!is_quiet(cancelled_.get()))
    return fail(ErrorCode::kCancelled, "cancelled before the request was sent");
  // A server sends nothing between requests. Readable data is the end of the connection or
  // unexpected bytes, so the connection cannot be used again.
  if (stream_.is_open() && !stream_.is_quiet()) stream_ = {};
  const bool kept = stream_.is_open();
  bool answered = false;
  auto response = ask_once(request, answered);
  // The server may have closed the idle connection just as the request was sent. Retry once on a
  // new connection.
  if (!response && kept && !answered && response.error().code() == ErrorCode::kPeerLost) {
    was_repeated_ = true;
    response = ask_once(request, answered);
  }
  return response;
}

Result<ClientResponse> HttpClient::ask_once(const ClientRequest& request, bool& answered) {
  const WaitLimit limit{.deadline = request.deadline, .cancelled = cancelled_.get()};
  ClientStream stream = std::exchange(stream_, {});
  if (!stream.is_open()) stream = WSYNC_TRY(ClientStream::open(endpoint_, limit));
  was_sent_ = true;
  WSYNC_TRY(stream.send(text_of(request), limit, kDoingSend));
  ResponseReader reader(stream, limit, request.max_bytes);
  auto response = reader.read();
  answered = reader.answered();
  if (response && reader.can_be_kept()) stream_ = std::move(stream);
  return response;
}

}  // namespace wsync::http
