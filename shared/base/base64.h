// Base64 of RFC 4648: bytes as text. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/bytes.h"

namespace wsync {

// Section 4 of the RFC, with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);
// Section 5, the alphabet for names of files and URLs, without padding.
[[nodiscard]] std::string base64url(std::span<const std::byte> bytes);
// The bytes of a text of base64(); std::nullopt for any other text, such as one that is cut off.
[[nodiscard]] std::optional<Bytes> decode_base64(std::string_view text);

}  // namespace wsync
