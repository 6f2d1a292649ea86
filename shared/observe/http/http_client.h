// HttpClient: requests to one server over a connection that is kept, each with a deadline, a limit
// on its response and a way to end it from another thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/observe/http/dial.h"

namespace wsync::http {

inline constexpr std::size_t kMaxResponseHeadBytes = 16 * limits::kKiB;
inline constexpr std::size_t kMaxStatusLineBytes = 256;

struct ClientRequest {
  std::string path;             // with its query
  std::string body;             // JSON; empty: a GET, otherwise a POST
  std::uint64_t max_bytes = 0;  // of the response, its head included
  TimePoint deadline{};         // for all of it, the connection included
};

struct ClientResponse {
  int status = 0;
  std::string body;
};

// Thread: one at a time; cancel() from any.
class HttpClient {
 public:
  // kResourceExhausted: there is no descriptor for cancel().
  [[nodiscard]] static Result<std::unique_ptr<HttpClient>> create(Endpoint endpoint);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is a response. A connection that was kept and turns out to be closed is made anew
  // once. kPeerLost: nobody listens, or hangs up; kDeadline; kCancelled; kInvalidInput: it is not
  // HTTP, or longer than the limit. After an error the connection is closed.
  [[nodiscard]] Result<ClientResponse> ask(const ClientRequest& request);
  // Ends a request that runs, and every later one, with kCancelled.
  void cancel() noexcept;

 private:
  HttpClient(Endpoint endpoint, UniqueFd cancelled);
  [[nodiscard]] Result<ClientResponse> ask_once(const ClientRequest& request, bool& answered);
  [[nodiscard]] std::string text_of(const ClientRequest& request) const;

  Endpoint endpoint_;
  UniqueFd cancelled_;  // eventfd
  UniqueFd socket_;     // of the last request, if it can be used again
};

}  // namespace wsync::http
