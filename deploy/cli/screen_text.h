// Text in terminal cells: its width, and clipping it to a width. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wsync::cli {

struct ScreenSize {
  unsigned columns = 80;
  unsigned rows = 24;
};

enum class Style : std::uint8_t { kPlain, kBold, kDim, kGood, kWarning, kBad, kReverse };
struct ScreenSpan {
  std::string text;
  Style style = Style::kPlain;
};
using ScreenLine = std::vector<ScreenSpan>;

// Replaces bytes that are not UTF-8, and characters that control the terminal or the text
// direction, with '?'. Names come from other processes and are not trusted.
[[nodiscard]] std::string printable(std::string_view text);
// Returns the number of cells of a printable text. East Asian wide characters and emoji take two
// cells, combining marks none.
[[nodiscard]] std::size_t text_width(std::string_view text);
// Cuts a printable text to at most this many cells. A text that was cut ends in "~".
[[nodiscard]] std::string clipped(std::string_view text, std::size_t cells);
// Cuts the text and fills it with spaces to exactly this many cells.
[[nodiscard]] std::string padded(std::string_view text, std::size_t cells);
[[nodiscard]] std::size_t line_width(const ScreenLine& line);
// Cuts a line to this many cells.
[[nodiscard]] ScreenLine clipped(const ScreenLine& line, std::size_t cells);
// Breaks a line at spaces into lines of at most this many cells. The lines after the first are
// indented by two cells. A word that is wider than a line is cut.
[[nodiscard]] std::vector<ScreenLine> wrapped(const ScreenLine& line, std::size_t cells);
// Returns the text without styles.
[[nodiscard]] std::string plain_text(const ScreenLine& line);

}  // namespace wsync::cli
