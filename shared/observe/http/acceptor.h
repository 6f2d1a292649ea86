// Acceptor: takes connections in, waits on the idle ones in one place, and gives a thread to those
// that have something to say.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shared/observe/http/connection.h"
#include "shared/observe/http/listener.h"

namespace wsync::http {

// Thread: start() its owner's, stop() any but those that it makes.
class Acceptor {
 public:
  // Answers the requests that are there. False: the connection has ended.
  using Serve = std::function<bool(Connection&)>;

  // `threads`: connections that are served at once; the others wait for one. Threads are made when
  // they are needed.
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> create(Listener listener,
                                                                std::size_t threads, Serve serve,
                                                                const ServerLimits& limits = {});
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return listener_.port; }
  [[nodiscard]] const std::string& address() const noexcept { return listener_.address; }
  void start();
  // Takes in no more, drops what is idle or has not been begun, and returns when all that is served
  // has ended: `serve` sees Connection::stopping().
  void stop();

 private:
  using Idle = std::vector<std::unique_ptr<Connection>>;
  Acceptor(Listener listener, UniqueFd wake, std::size_t threads, Serve serve,
           const ServerLimits& limits);

  void accept_loop();
  void wait_once(Idle& idle, bool accepting);
  bool accept_all(Idle& idle);
  void take_returned(Idle& idle);
  void hand_over(std::unique_ptr<Connection> connection);
  void serve_loop();
  void wake();

  Listener listener_;
  UniqueFd wake_;  // eventfd
  std::size_t max_threads_;
  Serve serve_;
  const ServerLimits limits_;
  std::atomic<std::size_t> open_{0};  // connections: idle ones, and those that threads have
  std::atomic<bool> stopping_{false};
  std::mutex stop_mutex_;  // one stop() at a time
  std::thread accepting_;

  std::mutex mutex_;  // of what follows
  std::condition_variable ready_filled_;
  std::deque<std::unique_ptr<Connection>> ready_;  // with something to read
  Idle returned_;
  std::size_t waiting_threads_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace wsync::http
