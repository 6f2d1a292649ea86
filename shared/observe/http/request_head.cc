#include "shared/observe/http/request_head.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "shared/base/format.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

constexpr std::size_t kMaxMethodBytes = 16;
constexpr std::string_view kNoHttp11 = "the request is not valid HTTP/1.1";
constexpr std::array<std::string_view, 9> kMethods = {
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"};

RequestHead refused(int status, std::string sentence) {
  RequestHead head;
  head.state = RequestHead::State::kRefused;
  head.status = status;
  head.sentence = std::move(sentence);
  return head;
}

// Methods are upper-case letters. This rejects other protocols, such as TLS, at their first bytes.
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

// A percent sign that two hexadecimal digits do not follow is kept as it is.
std::string decoded(std::string_view text, bool plus_is_blank) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += plus_is_blank && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

void read_query(std::string_view query, Request& request) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    const std::size_t equals = std::min(pair.find('='), pair.size());
    if (!pair.empty())
      request.parameters.emplace_back(
          decoded(pair.substr(0, equals), true),
          decoded(pair.substr(std::min(equals + 1, pair.size())), true));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
}

// Parses "GET /path?query HTTP/1.1". Returns false for any other line.
bool read_request_line(std::string_view line, Request& request) {
  const std::size_t method_end = line.find(' ');
  const std::size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end <= method_end + 1) return false;
  const std::string_view method = line.substr(0, method_end);
  const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const std::string_view version = line.substr(target_end + 1);
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '\x7F';
  };
  if (std::find(kMethods.begin(), kMethods.end(), method) == kMethods.end() ||
      (version != "HTTP/1.1" && version != "HTTP/1.0") ||
      std::any_of(target.begin(), target.end(), is_control))
    return false;
  const std::size_t path_end = std::min(target.find('?'), target.size());
  const std::string_view query = target.substr(std::min(path_end + 1, target.size()));
  if (query.find('?') != std::string_view::npos) return false;
  request.method = method;
  request.http_1_0 = version == "HTTP/1.0";
  request.path = decoded(target.substr(0, path_end), false);
  read_query(query, request);
  return true;
}

// Applies the headers one by one.
class HeaderReader {
 public:
  // Returns false if `head` is refused.
  bool add(std::string_view line, RequestHead& head) {
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
    if (same_word(name, "Content-Length") && !set_length(value, head)) return false;
    if (same_word(name, "Transfer-Encoding") && !set_transfer(value, head)) return false;
    if (same_word(name, "Content-Encoding") && !same_word(value, "identity"))
      return refuse(head, 415,
                    fmt::format("Content-Encoding is {}; expected a body without Content-Encoding",
                                quote_text(value)));
    if (same_word(name, "Expect") && same_word(value, "100-continue")) head.expects_continue = true;
    if (same_word(name, "Connection") && same_word(value, "close")) head.keeps_open = false;
    head.request.headers.emplace_back(name, value);
    return true;
  }

 private:
  static bool refuse(RequestHead& head, int status, std::string sentence) {
    head = refused(status, std::move(sentence));
    return false;
  }
  bool set_length(std::string_view value, RequestHead& head) {
    const auto length = whole_number(value);
    if (!length || framed_)
      return refuse(
          head, 400,
          fmt::format("Content-Length is {}{}; expected one whole number and no Transfer-Encoding",
                      quote_text(value),
                      framed_ ? ", and the request has another length header" : ""));
    framed_ = true;
    head.body = BodyKind::kSized;
    head.body_bytes = *length;
    return true;
  }
  bool set_transfer(std::string_view value, RequestHead& head) {
    if (!same_word(value, "chunked"))
      return refuse(head, 501,
                    fmt::format("Transfer-Encoding is {}; expected chunked", quote_text(value)));
    if (framed_)
      return refuse(head, 400,
                    "Transfer-Encoding is given twice or together with Content-Length; expected "
                    "only one of these headers");
    framed_ = true;
    head.body = BodyKind::kChunked;
    return true;
  }

  bool framed_ = false;  // the length of the body is known
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
    return refused(
        400,
        "this is not an HTTP request; expected a request line such as \"GET /health HTTP/1.1\"");
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
    if (first && !read_request_line(line, head.request))
      return refused(400, std::string(kNoHttp11));
    if (!first && !reader.add(line, head)) return head;
  }
  if (head.request.http_1_0) head.keeps_open = false;
  return head;
}

}  // namespace wsync::http
