// Small helpers shared by the JSON readers and writers of this folder.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync {

// Text from a file, made fit for a one-line sentence: quoted, control characters as \xNN, cut after
// 200 bytes.
[[nodiscard]] std::string quote_text(std::string_view text);

// The text as a JSON string with its quotes. kInvalidInput when it is not UTF-8.
[[nodiscard]] Result<std::string> json_string(std::string_view text);

// Refuses what the JSON library would let pass: a byte order mark, and NUL (taken for the end).
[[nodiscard]] Result<> check_json_text(std::span<const std::byte> text);

}  // namespace wsync
