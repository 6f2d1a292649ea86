// Requests and responses of HTTP as handlers see them, and what both sides share of the protocol.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wsync::http {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

inline constexpr std::string_view kLineEnd = "\r\n";
inline constexpr std::string_view kHeadEnd = "\r\n\r\n";

// Names of headers, and the values that are words, are the same in any case.
[[nodiscard]] bool same_word(std::string_view a, std::string_view b) noexcept;
// Without the blanks and tabs around it.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;
// All of the text as a decimal number without a sign.
[[nodiscard]] std::optional<std::uint64_t> whole_number(std::string_view text) noexcept;
// The words after the number in a status line, "Not Found".
[[nodiscard]] std::string_view reason_phrase(int status) noexcept;

struct Request {
  std::string method;      // "GET"
  std::string path;        // decoded, without the query
  NamedValues parameters;  // of the query, decoded
  NamedValues headers;     // in their order
  bool http_1_0 = false;   // the client understands neither chunks nor connections that stay open

  [[nodiscard]] std::size_t count_headers(std::string_view name) const;
  // The first header of this name.
  [[nodiscard]] std::optional<std::string> header(std::string_view name) const;
  // The first parameter of this name.
  [[nodiscard]] std::optional<std::string> parameter(std::string_view name) const;
};

// Sends a piece of a body. False: the client has gone, reads nothing, or the server stops.
using SendPiece = std::function<bool(std::string_view piece)>;

struct Response {
  int status = 200;
  NamedValues headers;
  std::string type;  // Content-Type
  std::string body;
  // When set, it is called once instead of sending `body`: it sends the body piece by piece, and
  // returns whether the body is complete.
  std::function<bool(const SendPiece&)> stream;

  // Replaces a header of the same name.
  void set_header(std::string_view name, std::string value);
  [[nodiscard]] bool has_header(std::string_view name) const;
  void set_content(std::string content, std::string_view content_type);
};

}  // namespace wsync::http
