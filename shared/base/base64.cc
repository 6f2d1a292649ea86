#include "shared/base/base64.h"

#include <array>
#include <cstdint>

namespace wsync {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kUrlAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::uint8_t kNoDigit = 255;

constexpr std::array<std::uint8_t, 256> make_values() {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNoDigit);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return values;
}
constexpr std::array<std::uint8_t, 256> kValues = make_values();

std::string encode(std::span<const std::byte> bytes, std::string_view alphabet) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const std::byte byte : bytes) {
    bits = (bits << 8U) | std::to_integer<std::uint32_t>(byte);
    for (count += 8; count >= 6; count -= 6) text += alphabet[(bits >> (count - 6)) & 63U];
  }
  if (count > 0) text += alphabet[(bits << (6 - count)) & 63U];
  return text;
}

}  // namespace

std::string base64(std::span<const std::byte> bytes) {
  std::string text = encode(bytes, kAlphabet);
  text.append((4 - text.size() % 4) % 4, '=');
  return text;
}

std::string base64url(std::span<const std::byte> bytes) { return encode(bytes, kUrlAlphabet); }

std::optional<Bytes> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  Bytes bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : text) {
    const std::uint8_t value = kValues[static_cast<unsigned char>(c)];
    if (value == kNoDigit) return std::nullopt;
    bits = (bits << 6U) | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::byte>((bits >> count) & 255U));
  }
  // What is left over of the last character must be zero, so that one text names the bytes.
  if ((bits & ((1U << count) - 1U)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace wsync
