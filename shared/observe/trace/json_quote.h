// Quotes arbitrary bytes as a JSON string literal.
#pragma once

#include <string>
#include <string_view>

namespace wsync::trace {

// Returns the literal with its quotes. Bytes that are not UTF-8 become U+FFFD, so that the
// surrounding text remains valid JSON.
[[nodiscard]] std::string json_quoted(std::string_view text);

}  // namespace wsync::trace
