#include "trainer_side/rollout/http_exchange.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <httplib.h>
#include <optional>
#include <poll.h>
#include <string_view>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/weights/json_text.h"

namespace wsync::rollout {
namespace {

constexpr std::size_t kReceiveBytes = 64 * limits::kKiB;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kDoingSend = "sending a question";
constexpr std::string_view kDoingReceive = "waiting for its answer";

// A server that has nothing to say says nothing between questions, and has not hung up.
bool is_quiet(int socket) {
  pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

bool same_word(const std::string& left, const char* right) {
  return ::strcasecmp(left.c_str(), right) == 0;
}

bool can_be_kept(const httplib::Response& response) {
  return response.version == "HTTP/1.1" &&
         !same_word(response.get_header_value("Connection"), "close") &&
         (response.has_header("Content-Length") ||
          same_word(response.get_header_value("Transfer-Encoding"), "chunked"));
}

}  // namespace

// The HTTP library's client, for what it writes and reads.
class HttpExchange::Protocol final : public httplib::ClientImpl {
 public:
  explicit Protocol(const Endpoint& endpoint) : ClientImpl(endpoint.host, endpoint.port) {
    set_decompress(false);  // a limit on bytes would be none
  }
  bool run(httplib::Stream& stream, httplib::Request& request, httplib::Response& response) {
    httplib::Error ignored = httplib::Error::Success;
    return process_request(stream, request, response, false, ignored);
  }
};

// A socket as the library reads and writes it. It reads a head that has been looked at: the library
// takes lines of any length and matches the first one by a regular expression, which needs stack
// for each byte of it.
class HttpExchange::Wire final : public httplib::Stream {
 public:
  Wire(int socket, const Patience& patience, std::uint64_t most_bytes)
      : socket_(socket), patience_(patience), most_bytes_(most_bytes) {}

  // Why it went no further; nothing: what has come is not what the library expects.
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }
  [[nodiscard]] bool answered() const noexcept { return received_bytes_ > 0; }
  [[nodiscard]] bool used_up() const noexcept { return used_ == received_.size(); }

