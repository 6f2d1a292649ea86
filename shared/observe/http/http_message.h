// HTTP requests and responses as handlers see them, and helpers that server and client share.
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

// Compares header names or keyword values, ignoring case.
[[nodiscard]] bool same_word(std::string_view a, std::string_view b) noexcept;
// Removes leading and trailing spaces and tabs.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;
// Parses all of the text as an unsigned decimal number.
[[nodiscard]] std::optional<std::uint64_t> whole_number(std::string_view text) noexcept;
// Returns the reason phrase of a status line, such as "Not Found".
[[nodiscard]] std::string_view reason_phrase(int status) noexcept;

struct Request {
  std::string method;      // "GET"
  std::string path;        // decoded path, without the query
  NamedValues parameters;  // decoded query parameters
  NamedValues headers;     // in received order
  // The client supports neither chunks nor persistent connections.
  bool http_1_0 = false;

  [[nodiscard]] std::size_t count_headers(std::string_view name) const;
  // Returns the first header with this name.
  [[nodiscard]] std::optional<std::string> header(std::string_view name) const;
  // Returns the first query parameter with this name.
  [[nodiscard]] std::optional<std::string> parameter(std::string_view name) const;
};

// Sends a part of the body. Returns false if the client disconnected, accepts no bytes, or the
// server is stopping.
using SendPiece = std::function<bool(std::string_view piece)>;

struct Response {
  int status = 200;
  NamedValues headers;
  std::string type;  // Content-Type
  std::string body;
  // If set, the server calls it once instead of sending `body`. It sends the body in parts and
  // returns whether the body is complete.
  std::function<bool(const SendPiece&)> stream;

  // Sets a header, replacing one with the same name.
  void set_header(std::string_view name, std::string value);
  [[nodiscard]] bool has_header(std::string_view name) const;
  void set_content(std::string content, std::string_view content_type);
};

}  // namespace wsync::http
