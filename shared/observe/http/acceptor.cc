#include "shared/observe/http/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>

#include "shared/base/log.h"

namespace wsync::http {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kAcceptAgainMs = 100;  // after running out of descriptors or memory

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::create(Listener listener, std::size_t threads,
                                                   Serve serve, const ServerLimits& limits) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return fail_errno("eventfd of an HTTP server", errno);
  return std::unique_ptr<Acceptor>(
      new Acceptor(std::move(listener), std::move(wake), threads, std::move(serve), limits));
}

Acceptor::Acceptor(Listener listener, UniqueFd wake, std::size_t threads, Serve serve,
                   const ServerLimits& limits)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      max_threads_(threads),
      serve_(std::move(serve)),
      limits_(limits) {}

Acceptor::~Acceptor() { stop(); }

void Acceptor::start() {
  accepting_ = std::thread([this] { accept_loop(); });
}

void Acceptor::stop() {
  const std::lock_guard stop_lock(stop_mutex_);
  {
    // `stopping_` is set under the lock. Otherwise a thread between its check and its wait would
    // miss the notification.
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  ready_filled_.notify_all();
  if (accepting_.joinable()) accepting_.join();
  // The accepting thread has ended, so no new thread can start.
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  ready_.clear();
  returned_.clear();
  listener_.socket.reset();
  listener_.path.reset();
}

void Acceptor::wake() {
  const std::uint64_t one = 1;
  // The write fails only if the counter is full, and then the descriptor is readable as well.
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Acceptor::accept_loop() {
  Idle idle;
  TimePoint accept_again = now();
  while (!stopping_) {
    const bool accepting = open_ < limits_.connections && now() >= accept_again;
    wait_once(idle, accepting);
    take_returned(idle);
    if (accepting && !stopping_ && !accept_all(idle))
      accept_again = now() + milliseconds(kAcceptAgainMs);
  }
}

// Waits until a connection or the wake descriptor is ready, or a timeout. Connections that are
// readable or closed are handed to the threads. Closes connections that exceeded the idle limit.
void Acceptor::wait_once(Idle& idle, bool accepting) {
  std::vector<pollfd> entries;
  entries.reserve(idle.size() + 2);
  entries.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
  entries.push_back(
      {.fd = accepting ? listener_.socket.get() : -1, .events = POLLIN, .revents = 0});
  for (const auto& connection : idle)
    entries.push_back({.fd = connection->fd(), .events = POLLIN, .revents = 0});
  // poll() ignores the descriptor -1. While connections are not accepted, a short wait lets the
  // caller soon check again whether they can be.
  const std::int64_t longest = accepting ? limits_.idle_ms / 10 : kAcceptAgainMs;
  if (::poll(entries.data(), entries.size(), static_cast<int>(longest)) < 0) return;
  std::uint64_t count = 0;
  if (entries[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
  Idle left;
  for (std::size_t i = 0; i < idle.size(); ++i) {
    if (entries[i + 2].revents != 0)
      hand_over(std::move(idle[i]));
    else if (now() - idle[i]->idle_since < milliseconds(limits_.idle_ms))
      left.push_back(std::move(idle[i]));
    else
      --open_;
  }
  idle.swap(left);
}

// Accepts all pending connections. Returns false if this process cannot open more connections now.
bool Acceptor::accept_all(Idle& idle) {
  while (open_ < limits_.connections) {
    UniqueFd socket = UniqueFd::made_by([&] {
      return ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (!socket.valid()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == ECONNABORTED || errno == EINTR) continue;  // aborted before it was accepted
      log_warning("{} cannot accept a connection now: {}", listener_.address,
                  std::generic_category().message(errno));
      return false;
    }
    const int yes = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    idle.push_back(std::make_unique<Connection>(std::move(socket), stopping_, limits_));
    ++open_;
  }
  return true;
}

void Acceptor::take_returned(Idle& idle) {
  const std::lock_guard lock(mutex_);
  for (auto& connection : returned_) idle.push_back(std::move(connection));
  returned_.clear();
}

void Acceptor::hand_over(std::unique_ptr<Connection> connection) {
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(connection));
    if (waiting_threads_ < ready_.size() && threads_.size() < max_threads_) {
      try {
        threads_.emplace_back([this] { serve_loop(); });
      } catch (const std::system_error& error) {
        // The existing threads continue to serve. If there are none, the next connection retries.
        log_warning("an HTTP server with {} threads cannot start another thread: {}",
                    threads_.size(), error.what());
      }
    }
  }
  ready_filled_.notify_one();
}

void Acceptor::serve_loop() {
  for (;;) {
    std::unique_ptr<Connection> connection;
    {
      std::unique_lock lock(mutex_);
      ++waiting_threads_;
      ready_filled_.wait(lock, [this] { return stopping_ || !ready_.empty(); });
      --waiting_threads_;
      if (stopping_) return;
      connection = std::move(ready_.front());
      ready_.pop_front();
    }
    if (!serve_(*connection)) {
      connection.reset();
      --open_;
      continue;
    }
    connection->idle_since = now();
    {
      const std::lock_guard lock(mutex_);
      returned_.push_back(std::move(connection));
    }
    wake();
  }
}

}  // namespace wsync::http
