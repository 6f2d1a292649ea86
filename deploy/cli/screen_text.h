// Text in the cells of a terminal: how wide it is, and what of it fits. Pure.
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

// The text with every byte that is no UTF-8, and every character that controls a terminal or the
// direction of text, replaced by '?': names come from other processes.
[[nodiscard]] std::string printable(std::string_view text);
// Cells that a printable text takes: East Asian wide characters and emoji take two, marks that
// combine none.
[[nodiscard]] std::size_t text_width(std::string_view text);
// The printable text in at most so many cells; a text that is cut ends in "~".
[[nodiscard]] std::string clipped(std::string_view text, std::size_t cells);
// The same, filled with spaces to exactly so many cells.
[[nodiscard]] std::string padded(std::string_view text, std::size_t cells);
[[nodiscard]] std::size_t line_width(const ScreenLine& line);
// What of the line fits.
[[nodiscard]] ScreenLine clipped(const ScreenLine& line, std::size_t cells);
// The text without styles.
[[nodiscard]] std::string plain_text(const ScreenLine& line);

}  // namespace wsync::cli
