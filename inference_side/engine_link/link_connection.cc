#include "inference_side/engine_link/link_connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <utility>

#include "inference_side/engine_link/sidecar_socket.h"
#include "shared/base/format.h"
#include "shared/base/liveness.h"
#include "shared/base/units.h"
#include "shared/base/unix_socket.h"

namespace wsync::engine {
namespace {

constexpr std::size_t kReceiveBytes = 256 * limits::kKiB;

Result<> watch(int epoll, int fd, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0)
    return fail_errno("engine link: epoll_ctl", errno);
  return {};
}

void drain(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) > 0) {
  }
}

}  // namespace

Result<std::unique_ptr<LinkConnection>> LinkConnection::create(std::string path,
                                                               LinkHandler& handler) {
  WSYNC_TRY(check_socket_path(path));
  std::unique_ptr<LinkConnection> connection(new LinkConnection(std::move(path), handler));
  WSYNC_TRY(connection->make_descriptors());
  connection->arm_timer(0);
  return connection;
}

Result<> LinkConnection::make_descriptors() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return fail_errno("engine link: epoll_create1", errno);
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return fail_errno("engine link: eventfd", errno);
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) return fail_errno("engine link: timerfd_create", errno);
  alarm_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!alarm_.valid()) return fail_errno("engine link: timerfd_create", errno);
  WSYNC_TRY(watch(epoll_.get(), wake_.get(), EPOLLIN, EPOLL_CTL_ADD));
  WSYNC_TRY(watch(epoll_.get(), alarm_.get(), EPOLLIN, EPOLL_CTL_ADD));
  return watch(epoll_.get(), timer_.get(), EPOLLIN, EPOLL_CTL_ADD);
}

void LinkConnection::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void LinkConnection::wake_at(std::optional<TimePoint> time) {
  if (std::exchange(wake_at_, time) == time) return;
  itimerspec spec{};
  if (time) {
    const std::int64_t delay = std::max<std::int64_t>((*time - now()).count(), 1);
    spec.it_value.tv_sec = delay / 1'000'000'000;
    spec.it_value.tv_nsec = delay % 1'000'000'000;
  }
  ::timerfd_settime(alarm_.get(), 0, &spec, nullptr);
}

bool LinkConnection::has_event() const {
  pollfd events{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&events, 1, 0) > 0;
}

void LinkConnection::arm_timer(std::int64_t delay_ms) {
  itimerspec spec{};
  spec.it_value.tv_sec = delay_ms / 1000;
  spec.it_value.tv_nsec = delay_ms % 1000 * 1'000'000 + 1;  // all zero would disarm the timer
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

Result<> LinkConnection::poll(int timeout_ms) {
  std::array<epoll_event, 8> events{};
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) return fail_errno("engine link: epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    const auto& event = events.at(static_cast<std::size_t>(i));
    if (event.data.fd == wake_.get()) {
      drain(wake_.get());
      handler_.handle_wake();
    } else if (event.data.fd == timer_.get()) {
      drain(timer_.get());
      handle_timer();
    } else if (event.data.fd == alarm_.get()) {
      // It has fired, so the same time may be set again: the owner sees whether it has come.
      drain(alarm_.get());
      wake_at_.reset();
    } else if (event.data.fd == socket_.get()) {
      if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive();
    }
  }
  return {};
}

void LinkConnection::handle_timer() {
  if (!socket_.valid())
    connect();
  else if (!confirmed_)
    disconnect_from_peer(fmt::format("it has not answered within {} ms", limits::kHelloDeadlineMs));
}

void LinkConnection::connect() {
  auto socket = connect_unix(path_, TimePoint{0});
  if (!socket) return disconnect(why_not_connected(path_, socket.error()));
  socket_ = std::move(*socket);
  reader_ = control::FrameReader();
  writer_ = control::FrameWriter();
  confirmed_ = false;
  want_write_ = false;
  if (auto watched = watch(epoll_.get(), socket_.get(), EPOLLIN, EPOLL_CTL_ADD); !watched)
    return disconnect(watched.error().message());
  arm_timer(limits::kHelloDeadlineMs);
  auto [envelope, hello] = handler_.make_hello();
  send(envelope, std::move(hello));
}

void LinkConnection::confirm() noexcept {
  confirmed_ = true;
  backoff_ms_ = 0;
}

void LinkConnection::disconnect(const std::string& why) {
  handler_.handle_loss(why);
  socket_.reset();
  if (std::exchange(is_refused_, false)) {
    refused_backoff_ms_ =
        std::clamp(refused_backoff_ms_ * 2, limits::kReconnectMinMs, kRefusedRetryMaxMs);
    pause_ms_ = refused_backoff_ms_;
  } else {
    refused_backoff_ms_ = 0;
    backoff_ms_ = std::clamp(backoff_ms_ * 2, limits::kReconnectMinMs, limits::kReconnectMaxMs);
    pause_ms_ = backoff_ms_;
  }
  arm_timer(pause_ms_);
}

// Until it has welcomed the rank, nobody knows that the peer is a sidecar.
void LinkConnection::disconnect_from_peer(const std::string& why) {
  if (confirmed_ || is_refused_) return disconnect(why);
  disconnect(why_not_welcomed(path_, socket_.get(), why));
}

void LinkConnection::suspend(const std::string& why) {
  disconnect(why);
  constexpr itimerspec kNever{};
  ::timerfd_settime(timer_.get(), 0, &kNever, nullptr);
  drain(timer_.get());
  wake_at(std::nullopt);
  drain(alarm_.get());
  backoff_ms_ = 0;
}

void LinkConnection::resume() { arm_timer(0); }

void LinkConnection::receive() {
  is_receiving_ = true;
  receive_all();
  is_receiving_ = false;
}

void LinkConnection::receive_all() {
  std::vector<std::byte> buffer(kReceiveBytes);
  while (socket_.valid()) {
    std::vector<UniqueFd> fds;
    const auto received = receive_some(socket_.get(), buffer, fds);
    if (!received) return disconnect_from_peer(received.error().message());
    if (*received == 0) return;
    // What the engine has reported before the sidecar sent this. It may end the connection.
    handler_.handle_wake();
    if (!socket_.valid()) return;
    if (auto fed = reader_.feed(std::span(buffer).first(*received), std::move(fds)); !fed)
      return disconnect_from_peer(fed.error().message());
    // Handling a frame may end the connection; the frames behind it are then invalid.
    while (socket_.valid()) {
      auto frame = reader_.next();
      if (!frame) {
        handler_.handle_malformed(reader_.refused(), frame.error());
        flush();
        return disconnect_from_peer(frame.error().message());
      }
      if (!*frame) break;
      handler_.handle_frame(std::move(**frame));
    }
  }
}

void LinkConnection::flush() {
  if (!socket_.valid()) return;
  const auto done = writer_.flush(socket_.get());
  if (!done) {
    // A peer that is no sidecar may have said what it is before it hung up.
    if (!confirmed_ && !is_receiving_) receive();
    if (socket_.valid()) disconnect_from_peer(done.error().message());
    return;
  }
  if (want_write_ == *done) {
    want_write_ = !*done;
    const std::uint32_t events = want_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
    if (auto watched = watch(epoll_.get(), socket_.get(), events, EPOLL_CTL_MOD); !watched)
      disconnect(watched.error().message());
  }
}

void LinkConnection::send(const control::Envelope& envelope, const control::Message& message) {
  if (!socket_.valid()) return;
  if (auto pushed = writer_.push(envelope, message); !pushed)
    return disconnect(pushed.error().message());
  flush();
}

}  // namespace wsync::engine
