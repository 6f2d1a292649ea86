// The head of an HTTP request: whether it is complete, what it asks for, how long its body is, and
// what is refused at once. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/observe/http/http_message.h"

namespace wsync::http {

inline constexpr std::size_t kMaxHeadBytes = 16 * 1024;  // request line and all headers
inline constexpr std::size_t kMaxHeadLineBytes = 8000;   // one of them

enum class BodyKind : std::uint8_t { kNone, kSized, kChunked };

struct RequestHead {
  enum class State : std::uint8_t {
    kPartial,  // more has to come; nothing else is set
    kWhole,
    kRefused,  // `status` and `sentence` say why; the connection cannot be used any further
  };
  State state = State::kPartial;

  std::size_t bytes = 0;  // of what was received, up to the first byte of the body
  Request request;
  BodyKind body = BodyKind::kNone;
  std::uint64_t body_bytes = 0;   // kSized
  bool expects_continue = false;  // the client sends the body when it is told to
  bool keeps_open = true;         // the client may send another request on this connection

  int status = 0;
  std::string sentence;
};

// What `received` begins with. Blank lines before a request are skipped.
[[nodiscard]] RequestHead examine_head(std::string_view received);

}  // namespace wsync::http
