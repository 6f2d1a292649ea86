// TamperProxy: somebody between a receiver and a source, who passes their TLS records on and
// changes what it was told to change.
#pragma once

#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <cstdint>
#include <gtest/gtest.h>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/tcp_address.h"
#include "shared/base/unique_fd.h"

namespace wsync::transport {

enum class Tamper : std::uint8_t { kNothing, kFlip, kDrop, kRepeat, kReorder };
enum class Way : std::uint8_t { kToSource, kToReceiver };

struct TamperPlan {
  Tamper what = Tamper::kNothing;
  Way way = Way::kToReceiver;
  std::size_t record = 3;  // of those with encrypted contents on that way, of each connection
};

inline UniqueFd connect_to(const std::string& address) {
  const sockaddr_storage where = parse_tcp_address(address)->numeric().value();
  UniqueFd fd(::socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(sockaddr_in)), 0);
  return fd;
}

class TamperProxy {
 public:
  TamperProxy(std::string source, TamperPlan plan) : source_(std::move(source)), plan_(plan) {
    sockaddr_storage where = TcpAddress{"127.0.0.1", 0}.numeric().value();
    socklen_t length = sizeof(sockaddr_in);
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&where), length), 0);
    EXPECT_EQ(::listen(listening_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&where), &length), 0);
    address_.port = ntohs(reinterpret_cast<sockaddr_in*>(&where)->sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~TamperProxy() {
    thread_.request_stop();
    ::shutdown(listening_.get(), SHUT_RDWR);
  }
  TamperProxy(const TamperProxy&) = delete;
  TamperProxy& operator=(const TamperProxy&) = delete;

  [[nodiscard]] std::string address() const { return address_.to_string(); }
  [[nodiscard]] std::size_t tampered() const { return tampered_; }
  // Bytes that have passed towards the receiver.
  [[nodiscard]] std::size_t passed() const { return passed_; }
  // What the first receiver has sent first. Call it when the transfer has ended.
  [[nodiscard]] const Bytes& first_sent() const { return first_sent_; }

 private:
  static constexpr std::size_t kHeaderBytes = 5;
  static constexpr std::byte kEncrypted{23};

  struct Pipe {
    Way way;
    UniqueFd* from;
    UniqueFd* to;
    Bytes arrived;
    std::size_t records = 0;
    std::optional<Bytes> kept;  // to be sent after the next one
  };
  struct Pair {
    UniqueFd receiver;
    UniqueFd source;
    Pipe there{Way::kToSource, &receiver, &source, {}, 0, std::nullopt};
    Pipe back{Way::kToReceiver, &source, &receiver, {}, 0, std::nullopt};
  };

  static void send_all(int fd, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }

  void pass(Pipe& pipe, Bytes record) {
    const bool is_chosen = record.front() == kEncrypted && pipe.way == plan_.way &&
                           plan_.what != Tamper::kNothing && pipe.records++ == plan_.record;
    if (pipe.way == Way::kToReceiver) passed_ += record.size();
    if (is_chosen) ++tampered_;
    if (is_chosen && plan_.what == Tamper::kDrop) return;
    if (is_chosen && plan_.what == Tamper::kReorder) {
      pipe.kept = std::move(record);
      return;
    }
    if (is_chosen && plan_.what == Tamper::kFlip) record[kHeaderBytes] ^= std::byte{1};
    send_all(pipe.to->get(), record);
    if (is_chosen && plan_.what == Tamper::kRepeat) send_all(pipe.to->get(), record);
    if (pipe.kept) send_all(pipe.to->get(), *std::exchange(pipe.kept, std::nullopt));
  }

  // Returns false if the sender has closed.
  bool forward(Pipe& pipe) {
    std::array<std::byte, 65536> buffer;
    const ssize_t n = ::recv(pipe.from->get(), buffer.data(), buffer.size(), 0);
    if (n <= 0) return false;
    pipe.arrived.insert(pipe.arrived.end(), buffer.begin(), buffer.begin() + n);
    if (pipe.way == Way::kToSource && first_sent_.empty()) first_sent_ = pipe.arrived;
    while (pipe.arrived.size() >= kHeaderBytes) {
      const std::size_t bytes = kHeaderBytes +
                                (std::to_integer<std::size_t>(pipe.arrived[3]) << 8U) +
                                std::to_integer<std::size_t>(pipe.arrived[4]);
      if (pipe.arrived.size() < bytes) break;
      const auto end = pipe.arrived.begin() + static_cast<std::ptrdiff_t>(bytes);
      pass(pipe, Bytes(pipe.arrived.begin(), end));
      pipe.arrived.erase(pipe.arrived.begin(), end);
    }
    return true;
  }

  void run(const std::stop_token& stop) {
    std::vector<std::unique_ptr<Pair>> pairs;
    while (!stop.stop_requested()) {
      std::vector<pollfd> waiting{{.fd = listening_.get(), .events = POLLIN, .revents = 0}};
      for (const auto& pair : pairs)
        for (const UniqueFd* fd : {&pair->receiver, &pair->source})
          waiting.push_back({.fd = fd->get(), .events = POLLIN, .revents = 0});
      if (::poll(waiting.data(), waiting.size(), 100) <= 0) continue;
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        Pair& pair = *pairs[i];
        const bool there = waiting[1 + 2 * i].revents == 0 || forward(pair.there);
        const bool back = waiting[2 + 2 * i].revents == 0 || forward(pair.back);
        if (!there || !back) pairs[i] = nullptr;
      }
      std::erase(pairs, nullptr);
      if (waiting[0].revents == 0) continue;
      auto pair = std::make_unique<Pair>();
      pair->receiver = UniqueFd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!pair->receiver.valid()) return;
      pair->source = connect_to(source_);
      pairs.push_back(std::move(pair));
    }
  }

  const std::string source_;
  const TamperPlan plan_;
  TcpAddress address_{"127.0.0.1", 0};
  UniqueFd listening_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::atomic<std::size_t> tampered_{0};
  std::atomic<std::size_t> passed_{0};
  Bytes first_sent_;
  std::jthread thread_;
};

}  // namespace wsync::transport
