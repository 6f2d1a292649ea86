#include "shared/observe/trace/json_quote.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace wsync::trace {
namespace {

bool plain(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

}  // namespace

std::string json_quoted(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), plain)) return '"' + std::string(text) + '"';
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace wsync::trace
