#include "shared/observe/trace/chart.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "shared/observe/trace/bar_chart.h"
#include "shared/observe/trace/legend.h"

namespace wsync::trace {
namespace {

using testing::HasSubstr;
using testing::Not;

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

Chart chart_of(Panel panel) {
  return {.title = "t", .x_title = "step", .panels = {std::move(panel)}, .marks = {}};
}

TEST(Chart, ASeriesGoesThroughItsPointsInItsPanel) {
  const std::string svg = chart_svg(chart_of(
      {.title = "reward",
       .series = {{.name = "mean", .colour = "#123456", .points = {{0, 0}, {5, 0.5}, {10, 1}}}},
       .least = 0,
       .most = 1}));
  // Left and right edge, bottom and top of the first panel.
  EXPECT_THAT(svg, HasSubstr("M76.0 198.0L506.0 128.0L936.0 58.0\""));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#123456\""));
  for (const char* text : {">reward<", ">mean<", ">step<", ">0.5<", ">10<"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST(Chart, WhatIsNotFiniteIsAGap) {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = chart_svg(chart_of(
      {.title = "",
       .series = {
           {.name = "", .colour = "red", .points = {{0, 1}, {1, nothing}, {2, 3}, {3, 4}}}}}));
  EXPECT_EQ(occurrences(svg, "M76.0"), 1U);
  EXPECT_EQ(occurrences(svg, "path d=\"M"), 1U);
  EXPECT_EQ(occurrences(svg, "nan"), 0U);
  const std::string path = svg.substr(svg.find("path d=\""), 80);
  EXPECT_EQ(occurrences(path.substr(0, path.find("fill")), "M"), 2U);
}

TEST(Chart, LogarithmicAxesLeaveOutWhatIsNotAboveZero) {
  const std::string svg = chart_svg(chart_of(
      {.title = "",
       .series = {{.name = "", .colour = "red", .points = {{0, 0}, {1, 1e-6}, {2, 1e-3}, {3, -1}}}},
       .logarithmic = true}));
  EXPECT_THAT(svg, HasSubstr(">1e-6<"));
  EXPECT_THAT(svg, HasSubstr(">0.001<"));
  const std::string path = svg.substr(svg.find("path d=\""));
  EXPECT_EQ(occurrences(path.substr(0, path.find("fill")), "L"), 1U);
}

// In the middle between the powers of ten beside it, which are what is written there.
TEST(Chart, OnePowerOfTenOnALogarithmicAxis) {
  const std::string svg = chart_svg(
      chart_of({.title = "",
                .series = {{.name = "", .colour = "red", .points = {{0, 1e-3}, {1, 1e-3}}}},
                .logarithmic = true}));
  for (const char* text : {">1e-4<", ">0.001<", ">0.01<"}) EXPECT_EQ(occurrences(svg, text), 1U);
  EXPECT_THAT(svg, HasSubstr("M76.0 128.0L936.0 128.0"));
}

TEST(Chart, PanelsAndMarksAreAllThere) {
  Chart chart{.title = "a < b & c",
              .x_title = "step",
              .panels = {{.title = "one", .series = {}}, {.title = "two", .series = {}}},
              .marks = {{3, "begins \"here\""}}};
  chart.panels[1].series.push_back({.name = "", .colour = "red", .points = {{1, 2}, {5, 2}}});
  const std::string svg = chart_svg(chart);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("begins &quot;here&quot;"));
  EXPECT_EQ(occurrences(svg, "no values"), 1U);
  EXPECT_EQ(occurrences(svg, "stroke-dasharray"), 2U);
  EXPECT_THAT(chart_svg({}), HasSubstr("</svg>"));
}

TEST(Chart, WhiskersReachFromTheLeastToTheMost) {
  const std::string svg = chart_svg(chart_of({.title = "",
                                              .series = {{.name = "",
                                                          .colour = "red",
                                                          .points = {{0, 5}, {1, 5}},
                                                          .marked = true,
                                                          .ranges = {{0, 10}, {5, 5}}}},
                                              .least = 0,
                                              .most = 10}));
  // The first one from the bottom of the panel to its top, the second one of no length.
  EXPECT_THAT(svg, HasSubstr("198.0V58.0"));
  EXPECT_THAT(svg, HasSubstr("128.0V128.0"));
  EXPECT_EQ(occurrences(svg, "<circle"), 2U);
}

TEST(Chart, SeriesAtOneXStandBesideEachOtherInOtherShapes) {
  Panel panel{.title = "", .series = {}, .least = 0, .most = 2};
  for (const char* name : {"a", "b"})
    panel.series.push_back({.name = name,
                            .colour = "red",
                            .points = {{1, 1}},
                            .marked = true,
                            .ranges = {{0.5, 1.5}}});
  Chart chart = chart_of(std::move(panel));
  chart.legend_on_top = true;
  const std::string svg = chart_svg(chart);
  // In the panel and in the legend.
  EXPECT_EQ(occurrences(svg, "<circle"), 2U);
  EXPECT_EQ(occurrences(svg, "width=\"7\""), 2U);
  EXPECT_THAT(svg, HasSubstr("M504.5 146.0\""));
  EXPECT_THAT(svg, HasSubstr("M507.5 146.0\""));
}

TEST(Chart, ALogarithmicXHasItsDecadesEquallyFarApart) {
  Chart chart =
      chart_of({.title = "",
                .series = {{.name = "", .colour = "red", .points = {{1, 0}, {10, 1}, {100, 0}}}}});
  chart.logarithmic_x = true;
  chart.x_ticks = {{1, "one"}, {1.01, "too near"}, {100, "hundred"}};
  const std::string svg = chart_svg(chart);
  EXPECT_THAT(svg, HasSubstr("M76.0 198.0L506.0 58.0L936.0 198.0\""));
  EXPECT_EQ(occurrences(svg, "too near"), 0U);
  EXPECT_EQ(occurrences(svg, ">one<") + occurrences(svg, ">hundred<"), 2U);
}

TEST(Chart, NumbersThatAreTooLargeToCountHaveAFewTicks) {
  for (const double large : {1e16, 1e300}) {
    const std::string svg = chart_svg(
        chart_of({.title = "",
                  .series = {{.name = "",
                              .colour = "red",
                              .points = {{0, large}, {1, std::nextafter(large, 2 * large)}}}}}));
    EXPECT_LT(occurrences(svg, "<text"), 100U) << large;
  }
}

TEST(Chart, LevelsAreNamedAndInRange) {
  const std::string svg =
      chart_svg(chart_of({.title = "",
                          .series = {{.name = "", .colour = "red", .points = {{0, 1}, {1, 2}}}},
                          .levels = {{3, "target <3>"}}}));
  EXPECT_THAT(svg, HasSubstr("target &lt;3&gt;"));
  EXPECT_THAT(svg, HasSubstr("y1=\"58.0\""));  // it is the most
}

TEST(Chart, ALegendThatIsWideTakesRows) {
  Legend legend(200);
  legend.add({.name = "a name of some letters", .colour = "red", .marker = {}});
  EXPECT_EQ(legend.height(), 0);
  legend.add({.name = "another of some letters", .colour = "blue", .marker = {}});
  EXPECT_EQ(legend.height(), kLegendRow);
  legend.add({.name = "a name of some letters", .colour = "green", .marker = {}});
  EXPECT_EQ(legend.height(), kLegendRow);
  EXPECT_EQ(occurrences(legend.drawn(20), "<text"), 2U);
}

TEST(Chart, TextsThatAreTooLongEndWithAnEllipsisAndAreNotCutInALetter) {
  EXPECT_EQ(fitted("short", 100), "short");
  EXPECT_EQ(fitted("abcdef", 3 * kLetterWidth), "ab\u2026");
  EXPECT_EQ(fitted("\u00e4\u00f6\u00fc\u00df", 3 * kLetterWidth), "\u00e4\u00f6\u2026");
  EXPECT_EQ(fitted("abcdef", 0), "\u2026");
}

TEST(BarChart, BarsAreAsLongAsTheirValues) {
  const BarChart chart{
      .title = "t",
      .panels = {{.title = "",
                  .x_title = "seconds",
                  .rows = {{.name = "a <b> & \"c\"",
                            .bars = {{.value = 1, .text = "", .colour = "red"},
                                     {.value = 4, .text = "", .colour = "red"},
                                     {.value = std::numeric_limits<double>::quiet_NaN(),
                                      .text = "none",
                                      .colour = "red"}}}}}},
      .width = 438};
  const std::string svg = bar_chart_svg(chart);
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;"));
  EXPECT_EQ(occurrences(svg, "height=\"13\""), 2U);
  const auto width_of = [&svg](std::size_t from) {
    const std::size_t at = svg.rfind("width=\"", svg.find("height=\"13\"", from)) + 7;
    return std::stod(svg.substr(at));
  };
  const double first = width_of(0);
  const double second = width_of(svg.find("height=\"13\"") + 1);
  EXPECT_NEAR(second, 4 * first, 0.3);
  EXPECT_EQ(occurrences(svg, "nan"), 0U);
  EXPECT_THAT(svg, HasSubstr(">none<"));
}

TEST(BarChart, NothingToDrawIsAPictureAllTheSame) {
  EXPECT_THAT(bar_chart_svg({.title = "", .panels = {}}), HasSubstr("</svg>"));
  EXPECT_THAT(
      bar_chart_svg({.title = "", .panels = {{.title = "", .x_title = "", .rows = {{"", {}}}}}}),
      HasSubstr("</svg>"));
}

TEST(Chart, AFileThatCannotBeWrittenIsNamed) {
  const Result<> written = write_chart_svg("/nonexistent/folder/chart.svg", {});
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message(), HasSubstr("/nonexistent/folder"));
}

}  // namespace
}  // namespace wsync::trace
