// HttpExchange: requests to one server over a connection that is kept, each with a deadline, a
// limit on its answer and a way to end it from another thread. The only file that knows the HTTP
// library is http_exchange.cc; it writes requests and reads answers, and never touches a socket.
// (Its own client has a time for each read but none for the whole, cannot be ended while it looks a
// name up or connects, and takes heads of any length.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "trainer_side/rollout/dial.h"

namespace wsync::rollout {

inline constexpr std::size_t kAnswerHeadBytes = 16 * limits::kKiB;
inline constexpr std::size_t kStatusLineBytes = 256;

struct HttpAnswer {
  int status = 0;
  std::string body;
};

struct HttpQuestion {
  std::string path;
  std::string body;              // JSON; empty: a GET, otherwise a POST
  std::uint64_t most_bytes = 0;  // of the answer, its head included
  TimePoint deadline{};          // for all of it, the connection included
};

// Thread: one at a time; cancel() from any.
class HttpExchange {
 public:
  // kResourceExhausted: there is no descriptor for cancel().
  [[nodiscard]] static Result<std::unique_ptr<HttpExchange>> create(Endpoint endpoint);
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  // Any status is an answer. A connection that was kept and turns out to be closed is made anew
  // once. kPeerLost: nobody listens, or hangs up; kDeadline; kCancelled; kInvalidInput: it is not
  // HTTP, or longer than the limit. After an error the connection is gone.
  [[nodiscard]] Result<HttpAnswer> ask(const HttpQuestion& question);
  // Ends a question that runs, and every later one, with kCancelled.
  void cancel() noexcept;

 private:
  class Protocol;
  class Wire;
  HttpExchange(Endpoint endpoint, UniqueFd cancelled);
  [[nodiscard]] Result<HttpAnswer> ask_once(const HttpQuestion& question, bool& answered);

  Endpoint endpoint_;
  UniqueFd cancelled_;  // eventfd
  UniqueFd socket_;     // of the last question, if it can be used again
};

}  // namespace wsync::rollout
