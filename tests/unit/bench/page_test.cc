// A report: each case once, every text escaped, nothing that is loaded, and the plots that its
// files have the data of.
#include "bench/page/page.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/harness/directory.h"
#include "bench/page/picture_files.h"
#include "bench/page/plot_parts.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"

namespace wsync::bench {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

CaseResult case_named(std::string name, std::string unit, std::vector<double> samples,
                      std::vector<double> baseline = {}) {
  CaseResult result;
  result.name = std::move(name);
  result.what = "What it measures";
  result.unit = std::move(unit);
  result.samples = std::move(samples);
  if (!baseline.empty()) set_baseline(result, "its floor", std::move(baseline));
  return result;
}

CaseResult paused(unsigned engines, std::vector<double> ms, std::vector<double> floor) {
  CaseResult result =
      case_named("paused, " + counted(engines, "engine"), "ms", std::move(ms), std::move(floor));
  result.bytes = engines * 1'000'000'000ULL;
  result.target = Target{.of = Target::Of::kRatio, .value = 0.95};
  return result;
}

ReportFile run_of(std::string name, std::string suite, std::vector<CaseResult> cases) {
  ReportFile run{.name = std::move(name), .file = {}};
  run.file.date = "2026-01-02T03:04:05Z";
  run.file.wsync_version = "9.8.7";
  run.file.machine = {{"cpu", "a processor"}, {"memory_bytes", 1ULL << 30U}};
  run.file.suites.resize(1);
  run.file.suites[0].suite = std::move(suite);
  run.file.suites[0].cases = std::move(cases);
  return run;
}

ReportFile sync_run(std::string name, std::uint64_t bytes) {
  ReportFile run = run_of(std::move(name), "sync",
                          {paused(1, {100, 200, 300}, {100, 200, 300}), paused(4, {800}, {400})});
  run.file.suites[0].parameters = {{"bytes", bytes}};
  return run;
}

std::string page_of(const std::vector<ReportFile>& runs) {
  return report_page(runs, make_plots(runs));
}

std::vector<std::string> drawn(const std::vector<ReportFile>& runs) {
  std::vector<std::string> ids;
  for (const Plot& plot : make_plots(runs))
    if (!plot.svg.empty()) ids.push_back(plot.id);
  return ids;
}

Plot plot_named(const std::vector<ReportFile>& runs, const std::string& id) {
  for (Plot& plot : make_plots(runs))
    if (plot.id == id) return plot;
  ADD_FAILURE() << "no plot " << id;
  return {};
}

TEST(BenchPage, EachCaseIsInOneRowWithItsFigures) {
  const std::string page = page_of({sync_run("a.json", 1ULL << 20U)});
  EXPECT_EQ(times_in(page, "<tr class=\"case\">"), 2U);
  EXPECT_EQ(times_in(page, "<td>paused, 1 engine<"), 1U);
  EXPECT_EQ(times_in(page, "<td>paused, 4 engines<"), 1U);
  for (const char* text :
       {">200<", "100 \u2013 300", ">1 (1 \u2013 1)<", ">its floor<", ">0.5 (0.5 \u2013 0.5)<",
        "share \u2265 0.95", "\u2713 met", "\u2717 missed", "sync: paused, 4 engines",
        "1 of 2 targets met.", "2026-01-02T03:04:05Z", "9.8.7", "a processor", "1.00 GiB"})
    EXPECT_THAT(page, HasSubstr(text));
  // What is measured is said once of cases that measure the same.
  EXPECT_EQ(times_in(page, "What it measures"), 1U);
}

TEST(BenchPage, AMachineIsToldOnceAndFilesByTheirLetters) {
  std::vector<ReportFile> runs = {sync_run("a.json", 1), sync_run("b.json", 2),
                                  sync_run("c.json", 3)};
  runs[2].file.machine["cpu"] = "another";
  const std::string page = page_of(runs);
  EXPECT_EQ(times_in(page, "a processor"), 1U);
  EXPECT_THAT(page, HasSubstr(">Machine 2<"));
  EXPECT_THAT(page, Not(HasSubstr(">Machine 3<")));
  for (const char* text : {"sync (A)", "sync (B)", "sync (C)", "sync: paused, 4 engines (C)"})
    EXPECT_THAT(page, HasSubstr(text));
  EXPECT_EQ(run_letter(25) + run_letter(26) + run_letter(27), "ZAAAB");
}

TEST(BenchPage, EveryTextIsEscaped) {
  const std::string bad = "<i>&\"</td><script>";
  ReportFile run = run_of(bad, bad, {case_named(bad, bad, {1}, {2})});
  run.file.suites[0].cases[0].what = bad;
  run.file.suites[0].cases[0].baseline->name = bad;
  run.file.suites[0].notes = {bad};
  run.file.suites[0].parameters = {{bad, bad}, {"inner", {{bad, bad}}}};
  run.file.machine = {{bad, bad}, {"list", {bad}}};
  run.file.date = run.file.wsync_version = bad;
  ReportFile pictured =
      run_of("b", "peers", {case_named("verified copies, " + bad, "s", {1}, {2})});
  ReportFile scaled =
      run_of("c", "scale", {case_named("paused, " + bad + ", 8 GPUs", "s", {1}, {2})});
  const std::string page = page_of({run, pictured, scaled});
  EXPECT_THAT(page, Not(HasSubstr("<i>")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("&\"")));
  // Case, unit, what, baseline, note, three parameters, machine, date, title, version, file, suite
  // ...
  EXPECT_GE(times_in(page, "&lt;i&gt;&amp;&quot;&lt;/td&gt;&lt;script&gt;"), 16U);
}

TEST(BenchPage, NothingIsLoaded) {
  std::vector<ReportFile> runs = {sync_run("a.json", 1), sync_run("b.json", 100)};
  runs[0].file.suites[0].notes = {"http://example.invalid/a.png"};
  const std::string page = page_of(runs);
  for (const char* text : {" src=", "<script", "<link", "<img", "<iframe", "url(", "@import",
                           "href=\"h", "xlink", "<use", "<image"})
    EXPECT_THAT(page, Not(HasSubstr(text)));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
}

TEST(BenchPlots, WithoutDataEachSaysItsCommand) {
  const std::vector<ReportFile> runs = {run_of("a", "torn", {case_named("steps", "1/s", {1})})};
  EXPECT_THAT(drawn(runs), IsEmpty());
  const std::string page = page_of(runs);
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
  for (const char* command :
       {"wsync bench sync --engines 1,2,4,8 --output FILE", "wsync bench sync --size SIZE",
        "wsync bench peers --output FILE", "wsync bench scale --output FILE",
        "wsync bench pipeline --output FILE", "wsync bench baseline --output FILE"})
    EXPECT_THAT(page, HasSubstr(command));
}

TEST(BenchPlots, EnginesOfOneNumberAreNoCurve) {
  EXPECT_THAT(drawn({run_of("a", "sync", {paused(2, {1}, {1})})}), IsEmpty());
  EXPECT_THAT(drawn({sync_run("a", 5)}), ElementsAre("sync-throughput", "sync-share-of-floor"));
}

TEST(BenchPlots, ThroughputIsBytesByThePause) {
  // 1 GB in 200 ms are 5 GB/s, 4 GB in 800 ms as many: a line across, whiskers 3.33 to 10.
  const std::string svg = plot_named({sync_run("a", 5ULL << 20U)}, "sync-throughput").svg;
  EXPECT_THAT(svg, HasSubstr("GB/s, all engines together"));
  EXPECT_THAT(svg, HasSubstr(">5.00 MiB<"));
  const std::size_t path = svg.find("path d=\"M") + 9;
  const auto height = [&](std::size_t from) { return std::stod(svg.substr(svg.find(' ', from))); };
  EXPECT_EQ(height(path), height(svg.find('L', path)));
}

TEST(BenchPlots, PausesOfSeveralSizesAreACurveOfOneMachine) {
  std::vector<ReportFile> runs = {sync_run("a", 1ULL << 20U), sync_run("b", 64ULL << 20U)};
  EXPECT_THAT(drawn(runs), Contains("sync-paused-by-size"));
  EXPECT_THAT(plot_named(runs, "sync-paused-by-size").svg, HasSubstr(">64.0 MiB<"));
  runs[1].file.machine["cpu"] = "another";
  EXPECT_THAT(drawn(runs), Not(Contains("sync-paused-by-size")));
}

TEST(BenchPlots, ScaleHasACurveOfEachModel) {
  const std::vector<ReportFile> runs = {
      run_of("a", "scale",
             {case_named("published update, Kimi-K2, 16 GPUs", "s", {14}, {15}),
              case_named("checkpoint-engine, Kimi-K2, 16 GPUs", "s", {14}, {3}),
              case_named("paused, Kimi-K2, 16 GPUs", "s", {2}, {1}),
              case_named("paused, Kimi-K2, 10000 GPUs", "s", {3}, {1}),
              case_named("paused, a, b, 8 GPUs", "s", {2}, {1}),
              case_named("paused, nothing that is counted", "s", {2})})};
  EXPECT_THAT(drawn(runs), ElementsAre("scale-kimi-k2", "scale-a-b", "scale-published"));
  const std::string svg = plot_named(runs, "scale-kimi-k2").svg;
  for (const char* text : {"checkpoint-engine", "wsync, paused", "floor of a pause", ">16<",
                           ">10000<", "published up to here"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr("wsync, staged")));
}

TEST(BenchPlots, PeersHaveSecondsAndTwoRatios) {
  std::vector<CaseResult> cases = {
      case_named("floor", "s", {1, 1}), case_named("verified copies, wsync", "s", {2, 4}, {1, 1}),
      case_named("verified copies, redis", "s", {20, 80}, {1, 1}),
      case_named("staged, wsync", "s", {1.5, 1.75}), case_named("memory", "GiB", {3})};
  EXPECT_THAT(drawn({run_of("a", "peers", cases)}),
              ElementsAre("peers", "peers-to-floor", "peers-to-wsync"));
  const std::vector<ReportFile> runs = {run_of("a", "peers", cases)};
  const std::string seconds = plot_named(runs, "peers").svg;
  for (const char* text : {">floor<", ">wsync<", ">redis<", "1.625 s staged", ">50 s<"})
    EXPECT_THAT(seconds, HasSubstr(text));
  EXPECT_THAT(seconds, Not(HasSubstr("memory")));
  EXPECT_LT(seconds.find(">floor<"), seconds.find(">wsync<"));
  // 20 / 2 and 80 / 4, round by round.
  EXPECT_THAT(plot_named(runs, "peers-to-wsync").svg, HasSubstr(">15 times<"));
  EXPECT_THAT(plot_named(runs, "peers-to-floor").svg, HasSubstr(">0.375<"));
  // Without wsync there is nothing to compare others with.
  cases.erase(cases.begin() + 1);
  cases.erase(cases.begin() + 2);
  EXPECT_THAT(drawn({run_of("a", "peers", cases)}), ElementsAre("peers", "peers-to-floor"));
}

TEST(BenchPlots, ThePipelineHasPredictedBesideMeasured) {
  const std::vector<ReportFile> runs = {
      run_of("a", "pipeline",
             {case_named("H2D alone, 2 devices", "ms", {1}),
              case_named("two stages, 2 devices", "ms", {8}, {6})})};
  const std::string svg = plot_named(runs, "pipeline").svg;
  for (const char* text : {"two stages, 2 devices", ">8 ms<", ">6 ms<", ">0.75<", "measured"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr("H2D")));
}

TEST(BenchPlots, NumbersAtTheEndsOfTheirTypeAreDrawn) {
  std::vector<ReportFile> runs = {sync_run("a", ~0ULL), sync_run("b", 1)};
  runs[0].file.suites[0].cases[0] = paused(1, {1e-300, 1e300, -1e308}, {1e308, 1e308, 1e308});
  runs[1].file.suites[0].cases[1] = paused(4'000'000'000U, {0, 5e-324}, {1, 1});
  std::vector<CaseResult> peers;
  for (int i = 0; i < 100; ++i)
    peers.push_back(case_named(fmt::format("verified copies, {}", i), "s", {1e308, 1e-308}, {1}));
  runs.push_back(run_of("c", "peers", peers));
  for (const Plot& plot : make_plots(runs))
    for (const char* text : {"nan", "inf", "\"-"}) EXPECT_THAT(plot.svg, Not(HasSubstr(text)));
  EXPECT_EQ(times_in(plot_named(runs, "peers").svg, "height=\"13\""), 40U);
  EXPECT_EQ(times_in(page_of(runs), "<tr class=\"case\">"), 104U);
}

TEST(BenchPlots, IdsAreUniqueAndFitForFiles) {
  const ReportFile scale = run_of("a", "scale", {case_named("paused, ../<x>, 8 GPUs", "s", {1})});
  EXPECT_THAT(drawn({scale, scale}), ElementsAre("scale-x", "scale-x-2"));
}

TEST(BenchPlots, NamesThatCountAreTakenApart) {
  const auto four = page::counted_by("4 engines that map", "engine");
  ASSERT_TRUE(four);
  EXPECT_EQ(four->count, 4U);
  EXPECT_EQ(four->rest, "that map");
  EXPECT_EQ(page::counted_by("1 engine, buffers", "engine")->rest, "buffers");
  for (const char* text : {"", "engines", "4", "4 enginesx", "0 engines", "-1 engines", "4engines",
                           "99999999999999999999 engines"})
    EXPECT_FALSE(page::counted_by(text, "engine")) << text;
}

TEST(BenchPictures, TheConverterIsLookedForInFoldersOfThePathOnly) {
  const auto directory = TemporaryDirectory::create("");
  ASSERT_TRUE(directory);
  const std::string file = directory->path() + "/made-up";
  std::ofstream(file) << "#!/bin/sh\n";
  EXPECT_FALSE(cli::find_program("made-up", directory->path()));  // not executable
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  EXPECT_EQ(cli::find_program("made-up", "/nonexistent::relative:" + directory->path()), file);
  EXPECT_FALSE(cli::find_program("made-up", ""));
}

}  // namespace
}  // namespace wsync::bench
