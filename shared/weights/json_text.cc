#include "shared/weights/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shared/base/format.h"

namespace wsync {

std::string quote_text(std::string_view text) {
  constexpr std::size_t kMax = 200;
  std::string line = "'";
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      line += fmt::format("\\x{:02x}", byte);
    else
      line += c;
  }
  return line + (text.size() > kMax ? "...'" : "'");
}

Result<std::string> json_string(std::string_view text) {
  try {
    return nlohmann::json(std::string(text)).dump();
  } catch (const nlohmann::json::exception&) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the text {} is not UTF-8", quote_text(text)));
  }
}

Result<> check_json_text(std::span<const std::byte> text) {
  const auto nul = std::find(text.begin(), text.end(), std::byte{0});
  if (nul != text.end())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a NUL byte at byte {}; JSON does not allow it", nul - text.begin()));
  if (!text.empty() && text.front() == std::byte{0xef})
    return fail(ErrorCode::kInvalidInput,
                "it begins with a byte order mark; JSON does not allow it");
  return {};
}

}  // namespace wsync
