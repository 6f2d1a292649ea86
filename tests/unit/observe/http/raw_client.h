// A client that sends what it is told to, be it HTTP or not.
#pragma once

#include <arpa/inet.h>
#include <array>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>

#include "shared/base/unique_fd.h"

namespace wsync::engine::http::test {

class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval longest{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  // Stops without a failure when the server has closed.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void end_sending() { ::shutdown(socket_.get(), SHUT_WR); }
  void close() { socket_.reset(); }

  // All that has come, at least until `mark` is in it or the server has closed.
  const std::string& read_until(std::string_view mark) {
    while (got_.find(mark) == std::string::npos && receive()) {
    }
    EXPECT_NE(got_.find(mark), std::string::npos) << got_;
    return got_;
  }
  const std::string& read_all() {
    while (receive()) {
    }
    return got_;
  }

 private:
  bool receive() {
    std::array<char, 4096> bytes{};
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (n > 0) got_.append(bytes.data(), static_cast<std::size_t>(n));
    return n > 0;
  }

  UniqueFd socket_;
  std::string got_;
};

}  // namespace wsync::engine::http::test
