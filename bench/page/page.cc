#include "bench/page/page.h"

#include <algorithm>
#include <limits>
#include <set>

#include "bench/harness/catalogue.h"
#include "bench/page/plot_parts.h"
#include "bench/page/style.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/svg.h"

namespace wsync::bench {
namespace {

using nlohmann::json;
using page::figure_text;

std::string safe(std::string_view text) { return trace::svg_escaped(text); }

std::string element(std::string_view name, std::string_view text, std::string_view more = "") {
  return fmt::format("<{0}{1}>{2}</{0}>\n", name, more, safe(text));
}

// "memory_bytes" is "memory".
std::string key_text(std::string_view key) {
  std::string text(key);
  for (const std::string_view unit : {"_bytes_per_s", "_bytes"})
    if (text.ends_with(unit)) text.erase(text.size() - unit.size());
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::string value_text(std::string_view key, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  const bool is_rate = key.ends_with("bytes_per_s");
  if (value.is_number() && (is_rate || key.ends_with("bytes"))) {
    const double bytes = value.get<double>();
    constexpr auto kMost = static_cast<double>(std::numeric_limits<std::int64_t>::max());
    if (bytes >= 0 && bytes < kMost)
      return trace::format_bytes(static_cast<std::uint64_t>(bytes)) + (is_rate ? "/s" : "");
  }
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What is in an object stands beside what it is in.
std::string facts(const json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object()) {
      text += element("dt", key_text(key)) + element("dd", value_text(key, value));
      continue;
    }
    for (const auto& [inner, part] : value.items())
      text += element("dt", key_text(key) + ", " + key_text(inner)) +
              element("dd", value_text(inner, part));
  }
  return text.empty() ? "" : "<dl>\n" + text + "</dl>\n";
}

std::string range_text(const Spread& spread) {
  return fmt::format("{} \u2013 {}", figure_text(spread.min), figure_text(spread.max));
}

struct Tally {
  std::size_t suites = 0;
  std::size_t cases = 0;
  std::size_t targets = 0;
  std::vector<std::string> missed;
};

Tally tally_of(std::span<const ReportFile> runs) {
  Tally tally;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (const SuiteResult& suite : runs[i].file.suites) {
      ++tally.suites;
      for (const CaseResult& one : suite.cases) {
        ++tally.cases;
        if (!one.target) continue;
        ++tally.targets;
        if (!one.met())
          tally.missed.push_back(
              fmt::format("{}: {}{}", suite.suite, one.name, page::of_run(runs, i)));
      }
    }
  return tally;
}

std::string suite_id(std::size_t run, std::size_t suite) {
  return fmt::format("suite-{}-{}", run + 1, suite + 1);
}

std::string suite_title(std::span<const ReportFile> runs, std::size_t run,
                        const SuiteResult& suite) {
  return suite.suite + page::of_run(runs, run);
}

std::string head(std::span<const ReportFile> runs) {
  std::string title = "wsync bench";
  if (!runs.empty()) title += ", " + runs.back().file.date;
  return "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
         "<meta charset=\"utf-8\"/>\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<meta name=\"color-scheme\" content=\"light dark\"/>\n" +
         element("title", title) + fmt::format("<style>{}</style>\n</head>\n", page::kStyle);
}

std::string lead(std::span<const ReportFile> runs) {
  const Tally tally = tally_of(runs);
  std::string text = element("h1", "wsync bench");
  text += element("p",
                  fmt::format("{} of {} in {}.", counted(tally.cases, "case"),
                              counted(tally.suites, "suite"), counted(runs.size(), "result file")));
  if (tally.targets == 0) return text + element("p", "No case has a target.");
  text += element("p",
                  fmt::format("{} of {} met.", tally.targets - tally.missed.size(),
                              counted(tally.targets, "target")),
                  tally.missed.empty() ? " class=\"met\"" : "");
  if (tally.missed.empty()) return text;
  text += "<p class=\"missed\">Missed:</p>\n<ul>\n";
  for (const std::string& one : tally.missed) text += element("li", one);
  return text + "</ul>\n";
}

std::string contents(std::span<const ReportFile> runs) {
  std::string text = "<nav><ul>\n<li><a href=\"#plots\">Plots</a></li>\n";
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t k = 0; k < runs[i].file.suites.size(); ++k)
      text += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", suite_id(i, k),
                          safe(suite_title(runs, i, runs[i].file.suites[k])));
  return text + "</ul></nav>\n";
}

// Files, and each machine once.
std::string origins(std::span<const ReportFile> runs) {
  std::string text = "<h2 id=\"files\">Where it was measured</h2>\n";
  std::vector<const json*> machines;
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ResultFile& file = runs[i].file;
    const auto same =
        std::ranges::find_if(machines, [&](const json* other) { return *other == file.machine; });
    const auto machine = static_cast<std::size_t>(same - machines.begin()) + 1;
    if (same == machines.end()) machines.push_back(&file.machine);
    std::string suites;
    for (const SuiteResult& suite : file.suites)
      suites += (suites.empty() ? "" : ", ") + suite.suite;
    rows += fmt::format(
        "<tr><td>{}</td><td data-is=\"file\">{}</td><td data-is=\"date\">{}</td>"
        "<td data-is=\"wsync\">{}</td><td data-is=\"machine\">{}</td>"
        "<td data-is=\"suites\">{}</td></tr>\n",
        run_letter(i), safe(runs[i].name), safe(file.date), safe(file.wsync_version), machine,
        safe(suites));
  }
  text +=
      "<table class=\"files\">\n<thead><tr><th></th><th>File</th><th>Date</th><th>wsync</th>"
      "<th>Machine</th><th>Suites</th></tr></thead>\n<tbody>\n" +
      rows + "</tbody>\n</table>\n";
  for (std::size_t i = 0; i < machines.size(); ++i)
    text += element("h3", fmt::format("Machine {}", i + 1)) + facts(*machines[i]);
  return text;
}

