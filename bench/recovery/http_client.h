// HttpClient: one connection to an engine of this host, kept from request to request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::bench {

inline constexpr std::size_t kReplyHeadBytes = 64U << 10U;
inline constexpr std::size_t kReplyBodyBytes = 16U << 20U;

struct HttpReply {
  unsigned status = 0;
  std::string body;
};

// Thread: one request at a time; cancel() from any thread.
class HttpClient {
 public:
  // To 127.0.0.1. kPeerLost when nobody listens there.
  [[nodiscard]] static Result<std::unique_ptr<HttpClient>> connect(std::uint16_t port);

  // Posts JSON and reads the whole answer (HTTP/1.1 with Content-Length). kPeerLost when the
  // connection ends before that, kDeadline, kInvalidInput for what is no such answer or is larger
  // than the limits above. After an error the connection is of no use.
  [[nodiscard]] Result<HttpReply> post(std::string_view path, std::string_view json,
                                       TimePoint deadline);
  // Ends a request that waits, and every later one, with kPeerLost.
  void cancel() noexcept;

 private:
  explicit HttpClient(UniqueFd socket) : socket_(std::move(socket)) {}
  [[nodiscard]] Result<> wait_for(short events, TimePoint deadline) const;
  [[nodiscard]] Result<> send_all(std::string_view text, TimePoint deadline);
  [[nodiscard]] Result<> receive_more(TimePoint deadline);

  UniqueFd socket_;
  std::string received_;  // not used yet
};

}  // namespace wsync::bench
