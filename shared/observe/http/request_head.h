// Parses the head of an HTTP request: whether it is complete, what it requests, how long its body
// is, and whether it must be refused. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/observe/http/http_message.h"

namespace wsync::http {

inline constexpr std::size_t kMaxHeadBytes = 16 * 1024;  // request line and all headers
inline constexpr std::size_t kMaxHeadLineBytes = 8000;   // one line of the head

enum class BodyKind : std::uint8_t { kNone, kSized, kChunked };

struct RequestHead {
  enum class State : std::uint8_t {
    kPartial,  // incomplete; no other field is set
    kWhole,
    kRefused,  // `status` and `sentence` hold the reason; the connection must close
  };
  State state = State::kPartial;

  std::size_t bytes = 0;  // size of the head
  Request request;
  BodyKind body = BodyKind::kNone;
  std::uint64_t body_bytes = 0;   // if kSized
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
  bool keeps_open = true;         // the connection may carry another request

  int status = 0;
  std::string sentence;
};

// Parses the head at the start of `received`. Skips blank lines before a request.
[[nodiscard]] RequestHead examine_head(std::string_view received);

}  // namespace wsync::http
