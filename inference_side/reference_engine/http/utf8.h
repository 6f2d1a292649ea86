// Utf8Decoder: text out of bytes that a model makes one by one.
#pragma once

#include <cstdint>
#include <string>

namespace wsync::engine::http {

// Gives out whole characters only. What is no part of one becomes U+FFFD, one for each longest run
// of bytes that could have begun a character (The Unicode Standard, 3.9).
//
// Thread: one at a time.
class Utf8Decoder {
 public:
  // Adds a byte, and to `text` what is certain by it. Returns which character the byte belongs to,
  // counted from the first one that was ever given out.
  std::uint64_t take(std::uint8_t byte, std::string& text);
  // A character that is not whole will not become so.
  void finish(std::string& text);
  // How many have been given out: the place of the next one.
  [[nodiscard]] std::uint64_t characters() const noexcept { return characters_; }

 private:
  void begin(std::uint8_t byte, std::string& text);

  std::string pending_;         // the beginning of a character
  std::uint8_t missing_ = 0;    // bytes that it still needs
  std::uint8_t lowest_ = 0x80;  // of the next one
  std::uint8_t highest_ = 0xBF;
  std::uint64_t characters_ = 0;
};

}  // namespace wsync::engine::http
