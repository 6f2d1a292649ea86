#include "shared/observe/trace/axis.h"

#include <algorithm>
#include <cmath>

#include "shared/base/format.h"
#include "shared/observe/trace/svg.h"

namespace wsync::trace {
namespace {

constexpr double kFewDecades = 2;  // up to so many have ticks between the powers of ten
constexpr double kTickGap = 10;    // pixels between the texts of two ticks, at least
constexpr int kTicksMost = 64;
constexpr int kPlainDigits = 4;  // 0.0001 is written 1e-4, 10000 as it is

bool continues_letter(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

std::string power_text(int exponent, int factor) {
  if (exponent > kPlainDigits || exponent <= -kPlainDigits)
    return fmt::format("{}e{}", factor, exponent);
  return fmt::format("{:.{}f}", factor * std::pow(10, exponent), std::max(0, -exponent));
}

std::string_view class_of(std::string_view colour) {
  if (colour == "#e4e4e4") return " class=\"grid\"";
  if (colour == "#777" || colour == "#888" || colour == "#666") return " class=\"dim\"";
  if (colour == "#333" || colour == "#111") return " class=\"ink\"";
  return "";
}

}  // namespace

void Extent::take(double value) {
  least = std::min(least, value);
  most = std::max(most, value);
}

void Extent::widen() {
  if (most > least) return;
  widen(most == 0 ? 1 : std::abs(most) / 2);
}

void Extent::widen(double by) {
  least -= by;
  most += by;
}

AxisScale::AxisScale(Extent extent, double from, double to, Kind kind)
    : extent_(extent), from_(from), to_(to), logarithmic_(kind != Kind::kLinear) {
  if (logarithmic_) {
    extent_ = {std::log10(extent.least), std::log10(extent.most)};
    if (kind == Kind::kDecades) extent_ = {std::floor(extent_.least), std::ceil(extent_.most)};
    if (extent_.least == extent_.most) extent_.widen(1);  // ends stay powers of ten
  }
  extent_.widen();
}

std::optional<double> AxisScale::place(double value) const {
  if (logarithmic_ && value <= 0) return std::nullopt;
  const double at = logarithmic_ ? std::log10(value) : value;
  if (!std::isfinite(at)) return std::nullopt;
  const double share = (at - extent_.least) / (extent_.most - extent_.least);
  return from_ + std::clamp(share, 0.0, 1.0) * (to_ - from_);
}

std::vector<Tick> AxisScale::powers(double count) const {
  constexpr double kRounding = 1e-9;
  const double span = extent_.most - extent_.least;
  const double step = std::max(1.0, std::ceil(span / count));
  std::vector<Tick> ticks;
  for (double at = std::floor(extent_.least); at <= extent_.most; at += step)
    for (const int factor : {1, 2, 5}) {
      if (factor != 1 && span > kFewDecades) continue;
      const double power = at + std::log10(factor);
      if (power < extent_.least - kRounding || power > extent_.most + kRounding) continue;
      ticks.emplace_back(std::pow(10, power), power_text(static_cast<int>(at), factor));
    }
  return ticks;
}

std::vector<Tick> AxisScale::ticks(double count) const {
  if (logarithmic_) return powers(count);
  std::vector<Tick> ticks;
  const double step = tick_step((extent_.most - extent_.least) / count);
  const double first = std::ceil(extent_.least / step);
  // Counted, for numbers can be so large that the next one is the same.
  for (int i = 0; i <= kTicksMost; ++i) {
    const double value = (first + i) * step;
    if (!(value <= extent_.most + step / 1e6)) break;
    ticks.emplace_back(value, fmt::format("{:.{}f}", value, tick_digits(step)));
  }
  return ticks;
}

std::vector<Tick> ticks_that_fit(std::vector<Tick> ticks, const AxisScale& scale) {
  std::ranges::stable_sort(ticks, {}, &Tick::first);
  std::vector<Tick> kept;
  double free_from = -std::numeric_limits<double>::infinity();
  for (Tick& tick : ticks) {
    const auto at = scale.place(tick.first);
    const double half = text_width(tick.second) / 2;
    if (!at || *at - half < free_from) continue;
    free_from = *at + half + kTickGap;
    kept.push_back(std::move(tick));
  }
  return kept;
}

double text_width(std::string_view text) {
  const auto letters = std::ranges::count_if(text, [](char c) { return !continues_letter(c); });
  return kLetterWidth * static_cast<double>(letters);
}

std::string fitted(std::string_view text, double pixels) {
  if (text_width(text) <= pixels) return std::string(text);
  std::size_t end = 0;
  double width = kLetterWidth;  // of the ellipsis
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (continues_letter(text[i])) continue;
    width += kLetterWidth;
    if (width > pixels) break;
    end = i + 1;
  }
  while (end > 0 && end < text.size() && continues_letter(text[end])) ++end;
  return std::string(text.substr(0, end)) + "\u2026";
}

std::string axis_text(double x, double y, const char* anchor, int size, std::string_view text,
                      const char* colour) {
  return fmt::format(
      "<text{} x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" "
      "fill=\"{}\">{}</text>\n",
      class_of(colour), x, y, anchor, size, colour, svg_escaped(text));
}

std::string axis_line(double x1, double y1, double x2, double y2, const char* colour,
                      std::string_view more) {
  return fmt::format(
      "<line{} x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n",
      class_of(colour), x1, y1, x2, y2, colour, more);
}

std::string svg_picture(double width, double height, std::string_view title,
                        std::string_view body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" role=\"img\" aria-label=\"{2}\">\n"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"white\"/>\n{3}</svg>\n",
      width, height, svg_escaped(title), body);
}

}  // namespace wsync::trace
