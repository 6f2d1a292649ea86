#include "bench/baseline/pings.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <latch>
#include <span>
#include <sys/socket.h>
#include <thread>
#include <zmq.hpp>

#include "bench/baseline/sockets.h"
#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/unique_fd.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kPingBufferBytes = 64 * limits::kKiB;

Result<> check_same(std::span<const std::byte> expected, std::span<const std::byte> found) {
  if (std::ranges::equal(expected, found)) return {};
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format(
          "received a message of {} bytes that differs from the message of {} bytes that was sent",
          found.size(), expected.size()));
}

// One end of a link. One thread uses it at a time.
class PingEnd {
 public:
  PingEnd() = default;
  virtual ~PingEnd() = default;
  PingEnd(const PingEnd&) = delete;
  PingEnd& operator=(const PingEnd&) = delete;
  virtual Result<> say(std::span<const std::byte> message) = 0;
  virtual Result<> hear(std::span<const std::byte> expected) = 0;
};

// Two ends. Each call starts a new thread for the end that answers.
class BarePings : public Pings {
 public:
  BarePings(std::unique_ptr<PingEnd> asks, std::unique_ptr<PingEnd> answers, PingBytes bytes)
      : asks_(std::move(asks)), answers_(std::move(answers)), bytes_(std::move(bytes)) {}

  Result<nanoseconds> round_trips(unsigned count) override {
    return measure(
        [&]() -> Result<> {
          for (unsigned i = 0; i < count; ++i) {
            WSYNC_TRY(asks_->say(bytes_.question));
            WSYNC_TRY(asks_->hear(bytes_.answer));
          }
          return {};
        },
        [&]() -> Result<> {
          for (unsigned i = 0; i < count; ++i) {
            WSYNC_TRY(answers_->hear(bytes_.question));
            WSYNC_TRY(answers_->say(bytes_.answer));
          }
          return {};
        });
  }
  Result<nanoseconds> one_way(unsigned count) override {
    return measure(
        [&]() -> Result<> {
          for (unsigned i = 0; i < count; ++i) WSYNC_TRY(asks_->say(bytes_.question));
          return asks_->hear(bytes_.answer);
        },
        [&]() -> Result<> {
          for (unsigned i = 0; i < count; ++i) WSYNC_TRY(answers_->hear(bytes_.question));
          return answers_->say(bytes_.answer);
        });
  }

 private:
  static Result<nanoseconds> measure(const std::function<Result<>()>& ask,
                                     const std::function<Result<>()>& answer) {
    Result<> answered;
    Result<> asked;
    nanoseconds taken{};
    {
      std::latch ready(2);
      const std::jthread other([&] {
        ready.arrive_and_wait();
        answered = answer();
      });
      ready.arrive_and_wait();
      const TimePoint begin = now();
      asked = ask();
      taken = now() - begin;
    }
    WSYNC_TRY(answered);
    WSYNC_TRY(asked);
    return taken;
  }

  std::unique_ptr<PingEnd> asks_;
  std::unique_ptr<PingEnd> answers_;
  PingBytes bytes_;
};

// Reads ahead, as programs do that receive many small messages from a stream.
class UnixPingEnd final : public PingEnd {
 public:
  explicit UnixPingEnd(UniqueFd fd) : fd_(std::move(fd)), buffer_(kPingBufferBytes) {}

  Result<> say(std::span<const std::byte> message) override {
    while (!message.empty()) {
      const ssize_t sent = ::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return stream_error("send", sent, errno);
      message = message.subspan(static_cast<std::size_t>(sent));
    }
    return {};
  }
  Result<> hear(std::span<const std::byte> expected) override {
    while (end_ - begin_ < expected.size()) {
      std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
                buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
      end_ -= begin_;
      begin_ = 0;
      const ssize_t got = ::recv(fd_.get(), buffer_.data() + end_, buffer_.size() - end_, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return stream_error("receive", got, errno);
      end_ += static_cast<std::size_t>(got);
    }
    WSYNC_TRY(check_same(expected, std::span(buffer_).subspan(begin_, expected.size())));
    begin_ += expected.size();
    return {};
  }

 private:
  UniqueFd fd_;
  Bytes buffer_;
  std::size_t begin_ = 0;  // start of the unread bytes
  std::size_t end_ = 0;
};

// A socket with its own context, as every port of the product has.
class ZmqPingEnd final : public PingEnd {
 public:
  explicit ZmqPingEnd(zmq::socket_type type) : socket_(context_, type) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::sndtimeo, 1000 * kStallSeconds);
    socket_.set(zmq::sockopt::rcvtimeo, 1000 * kStallSeconds);
    socket_.set(zmq::sockopt::sndhwm, static_cast<int>(limits::kPortQueueCount));
    socket_.set(zmq::sockopt::rcvhwm, static_cast<int>(limits::kPortQueueCount));
    routes_ = type == zmq::socket_type::router;
  }
  zmq::socket_t& socket() noexcept { return socket_; }

  Result<> say(std::span<const std::byte> message) override {
    try {
      if (routes_ && !socket_.send(zmq::buffer(peer_), zmq::send_flags::sndmore))
        return stream_error("send", -1, EAGAIN);
      if (!socket_.send(zmq::buffer(message.data(), message.size()), zmq::send_flags::none))
        return stream_error("send", -1, EAGAIN);
    } catch (const zmq::error_t& error) {
      return fail_errno("send", error.num());
    }
    return {};
  }
  Result<> hear(std::span<const std::byte> expected) override {
    try {
      zmq::message_t message;
      if (!socket_.recv(message)) return stream_error("receive", -1, EAGAIN);
      if (routes_) {
        peer_ = message.to_string();
        if (!socket_.recv(message)) return stream_error("receive", -1, EAGAIN);
      }
      return check_same(expected, {static_cast<const std::byte*>(message.data()), message.size()});
    } catch (const zmq::error_t& error) {
      return fail_errno("receive", error.num());
    }
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  bool routes_ = false;
  std::string peer_;  // sender of the last question
};

}  // namespace

Result<std::unique_ptr<Pings>> ping_bare_unix(PingBytes bytes) {
  WSYNC_CHECK(std::max(bytes.question.size(), bytes.answer.size()) <= kPingBufferBytes,
              "messages fit into the buffer");
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0)
    return fail_errno("socketpair", errno);
  UniqueFd from(fds[0]);
  UniqueFd to(fds[1]);
  WSYNC_TRY(limit_stalls(from.get()));
  WSYNC_TRY(limit_stalls(to.get()));
  return std::make_unique<BarePings>(std::make_unique<UnixPingEnd>(std::move(from)),
                                     std::make_unique<UnixPingEnd>(std::move(to)),
                                     std::move(bytes));
}

Result<std::unique_ptr<Pings>> ping_bare_zmq(const std::string& address, PingBytes bytes) {
  try {
    auto answers = std::make_unique<ZmqPingEnd>(zmq::socket_type::router);
    auto asks = std::make_unique<ZmqPingEnd>(zmq::socket_type::dealer);
    answers->socket().bind(address);
    asks->socket().connect(answers->socket().get(zmq::sockopt::last_endpoint));
    return std::make_unique<BarePings>(std::move(asks), std::move(answers), std::move(bytes));
  } catch (const zmq::error_t& error) {
    return fail_errno(address, error.num());
  }
}

}  // namespace wsync::bench
