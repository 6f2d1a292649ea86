// The head of an HTTP request, looked at before a parser is given it: whether it is whole, how long
// its body is, and what is refused at once. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wsync::http {

inline constexpr std::size_t kMaxHeadBytes = 16 * 1024;  // request line and all headers
inline constexpr std::size_t kMaxHeadLineBytes = 8000;   // one of them; the parser takes 8192

enum class BodyKind : std::uint8_t { kNone, kSized, kChunked };

struct RequestHead {
  enum class State : std::uint8_t {
    kPartial,  // more has to come; nothing else is set
    kWhole,
    kRefused,  // `status` and `sentence` say why; the connection is of no more use
  };
  State state = State::kPartial;

  std::size_t bytes = 0;  // of what was received, up to the first byte of the body
  // The head for the parser. Headers that ask for a part of an answer or for another coding of it
  // are left out: answers are whole and plain.
  std::string text;
  BodyKind body = BodyKind::kNone;
  std::uint64_t body_bytes = 0;  // kSized

  int status = 0;
  std::string sentence;
};

// What `received` begins with. Blank lines before a request are skipped.
[[nodiscard]] RequestHead examine_head(std::string_view received);

}  // namespace wsync::http
