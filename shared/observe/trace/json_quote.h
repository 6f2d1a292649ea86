// A JSON string literal of any bytes.
#pragma once

#include <string>
#include <string_view>

namespace wsync::trace {

// With its quotes. Bytes that are no UTF-8 become U+FFFD, so that the text around them stays JSON.
[[nodiscard]] std::string json_quoted(std::string_view text);

}  // namespace wsync::trace
