// Helpers shared by all SVG pictures.
#pragma once

#include <string>
#include <string_view>

namespace wsync::trace {

// Escapes text for an SVG element or attribute. Control characters become spaces.
[[nodiscard]] std::string svg_escaped(std::string_view text);
// Returns the spacing of axis ticks: the smallest value of 1, 2 or 5 times a power of ten that is
// not below `rough`, which must be positive.
[[nodiscard]] double tick_step(double rough);
// Returns the number of decimals that multiples of this step need.
[[nodiscard]] int tick_digits(double step);

}  // namespace wsync::trace
