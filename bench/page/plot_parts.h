// What the plots of a report share. In this folder only.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/page/plots.h"

namespace wsync::bench::page {

// Told apart by those who see red and green alike (after Okabe and Ito 2008), on white and on black
// paper (contrast of at least 3); used in this order.
inline constexpr std::array<const char*, 6> kColours = {"#0072b2", "#d55e00", "#009e73",
                                                        "#b5629a", "#8a7a00", "#808080"};
inline constexpr const char* kFloorColour = "#808080";
inline constexpr double kPlotWidth = 460;       // pixels: readable on a narrow window
inline constexpr double kPlotHeight = 190;      // of a panel with lines
inline constexpr std::size_t kSeriesMost = 12;  // of one plot; the tables have the others
inline constexpr std::size_t kRowsMost = 40;    // of one plot with bars, likewise

// A suite's result, and where it is from.
struct SuiteOf {
  std::size_t run = 0;
  const SuiteResult* suite = nullptr;
};
[[nodiscard]] std::vector<SuiteOf> suites_named(std::span<const ReportFile> runs,
                                                std::string_view name);

// "paused, 2 engines that map": what was measured, and with what. At the first comma, or the last.
struct NameParts {
  std::string_view what;
  std::string_view with;  // may be empty
};
[[nodiscard]] NameParts first_part(std::string_view name);
[[nodiscard]] NameParts last_part(std::string_view name);

// Of "2 engines that map": 2 and "that map". Nothing where it does not begin with a number above 0
// and the noun or its plural.
struct Counted {
  std::uint64_t count = 0;
  std::string_view rest;
};
[[nodiscard]] std::optional<Counted> counted_by(std::string_view text, std::string_view noun);

// A number with four digits.
[[nodiscard]] std::string figure_text(double value);
// Of a file: letters, digits and dashes.
[[nodiscard]] std::string id_text(std::string_view text);
// " (B)" where there are several files, so that a title says which one it is of.
[[nodiscard]] std::string of_run(std::span<const ReportFile> runs, std::size_t run);

// Those of suite `sync`: throughput and share of the floor by engines, paused time by size.
[[nodiscard]] std::vector<Plot> sync_plots(std::span<const ReportFile> runs);
// Those of suite `scale`: a curve for each model, and what is published beside what is simulated.
[[nodiscard]] std::vector<Plot> scale_plots(std::span<const ReportFile> runs);
// Of suite `peers`: seconds, ratio to the floor and to wsync.
[[nodiscard]] std::vector<Plot> peer_plots(std::span<const ReportFile> runs);
// Of suite `pipeline`: predicted beside measured.
[[nodiscard]] std::vector<Plot> pipeline_plots(std::span<const ReportFile> runs);
// Of suite `baseline`: what the machine can do.
[[nodiscard]] std::vector<Plot> baseline_plots(std::span<const ReportFile> runs);

}  // namespace wsync::bench::page
