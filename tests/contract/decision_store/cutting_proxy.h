// A proxy between a store and its etcd, which does what networks do: it loses the answers to
// transactions, or holds back a transaction until long after its sender has given it up.
#pragma once

#include <atomic>
#include <cstring>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "tests/contract/decision_store/etcd_process.h"

namespace wsync::coordinator::etcd {

class CuttingProxy {
 public:
  explicit CuttingProxy(std::uint16_t etcd_port) : etcd_port_(etcd_port) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    WSYNC_CHECK(::bind(listener_.get(), at, size) == 0 && ::listen(listener_.get(), 16) == 0 &&
                    ::getsockname(listener_.get(), at, &size) == 0,
                "a proxy listens");
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~CuttingProxy() {
    stops_ = true;
    accepting_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  [[nodiscard]] std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  // The answers to so many of the next transactions are lost; etcd has done them.
  void lose_answers(int count) { to_lose_ = count; }
  // The next transaction waits here, and its sender hears nothing of it.
  void hold_next() { holds_ = true; }
  [[nodiscard]] bool has_held() {
    const std::lock_guard lock(mutex_);
    return !held_.empty();
  }
  // Transactions are answered with this HTTP answer from now on; empty: by etcd again. `is_done`:
  // etcd does the first of them before, and it hears of none of the others.
  void answer_instead(std::string answer, bool is_done) {
    const std::lock_guard lock(mutex_);
    instead_ = std::move(answer);
    does_first_ = is_done;
  }
  // Sends the held transaction to etcd now, and returns etcd's answer.
  [[nodiscard]] std::string release() {
    std::string request;
    {
      const std::lock_guard lock(mutex_);
      request = std::move(held_);
      held_.clear();
    }
    const UniqueFd etcd = connect();
    return exchange(etcd.get(), request);
  }

 private:
  void accept_all() {
    while (!stops_) {
      pollfd entry{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 20) <= 0) continue;
      threads_.emplace_back([this, client = ::accept4(listener_.get(), nullptr, nullptr,
                                                      SOCK_CLOEXEC)] { serve(UniqueFd(client)); });
    }
  }
  void serve(UniqueFd client) {
    const UniqueFd etcd = connect();
    for (;;) {
      const std::string request = read_message(client.get());
      if (request.empty()) return;
      const bool is_transaction = request.find("/v3/kv/txn") != std::string::npos;
      if (is_transaction && holds_.exchange(false)) {
        {
          const std::lock_guard lock(mutex_);
          held_ = request;
        }
        (void)read_message(client.get());  // until the sender gives up
        return;
      }
      if (is_transaction && to_lose_ > 0) {
        (void)exchange(etcd.get(), request);
        --to_lose_;
        return;
      }
      std::string instead;
      bool is_done = true;
      if (is_transaction) {
        const std::lock_guard lock(mutex_);
        instead = instead_;
        is_done = instead.empty() || std::exchange(does_first_, false);
      }
      std::string answer = is_done ? exchange(etcd.get(), request) : std::string();
      if (!instead.empty()) answer = instead;
      if (answer.empty() || !send_all(client.get(), answer)) return;
    }
  }
  std::string exchange(int etcd, const std::string& request) {
    return send_all(etcd, request) ? read_message(etcd) : std::string();
  }
  [[nodiscard]] UniqueFd connect() const {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(etcd_port_);
    (void)::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    return socket;
  }
  static bool send_all(int socket, const std::string& text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t n = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<std::size_t>(n);
    }
    return true;
  }
  // A request or response with Content-Length; empty when the other end has gone.
  std::string read_message(int socket) const {
    std::string text;
    std::size_t whole = std::string::npos;
    while (text.size() < whole && !stops_) {
      pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 20) <= 0) continue;
      char buffer[4096];
      const ssize_t n = ::recv(socket, buffer, sizeof buffer, 0);
      if (n <= 0) return {};
      text.append(buffer, static_cast<std::size_t>(n));
      const std::size_t head = text.find("\r\n\r\n");
      if (whole != std::string::npos || head == std::string::npos) continue;
      const std::size_t length = text.find("Content-Length: ");
      const std::size_t body =
          length < head ? std::stoul(text.substr(length + std::strlen("Content-Length: "))) : 0;
      whole = head + 4 + body;
    }
    return stops_ ? std::string() : text;
  }

  const std::uint16_t etcd_port_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stops_{false};
  std::atomic<int> to_lose_{0};
  std::atomic<bool> holds_{false};
  std::mutex mutex_;
  std::string held_;
  std::string instead_;
  bool does_first_ = false;
  std::thread accepting_;
  std::vector<std::thread> threads_;  // of accepting_, until that has ended
};

}  // namespace wsync::coordinator::etcd
