#include "shared/observe/http/request_head.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <strings.h>

#include "shared/base/format.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

constexpr std::size_t kMaxMethodBytes = 16;
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

RequestHead refused(int status, std::string sentence) {
  RequestHead head;
  head.state = RequestHead::State::kRefused;
  head.status = status;
  head.sentence = std::move(sentence);
  return head;
}

// A method is capital letters; anything else, such as TLS, is told by its first bytes.
bool may_be_method(std::string_view text) {
  for (std::size_t i = 0; i < std::min(text.size(), kMaxMethodBytes + 1); ++i) {
    if (i > 0 && text[i] == ' ') return true;
    if (text[i] < 'A' || text[i] > 'Z') return false;
  }
  return text.size() <= kMaxMethodBytes;
}

bool is_name(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

// Takes the headers one by one.
class HeaderReader {
 public:
  // False: `head` is refused.
  bool take(std::string_view line, RequestHead& head) {
    if (line.size() > kMaxHeadLineBytes)
      return refuse(head, 431,
                    fmt::format("a header line is longer than {} bytes: {}", kMaxHeadLineBytes,
                                quote_text(line)));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_name(line.substr(0, colon)))
      return refuse(head, 400,
                    fmt::format("the header line {} has no name; expected \"Name: value\"",
                                quote_text(line)));
    if (line.find_first_of(std::string_view("\0\r\n", 3)) != std::string_view::npos)
      return refuse(
          head, 400,
          fmt::format("the header line {} has a NUL, a CR or a LF inside", quote_text(line)));
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (same_name(name, "Range") || same_name(name, "Accept-Encoding")) return true;
    if (same_name(name, "Content-Length") && !take_length(value, head)) return false;
    if (same_name(name, "Transfer-Encoding") && !take_transfer(value, head)) return false;
    if (same_name(name, "Content-Encoding") && !same_name(value, "identity"))
      return refuse(
          head, 415,
          fmt::format("Content-Encoding is {}; expected a body without one", quote_text(value)));
    head.text.append(line).append(kLineEnd);
    return true;
  }

 private:
  static bool refuse(RequestHead& head, int status, std::string sentence) {
    head = refused(status, std::move(sentence));
    return false;
  }
  bool take_length(std::string_view value, RequestHead& head) {
    const auto length = whole_number(value);
    if (!length || framed_)
      return refuse(head, 400,
                    fmt::format("Content-Length is {}{}; expected one whole number, and no "
                                "Transfer-Encoding beside it",
                                quote_text(value), framed_ ? ", and not the only one" : ""));
    framed_ = true;
    head.body = BodyKind::kSized;
    head.body_bytes = *length;
    return true;
  }
  bool take_transfer(std::string_view value, RequestHead& head) {
    if (!same_name(value, "chunked"))
      return refuse(head, 501,
                    fmt::format("Transfer-Encoding is {}; expected chunked", quote_text(value)));
    if (framed_)
      return refuse(head, 400,
                    "Transfer-Encoding is there twice or beside a Content-Length; expected one of "
                    "the two");
    framed_ = true;
    head.body = BodyKind::kChunked;
    return true;
  }

  bool framed_ = false;  // the body's end is known
};

}  // namespace

RequestHead examine_head(std::string_view received) {
  std::size_t begin = 0;
  while (received.substr(begin, 2) == kLineEnd) begin += 2;
  const std::string_view text = received.substr(begin);
  const std::size_t end = text.find(kHeadEnd);
  if (begin + std::min(end, text.size()) > kMaxHeadBytes)
    return refused(431, fmt::format("the request's head is longer than {} bytes", kMaxHeadBytes));
  if (text.empty() || text == "\r") return {};
  if (!may_be_method(text))
    return refused(400,
                   "this is no HTTP request; expected a request line such as \"GET /health "
                   "HTTP/1.1\"");
  const std::size_t line_end = text.find('\n');
  if (line_end != std::string_view::npos && text[line_end - 1] != '\r')
    return refused(400, "the request line ends with a bare LF; expected CR LF");
  if (std::min(line_end, text.size()) > kMaxHeadLineBytes)
    return refused(414, fmt::format("the request line is longer than {} bytes", kMaxHeadLineBytes));
  if (end == std::string_view::npos) return {};
  RequestHead head;
  head.state = RequestHead::State::kWhole;
  head.bytes = begin + end + kHeadEnd.size();
  HeaderReader reader;
  std::string_view left = text.substr(0, end + kLineEnd.size());
  for (bool first = true; !left.empty(); first = false) {
    const std::size_t size = left.find(kLineEnd);
    const std::string_view line = left.substr(0, size);
    left.remove_prefix(size + kLineEnd.size());
    if (first)
      head.text.append(line).append(kLineEnd);
    else if (!reader.take(line, head))
      return head;
  }
  head.text.append(kLineEnd);
  return head;
}

}  // namespace wsync::http