std::string plots_part(const std::vector<Plot>& plots) {
  std::string drawn;
  std::string left_out;
  for (const Plot& plot : plots) {
    if (plot.svg.empty()) {
      left_out +=
          fmt::format("<li>{}: <code>{}</code></li>\n", safe(plot.title), safe(plot.command));
      continue;
    }
    drawn += fmt::format("<figure id=\"plot-{}\">\n{}", safe(plot.id), plot.svg);
    if (!plot.note.empty()) drawn += element("figcaption", plot.note);
    drawn += "</figure>\n";
  }
  std::string text = "<h2 id=\"plots\">Plots</h2>\n";
  if (!drawn.empty())
    text +=
        "<p class=\"dim\">Points and bars are medians, whiskers go from the least sample to "
        "the most.</p>\n<div class=\"plots\">\n" +
        drawn + "</div>\n";
  if (!left_out.empty())
    text +=
        "<h3>Left out</h3>\n<p>These files do not have the data of the following plots; the "
        "command produces it.</p>\n<ul>\n" +
        left_out + "</ul>\n";
  return text;
}

std::string target_text(const CaseResult& one) {
  if (!one.target) return "";
  const bool at_least = one.target->of == Target::Of::kRatio ||
                        (one.target->of == Target::Of::kMedian && one.higher_is_better);
  const char* of = one.target->of == Target::Of::kRatio    ? "share"
                   : one.target->of == Target::Of::kMedian ? "median"
                                                           : "every sample";
  return fmt::format("{} {} {}", of, at_least ? "\u2265" : "\u2264",
                     figure_text(one.target->value));
}

std::string case_row(const CaseResult& one, bool says_what) {
  const Spread value = spread_of(one.samples);
  std::string text = "<tr class=\"case\"><td>" + safe(one.name);
  if (says_what) text += element("div", one.what, " class=\"what\"");
  text += fmt::format(
      "</td>\n<td class=\"n m\" data-is=\"median\">{}</td><td class=\"u\">{}</td>"
      "<td class=\"n\" data-is=\"least \u2013 most\">{}</td>",
      figure_text(value.median), safe(one.unit), range_text(value));
  if (one.ratios.empty()) {
    text += "<td class=\"n\"></td><td></td>";
  } else {
    const Spread ratio = spread_of(one.ratios);
    text += fmt::format(
        "<td class=\"n s\" data-is=\"share\">{} ({})</td><td class=\"b\" data-is=\"of\">{}</td>",
        figure_text(ratio.median), range_text(ratio), safe(one.baseline->name));
  }
  text += fmt::format("<td{}>{}</td>", one.target ? " data-is=\"target\"" : "", target_text(one));
  if (!one.target) return text + "<td></td></tr>\n";
  return text + (one.met() ? "<td class=\"met\">\u2713 met</td></tr>\n"
                           : "<td class=\"missed\">\u2717 missed</td></tr>\n");
}

std::string suite_part(std::span<const ReportFile> runs, std::size_t run, std::size_t index) {
  const SuiteResult& suite = runs[run].file.suites[index];
  std::string text = fmt::format("<section>\n<h2 id=\"{}\">{}</h2>\n", suite_id(run, index),
                                 safe(suite_title(runs, run, suite)));
  const auto known = std::ranges::find(catalogue(), suite.suite, &SuiteText::name);
  if (known != catalogue().end())
    text +=
        fmt::format("<p><code>{}</code>: {}</p>\n", safe(known->command), safe(known->question));
  text += facts(suite.parameters);
  if (!suite.notes.empty()) {
    text += "<ul class=\"notes\">\n";
    for (const std::string& note : suite.notes) text += element("li", note);
    text += "</ul>\n";
  }
  text +=
      "<table class=\"cases\">\n<thead><tr><th>Case</th><th class=\"n\">Median</th><th>Unit</th>"
      "<th class=\"n\">Least \u2013 most</th><th class=\"n\">Share of its baseline</th>"
      "<th>Baseline</th><th>Target</th><th></th></tr></thead>\n<tbody>\n";
  std::set<std::string> said;
  for (const CaseResult& one : suite.cases) text += case_row(one, said.insert(one.what).second);
  return text + "</tbody>\n</table>\n</section>\n";
}

}  // namespace

std::string report_page(std::span<const ReportFile> runs, const std::vector<Plot>& plots) {
  std::string text = head(runs) + "<body>\n<main>\n" + lead(runs) + contents(runs);
  text += plots_part(plots) + origins(runs);
  text +=
      "<p class=\"dim\">A share is speed as a part of the baseline's in the same round: 1 is as "
      "fast as the baseline, and more is better, whatever the unit.</p>\n";
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t k = 0; k < runs[i].file.suites.size(); ++k) text += suite_part(runs, i, k);
  return text + "</main>\n</body>\n</html>\n";
}

}  // namespace wsync::bench
