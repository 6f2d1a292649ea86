#include "deploy/cli/screen_text.h"

#include <algorithm>
#include <array>

namespace wsync::cli {
namespace {

struct Range32 {
  char32_t first;
  char32_t last;
};

// Unicode's East Asian Width classes W and F, and emoji. Blocks in which most characters are wide
// are included as a whole.
constexpr std::array<Range32, 15> kWide = {{{0x1100, 0x115f},
                                            {0x231a, 0x231b},
                                            {0x23e9, 0x23ec},
                                            {0x2e80, 0x303e},
                                            {0x3041, 0xa4cf},
                                            {0xa960, 0xa97c},
                                            {0xac00, 0xd7a3},
                                            {0xf900, 0xfaff},
                                            {0xfe30, 0xfe6f},
                                            {0xff00, 0xff60},
                                            {0xffe0, 0xffe6},
                                            {0x1f300, 0x1f64f},
                                            {0x1f680, 0x1f6ff},
                                            {0x1f900, 0x1f9ff},
                                            {0x20000, 0x3fffd}}};
// Combining marks, which have no width of their own.
constexpr std::array<Range32, 8> kZero = {{{0x0300, 0x036f},
                                           {0x0483, 0x0489},
                                           {0x0591, 0x05bd},
                                           {0x064b, 0x065f},
                                           {0x1ab0, 0x1aff},
                                           {0x1dc0, 0x1dff},
                                           {0x20d0, 0x20ff},
                                           {0xfe00, 0xfe0f}}};
// Control characters, marks of text direction, and characters without a visible shape.
constexpr std::array<Range32, 8> kUnprintable = {{{0x0000, 0x001f},
                                                  {0x007f, 0x009f},
                                                  {0x00ad, 0x00ad},
                                                  {0x061c, 0x061c},
                                                  {0x200b, 0x200f},
                                                  {0x2028, 0x202e},
                                                  {0x2060, 0x206f},
                                                  {0xfeff, 0xfeff}}};

template <std::size_t N>
bool inside(const std::array<Range32, N>& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const Range32& range) { return c >= range.first && c <= range.last; });
}

struct Character {
  char32_t code = U'?';
  std::size_t bytes = 1;
  bool valid = false;
};

// Returns the first character of a text that is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.code = lead, .bytes = 1, .valid = true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  char32_t code = static_cast<char32_t>(lead & (0xffU >> (bytes + 1)));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  constexpr std::array<char32_t, 5> kMin = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kMin[bytes] || code > 0x10ffff || surrogate) return {};
  return {.code = code, .bytes = bytes, .valid = true};
}

std::size_t cells_of(char32_t c) {
  if (inside(kZero, c)) return 0;
  return inside(kWide, c) ? 2 : 1;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character c = first_character(text);
    if (c.valid && !inside(kUnprintable, c.code))
      result += text.substr(0, c.bytes);
    else
      result += '?';
    text.remove_prefix(c.bytes);
  }
  return result;
}

std::size_t text_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    width += cells_of(c.code);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string clipped(std::string_view text, std::size_t cells) {
  const std::string whole = printable(text);
  if (text_width(whole) <= cells) return whole;
  if (cells == 0) return {};
  std::string result;
  std::size_t width = 0;
  std::string_view rest = whole;
  while (!rest.empty()) {
    const Character c = first_character(rest);
    if (width + cells_of(c.code) > cells - 1) break;
    width += cells_of(c.code);
    result += rest.substr(0, c.bytes);
    rest.remove_prefix(c.bytes);
  }
  return result + "~";
}

std::string padded(std::string_view text, std::size_t cells) {
  std::string result = clipped(text, cells);
  result.append(cells - text_width(result), ' ');
  return result;
}

std::size_t line_width(const ScreenLine& line) {
  std::size_t width = 0;
  for (const ScreenSpan& span : line) width += text_width(span.text);
  return width;
}

ScreenLine clipped(const ScreenLine& line, std::size_t cells) {
  ScreenLine result;
  for (const ScreenSpan& span : line) {
    const std::size_t left = cells - line_width(result);
    if (left == 0) break;
    result.push_back({.text = clipped(span.text, left), .style = span.style});
  }
  return result;
}

std::vector<ScreenLine> wrapped(const ScreenLine& line, std::size_t cells) {
  constexpr std::string_view kIndent = "  ";
  std::vector<ScreenLine> lines(1);
  std::size_t taken = 0;
  bool begun = false;  // the line has a word
  for (const ScreenSpan& span : line) {
    const std::string text = printable(span.text);
    for (std::size_t at = 0; at < text.size();) {
      // A word with the spaces before it.
      const std::size_t word = std::min(text.find_first_not_of(' ', at), text.size());
      const std::size_t end = std::min(text.find(' ', word), text.size());
      std::string piece = text.substr(at, end - at);
      if (begun && taken + text_width(piece) > cells) {
        lines.push_back({{.text = std::string(kIndent), .style = Style::kPlain}});
        taken = kIndent.size();
        piece = text.substr(word, end - word);
      }
      taken += text_width(piece);
      begun = true;
      lines.back().push_back({.text = std::move(piece), .style = span.style});
      at = end;
    }
  }
  for (ScreenLine& each : lines) each = clipped(each, cells);
  return lines;
}

std::string plain_text(const ScreenLine& line) {
  std::string text;
  for (const ScreenSpan& span : line) text += span.text;
  return text;
}

}  // namespace wsync::cli
