#include "shared/observe/http/http_message.h"

#include <algorithm>
#include <charconv>
#include <strings.h>

namespace wsync::http {
namespace {

std::optional<std::string> first_of(const NamedValues& values, std::string_view name,
                                    bool any_case) {
  for (const auto& [found, value] : values)
    if (any_case ? same_word(found, name) : found == name) return value;
  return std::nullopt;
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::optional<std::uint64_t> whole_number(std::string_view text) noexcept {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

std::string_view reason_phrase(int status) noexcept {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

std::size_t Request::count_headers(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(
      headers.begin(), headers.end(), [&](const auto& h) { return same_word(h.first, name); }));
}

std::optional<std::string> Request::header(std::string_view name) const {
  return first_of(headers, name, true);
}

std::optional<std::string> Request::parameter(std::string_view name) const {
  return first_of(parameters, name, false);
}

void Response::set_header(std::string_view name, std::string value) {
  std::erase_if(headers, [&](const auto& header) { return same_word(header.first, name); });
  headers.emplace_back(name, std::move(value));
}

bool Response::has_header(std::string_view name) const {
  return first_of(headers, name, true).has_value();
}

void Response::set_content(std::string content, std::string_view content_type) {
  body = std::move(content);
  type = content_type;
}

}  // namespace wsync::http
