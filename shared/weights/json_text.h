// Small helpers that the JSON readers and writers of this folder share.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync {

// Converts text from a file for a one-line sentence: quoted, control characters as \xNN, truncated
// after 200 bytes.
[[nodiscard]] std::string quote_text(std::string_view text);

// Returns the text as a JSON string with its quotes. kInvalidInput if it is not UTF-8.
[[nodiscard]] Result<std::string> json_string(std::string_view text);

// Rejects input that the JSON library would accept: a byte order mark, and NUL, which it treats as
// the end.
[[nodiscard]] Result<> check_json_text(std::span<const std::byte> text);

}  // namespace wsync
