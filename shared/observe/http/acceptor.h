// Acceptor: accepts connections, polls all idle ones on one thread, and hands each connection with
// data to read to a worker thread.
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

// Thread: the owner calls start(). Any thread may call stop(), except the threads of this object.
class Acceptor {
 public:
  // Serves all requests that have arrived on the connection. Returns false if the connection has
  // ended.
  using Serve = std::function<bool(Connection&)>;

  // `threads`: maximum number of connections served at once; others wait. Threads are created on
  // demand.
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> create(Listener listener,
                                                                std::size_t threads, Serve serve,
                                                                const ServerLimits& limits = {});
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return listener_.port; }
  [[nodiscard]] const std::string& address() const noexcept { return listener_.address; }
  void start();
  // Stops accepting, closes connections that are idle or queued, and returns when all active calls
  // of `serve` have returned. They can check Connection::stopping().
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
  std::atomic<std::size_t> open_{0};  // idle connections and those in use by threads
  std::atomic<bool> stopping_{false};
  std::mutex stop_mutex_;  // serializes calls of stop()
  std::thread accepting_;

  std::mutex mutex_;  // protects the fields below
  std::condition_variable ready_filled_;
  std::deque<std::unique_ptr<Connection>> ready_;  // connections with data to read
  Idle returned_;
  std::size_t waiting_threads_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace wsync::http
