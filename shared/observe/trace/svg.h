// What the pictures of this project have in common.
#pragma once

#include <string>
#include <string_view>

namespace wsync::trace {

// Text as it may stand in an SVG element or attribute; control characters become spaces.
[[nodiscard]] std::string svg_escaped(std::string_view text);
// The smallest 1, 2 or 5 times a power of ten that is not below `rough` (above 0): the distance of
// an axis' ticks.
[[nodiscard]] double tick_step(double rough);
// Digits after the point that multiples of such a step need.
[[nodiscard]] int tick_digits(double step);

}  // namespace wsync::trace
