#include "inference_side/reference_engine/http/utf8.h"

#include <string_view>

namespace wsync::engine::http {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Number of bytes that follow this first byte; 0 if it begins no character.
std::uint8_t following(std::uint8_t first) {
  if (first >= 0xC2 && first <= 0xDF) return 1;
  if (first >= 0xE0 && first <= 0xEF) return 2;
  if (first >= 0xF0 && first <= 0xF4) return 3;
  return 0;
}

}  // namespace

std::uint64_t Utf8Decoder::take(std::uint8_t byte, std::string& text) {
  if (missing_ > 0 && (byte < lowest_ || byte > highest_)) finish(text);
  const std::uint64_t place = characters_;
  if (missing_ == 0) {
    begin(byte, text);
    return place;
  }
  pending_ += static_cast<char>(byte);
  lowest_ = 0x80;
  highest_ = 0xBF;
  if (--missing_ == 0) {
    text += pending_;
    pending_.clear();
    ++characters_;
  }
  return place;
}

void Utf8Decoder::begin(std::uint8_t byte, std::string& text) {
  missing_ = following(byte);
  if (missing_ > 0) {
    pending_.assign(1, static_cast<char>(byte));
    // Excludes overlong forms, surrogates and code points above U+10FFFF.
    lowest_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    highest_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    return;
  }
  if (byte < 0x80)
    text += static_cast<char>(byte);
  else
    text += kReplacement;
  ++characters_;
}

void Utf8Decoder::finish(std::string& text) {
  if (missing_ == 0) return;
  text += kReplacement;
  pending_.clear();
  missing_ = 0;
  ++characters_;
}

}  // namespace wsync::engine::http
