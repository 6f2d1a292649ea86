#include "bench/baseline/links.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <latch>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <zmq.hpp>

#include "bench/baseline/sockets.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kChunkBytes = limits::kMiB;  // bytes per call and per message
constexpr int kMessagesQueued = 8;

class SocketLink : public OneWay {
 public:
  SocketLink(UniqueFd from, UniqueFd to) : from_(std::move(from)), to_(std::move(to)) {}

  Result<> send(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t sent =
          ::send(from_.get(), bytes.data(), std::min(kChunkBytes, bytes.size()), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return stream_error("send", sent, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return {};
  }
  Result<> receive(std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t got = ::recv(to_.get(), bytes.data(), std::min(kChunkBytes, bytes.size()), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return stream_error("receive", got, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return {};
  }

 private:
  UniqueFd from_;
  UniqueFd to_;
};

Result<std::shared_ptr<OneWay>> make_unix_link() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0)
    return fail_errno("socketpair", errno);
  UniqueFd from(fds[0]);
  UniqueFd to(fds[1]);
  WSYNC_TRY(limit_stalls(from.get()));
  WSYNC_TRY(limit_stalls(to.get()));
  return std::make_shared<SocketLink>(std::move(from), std::move(to));
}

// ZeroMQ sends the sender's bytes in place, without a copy into a message.
class ZmqLink : public OneWay {
 public:
  explicit ZmqLink(const std::string& address)
      : from_(context_, zmq::socket_type::push), to_(context_, zmq::socket_type::pull) {
    for (zmq::socket_t* socket : {&from_, &to_}) {
      socket->set(zmq::sockopt::linger, 0);
      socket->set(zmq::sockopt::sndtimeo, 1000 * kStallSeconds);
      socket->set(zmq::sockopt::rcvtimeo, 1000 * kStallSeconds);
      socket->set(zmq::sockopt::sndhwm, kMessagesQueued);
      socket->set(zmq::sockopt::rcvhwm, kMessagesQueued);
    }
    to_.bind(address);
    from_.connect(address);
  }

  Result<> send(std::span<const std::byte> bytes) override {
    try {
      while (!bytes.empty()) {
        const auto part = bytes.first(std::min(kChunkBytes, bytes.size()));
        zmq::message_t message(const_cast<std::byte*>(part.data()), part.size(),
                               [](void*, void*) {});
        if (!from_.send(message, zmq::send_flags::none)) return stream_error("send", -1, EAGAIN);
        bytes = bytes.subspan(part.size());
      }
    } catch (const zmq::error_t& error) {
      return fail_errno("send", error.num());
    }
    return {};
  }
  Result<> receive(std::span<std::byte> bytes) override {
    try {
      while (!bytes.empty()) {
        const auto got = to_.recv(zmq::buffer(bytes.data(), std::min(kChunkBytes, bytes.size())));
        if (!got) return stream_error("receive", -1, EAGAIN);
        if (got->truncated() || got->size == 0)
          return fail(ErrorCode::kInternal, "receive: the message has an unexpected size");
        bytes = bytes.subspan(got->size);
      }
    } catch (const zmq::error_t& error) {
      return fail_errno("receive", error.num());
    }
    return {};
  }

 private:
  zmq::context_t context_;
  zmq::socket_t from_;
  zmq::socket_t to_;
};

Result<std::shared_ptr<OneWay>> make_zmq_link(const std::string& directory) {
  try {
    return std::make_shared<ZmqLink>(fmt::format("ipc://{}/zmq", directory));
  } catch (const zmq::error_t& error) {
    return fail_errno("ZeroMQ", error.num());
  }
}

}  // namespace

Result<std::shared_ptr<OneWay>> make_tcp_link() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd from(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || !from.valid()) return fail_errno("socket", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), general, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), general, &length) != 0)
    return fail_errno("listen on 127.0.0.1", errno);
  if (::connect(from.get(), general, length) != 0)
    return fail_errno(fmt::format("connect to 127.0.0.1:{}", ntohs(address.sin_port)), errno);
  UniqueFd to(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!to.valid()) return fail_errno("accept on 127.0.0.1", errno);
  const int on = 1;
  if (::setsockopt(from.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
    return fail_errno("TCP_NODELAY", errno);
  WSYNC_TRY(limit_stalls(from.get()));
  WSYNC_TRY(limit_stalls(to.get()));
  return std::make_shared<SocketLink>(std::move(from), std::move(to));
}

Result<Spent> pass_all(Ground& ground, OneWay& link) {
  const auto from = ground.stamped();
  const auto to = ground.target();
  Result<> received;
  Spent spent;
  std::optional<Stopwatch> watch;
  Result<> sent;
  {
    std::latch ready(1);
    std::latch begun(1);
    const std::jthread receiver([&] {
      ready.count_down();
      begun.wait();
      received = link.receive(to);
      spent = watch->stop();
    });
    ready.wait();
    watch.emplace();
    begun.count_down();
    sent = link.send(from);
  }
  WSYNC_TRY(sent);
  WSYNC_TRY(received);
  WSYNC_TRY(ground.check_arrived());
  return spent;
}

Result<> add_link_rows(Workbench& bench, const std::string& directory, BaselineRows& rows) {
  const auto add = [&](const char* name, Result<std::shared_ptr<OneWay>> link) -> Result<> {
    if (!link) return fail(link.error().with_context(name));
    rows.rows.push_back(
        {.name = name, .variant = "", .measure = [&bench, link = *link]() -> Result<nanoseconds> {
           const auto spent = WSYNC_TRY(pass_all(bench.ground(), *link));
           return spent.wall;
         }});
    return {};
  };
  WSYNC_TRY(add("loopback TCP", make_tcp_link()));
  WSYNC_TRY(add("Unix socket", make_unix_link()));
  return add("ZeroMQ ipc", make_zmq_link(directory));
}

}  // namespace wsync::bench