  [[nodiscard]] bool is_readable() const override { return !used_up() || !is_quiet(socket_); }
  [[nodiscard]] bool is_writable() const override { return !failure_; }
  ssize_t read(char* into, size_t size) override {
    if (!head_read_ && !read_head()) return -1;
    if (used_up()) {
      const ssize_t n = receive();
      if (n <= 0) return n;
    }
    const std::size_t n = received_.copy(into, size, used_);
    used_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    for (;;) {
      const ssize_t n = ::send(socket_, from, size, MSG_NOSIGNAL);
      if (n >= 0) return n;
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return lost(kDoingSend);
      if (!keep(wait_for(socket_, POLLOUT, patience_, kDoingSend))) return -1;
    }
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  [[nodiscard]] socket_t socket() const override { return socket_; }

 private:
  bool keep(const Result<>& result) {
    if (!result) failure_ = result.error();
    return result.has_value();
  }
  ssize_t lost(std::string_view doing) {
    failure_ = Error(ErrorCode::kPeerLost, fmt::format("it hung up while {}", doing));
    return -1;
  }
  void refuse(std::string why) { failure_ = Error(ErrorCode::kInvalidInput, std::move(why)); }

  // As recv(); 0 is kept as a failure too, for answers that are not over then.
  ssize_t receive() {
    received_.erase(0, used_);
    used_ = 0;
    std::array<char, kReceiveBytes> bytes;
    for (;;) {
      const ssize_t n = ::recv(socket_, bytes.data(), bytes.size(), 0);
      if (n > 0) {
        received_bytes_ += static_cast<std::uint64_t>(n);
        if (received_bytes_ > most_bytes_) {
          refuse(fmt::format("its answer is longer than {}", counted(most_bytes_, "byte")));
          return -1;
        }
        received_.append(bytes.data(), static_cast<std::size_t>(n));
        return n;
      }
      if (n == 0) {
        lost(kDoingReceive);
        return 0;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return lost(kDoingReceive);
      if (!keep(wait_for(socket_, POLLIN, patience_, kDoingReceive))) return -1;
    }
  }

  bool read_head() {
    std::size_t end = std::string::npos;
    while (end == std::string::npos && received_.size() <= kAnswerHeadBytes) {
      if (receive() <= 0) return false;
      end = received_.find(kHeadEnd);
    }
    if (end > kAnswerHeadBytes) {
      refuse(fmt::format("the head of its answer is longer than {}",
                         counted(kAnswerHeadBytes, "byte")));
      return false;
    }
    // "HTTP/1.1 200 OK". What is not final, 1xx, was not asked for.
    const std::string_view line = std::string_view(received_).substr(0, received_.find("\r\n"));
    const bool http = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
    head_read_ = http && line.size() <= kStatusLineBytes && !line.substr(9).starts_with('1');
    if (!head_read_)
      refuse(fmt::format("its answer begins with {}; expected HTTP/1.1 and a status of 200 or more",
                         quote_text(line.substr(0, 80))));
    return head_read_;
  }

  int socket_;
  Patience patience_;
  std::uint64_t most_bytes_;
  std::uint64_t received_bytes_ = 0;
  std::string received_;
  std::size_t used_ = 0;  // bytes of it
  bool head_read_ = false;
  std::optional<Error> failure_;
};

HttpExchange::HttpExchange(Endpoint endpoint, UniqueFd cancelled)
    : endpoint_(std::move(endpoint)), cancelled_(std::move(cancelled)) {}
HttpExchange::~HttpExchange() = default;

Result<std::unique_ptr<HttpExchange>> HttpExchange::create(Endpoint endpoint) {
  UniqueFd cancelled(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cancelled.valid()) return fail_errno("make an eventfd", errno);
  return std::unique_ptr<HttpExchange>(new HttpExchange(std::move(endpoint), std::move(cancelled)));
}

void HttpExchange::cancel() noexcept { (void)::eventfd_write(cancelled_.get(), 1); }

Result<HttpAnswer> HttpExchange::ask(const HttpQuestion& question) {
  if (!is_quiet(cancelled_.get()))
    return fail(ErrorCode::kCancelled, "cancelled before it was asked");
  if (socket_.valid() && !is_quiet(socket_.get())) socket_.reset();
  const bool kept = socket_.valid();
  bool answered = false;
  auto answer = ask_once(question, answered);
  // The server may have closed it at the moment when it was used.
  if (!answer && kept && !answered && answer.error().code() == ErrorCode::kPeerLost)
    answer = ask_once(question, answered);
  return answer;
}

Result<HttpAnswer> HttpExchange::ask_once(const HttpQuestion& question, bool& answered) {
  const Patience patience{.deadline = question.deadline, .cancelled = cancelled_.get()};
  UniqueFd socket = std::move(socket_);
  if (!socket.valid()) {
    socket = WSYNC_TRY(dial(endpoint_, patience));
  }
  Wire wire(socket.get(), patience, question.most_bytes);
  httplib::Response response;
  try {
    httplib::Request request;
    request.method = question.body.empty() ? "GET" : "POST";
    request.path = question.path;
    request.body = question.body;
    if (!question.body.empty()) request.set_header("Content-Type", "application/json");
    Protocol protocol(endpoint_);
    const bool whole = protocol.run(wire, request, response);
    answered = wire.answered();
    if (!whole && wire.failure()) return fail(*wire.failure());
    if (!whole) return fail(ErrorCode::kInvalidInput, "its answer is not HTTP as expected");
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("its answer could not be read: {}", quote_text(error.what())));
  }
  if (can_be_kept(response) && wire.used_up() && !wire.failure()) socket_ = std::move(socket);
  return HttpAnswer{.status = response.status, .body = std::move(response.body)};
}

}  // namespace wsync::rollout
