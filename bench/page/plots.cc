#include "bench/page/plots.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>

#include "bench/page/plot_parts.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace page {

std::vector<SuiteOf> suites_named(std::span<const ReportFile> runs, std::string_view name) {
  std::vector<SuiteOf> found;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (const SuiteResult& suite : runs[i].file.suites)
      if (suite.suite == name) found.push_back({.run = i, .suite = &suite});
  return found;
}

namespace {

constexpr std::string_view kBetweenParts = ", ";

NameParts parted(std::string_view name, std::size_t at) {
  if (at == std::string_view::npos) return {.what = name, .with = {}};
  return {.what = name.substr(0, at), .with = name.substr(at + kBetweenParts.size())};
}

}  // namespace

NameParts first_part(std::string_view name) { return parted(name, name.find(kBetweenParts)); }
NameParts last_part(std::string_view name) { return parted(name, name.rfind(kBetweenParts)); }

std::optional<Counted> counted_by(std::string_view text, std::string_view noun) {
  Counted counted;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), counted.count);
  if (error != std::errc{} || counted.count == 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(' ') || !text.substr(1).starts_with(noun)) return std::nullopt;
  text.remove_prefix(1 + noun.size());
  if (text.starts_with('s')) text.remove_prefix(1);
  if (!text.empty() && text.front() != ' ' && text.front() != ',') return std::nullopt;
  while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
  counted.rest = text;
  return counted;
}

std::string figure_text(double value) {
  const double size = std::abs(value);
  return size >= 1e3 && size < 1e9 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string id_text(std::string_view text) {
  constexpr std::size_t kMost = 64;
  std::string id;
  for (const char c : text.substr(0, kMost)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain)
      id += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!id.empty() && id.back() != '-')
      id += '-';
  }
  while (!id.empty() && id.back() == '-') id.pop_back();
  return id;
}

std::string of_run(std::span<const ReportFile> runs, std::size_t run) {
  return runs.size() > 1 ? fmt::format(" ({})", run_letter(run)) : "";
}

}  // namespace page

std::string run_letter(std::size_t index) {
  constexpr std::size_t kLetters = 26;
  std::string letter(1, static_cast<char>('A' + index % kLetters));
  return index < kLetters ? letter : run_letter(index / kLetters - 1) + letter;
}

std::vector<Plot> make_plots(std::span<const ReportFile> runs) {
  std::vector<Plot> plots;
  for (const auto make : {page::sync_plots, page::peer_plots, page::scale_plots,
                          page::pipeline_plots, page::baseline_plots})
    std::ranges::move(make(runs), std::back_inserter(plots));
  std::set<std::string> ids;
  for (Plot& plot : plots) {
    const std::string id = plot.id;
    for (int again = 2; !ids.insert(plot.id).second; ++again)
      plot.id = fmt::format("{}-{}", id, again);
  }
  return plots;
}

}  // namespace wsync::bench
