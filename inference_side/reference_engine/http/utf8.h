// Utf8Decoder: decodes text from bytes that a model generates one by one.
#pragma once

#include <cstdint>
#include <string>

namespace wsync::engine::http {

// Outputs complete characters only. Each maximal run of bytes that could begin a character, but is
// not one, is replaced by one U+FFFD (The Unicode Standard, 3.9).
//
// Thread: confined to one thread at a time.
class Utf8Decoder {
 public:
  // Decodes a byte and appends the complete characters to `text`. Returns the index of the
  // character that the byte belongs to, counted from the first character of the output.
  std::uint64_t take(std::uint8_t byte, std::string& text);
  // Ends the input. An incomplete character is replaced.
  void finish(std::string& text);
  // Number of characters output so far, which is also the index of the next one.
  [[nodiscard]] std::uint64_t characters() const noexcept { return characters_; }

 private:
  void begin(std::uint8_t byte, std::string& text);

  std::string pending_;         // the first bytes of an incomplete character
  std::uint8_t missing_ = 0;    // number of missing bytes
  std::uint8_t lowest_ = 0x80;  // minimum value of the next byte
  std::uint8_t highest_ = 0xBF;
  std::uint64_t characters_ = 0;
};

}  // namespace wsync::engine::http
