#include "shared/observe/trace/chart.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace wsync::trace {
namespace {

using testing::HasSubstr;

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
       .min = 0,
       .max = 1}));
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

TEST(Chart, AFileThatCannotBeWrittenIsNamed) {
  const Result<> written = write_chart_svg("/nonexistent/folder/chart.svg", {});
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message(), HasSubstr("/nonexistent/folder"));
}

}  // namespace
}  // namespace wsync::trace
