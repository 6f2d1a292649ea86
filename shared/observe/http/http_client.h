// HttpClient: sends requests to one server over a persistent connection. Each request has a
// deadline and a response limit, and another thread can cancel it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/observe/http/client_stream.h"
#include "shared/observe/http/dial.h"

namespace wsync::http {

inline constexpr std::size_t kMaxResponseHeadBytes = 16 * limits::kKiB;
inline constexpr std::size_t kMaxStatusLineBytes = 256;

struct ClientRequest {
  std::string path;             // with the query
  std::string body;             // JSON; empty: GET, otherwise POST
  std::uint64_t max_bytes = 0;  // limit for the response with its head
  TimePoint deadline{};         // for the whole request with connecting
};

struct ClientResponse {
  int status = 0;
  std::string body;
};

// Thread: one at a time. Any thread may call cancel().
class HttpClient {
 public:
  // kResourceExhausted: no descriptor is available for cancel().
  [[nodiscard]] static Result<std::unique_ptr<HttpClient>> create(Endpoint endpoint);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends a request and returns the response, whatever its status is. If a persistent connection
  // turns out to be closed, reconnects once. Errors: kPeerLost if nothing listens or the peer
  // disconnects; kRefused of ClientStream::open(); kDeadline; kCancelled; kInvalidInput if the
  // response is not HTTP or exceeds the limit. Closes the connection after an error.
  [[nodiscard]] Result<ClientResponse> ask(const ClientRequest& request);
  // After an error of ask(): whether the server may have received the request, so that it may have
  // done what was asked.
  [[nodiscard]] bool was_sent() const noexcept { return was_sent_; }
  // Whether the last request was sent twice, because a kept connection ended under the first one:
  // the server may have done what was asked before it answered.
  [[nodiscard]] bool was_repeated() const noexcept { return was_repeated_; }
  // Ends the current request and every later one with kCancelled.
  void cancel() noexcept;

 private:
  HttpClient(Endpoint endpoint, UniqueFd cancelled);
  [[nodiscard]] Result<ClientResponse> ask_once(const ClientRequest& request, bool& answered);
  [[nodiscard]] std::string text_of(const ClientRequest& request) const;

  Endpoint endpoint_;
  UniqueFd cancelled_;   // eventfd
  ClientStream stream_;  // reusable connection of the last request
  bool was_sent_ = false;
  bool was_repeated_ = false;
};

}  // namespace wsync::http
