// Axes of charts: where a value lies, and what is written beside it. The classes of what is drawn
// ("ink", "dim", "grid", "field", "paper") let a page that has the picture in it give it its own
// colours; alone it has those of its attributes, on white.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wsync::trace {

// From the least to the most of what was taken.
struct Extent {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void take(double value);
  [[nodiscard]] bool none() const { return least > most; }
  // Gives a constant room above and below.
  void widen();
  void widen(double by);
};

// A value that may stand beside an axis, and its text.
using Tick = std::pair<double, std::string>;

class AxisScale {
 public:
  enum class Kind : std::uint8_t {
    kLinear,
    kDecades,      // logarithmic, from a power of ten to one
    kLogarithmic,  // from the least value to the most
  };
  // `extent` lies between pixels `from` and `to`; of a logarithmic one both ends are above 0.
  AxisScale(Extent extent, double from, double to, Kind kind);
  // The pixel; nothing for what is not finite, or not above 0 on a logarithmic axis. Values outside
  // lie on the edge.
  [[nodiscard]] std::optional<double> place(double value) const;
  // About `count` round values; of a logarithmic axis powers of ten, and where they are few twice
  // and five times those.
  [[nodiscard]] std::vector<Tick> ticks(double count) const;

 private:
  [[nodiscard]] std::vector<Tick> powers(double count) const;
  Extent extent_;  // of logarithms to the base 10, where it is logarithmic
  double from_;
  double to_;
  bool logarithmic_;
};

// Ticks whose texts, centred at their pixels, do not overlap: of each two the first one stays.
[[nodiscard]] std::vector<Tick> ticks_that_fit(std::vector<Tick> ticks, const AxisScale& scale);

inline constexpr double kLetterWidth = 7.2;  // pixels, of the letters of 12 pixels that are used
// Pixels of a text in such letters: an estimate, for nothing here knows the font.
[[nodiscard]] double text_width(std::string_view text);
// The text, or its beginning and an ellipsis, so that it takes at most so many pixels.
[[nodiscard]] std::string fitted(std::string_view text, double pixels);

// "#333" is ink, "#777" dim; the text is escaped here.
[[nodiscard]] std::string axis_text(double x, double y, const char* anchor, int size,
                                    std::string_view text, const char* colour = "#333");
// `more`: attributes with a space before them.
[[nodiscard]] std::string axis_line(double x1, double y1, double x2, double y2, const char* colour,
                                    std::string_view more = "");
// A whole picture of such a size, in pixels: white paper, and `body` on it. `title` is what is read
// out where nobody sees it.
[[nodiscard]] std::string svg_picture(double width, double height, std::string_view title,
                                      std::string_view body);

}  // namespace wsync::trace
