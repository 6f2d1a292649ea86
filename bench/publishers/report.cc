#include "bench/publishers/report.h"

#include <algorithm>
#include <array>

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

struct Figure {
  const char* name;  // in JSON
  FigureOf of;
  bool has_ratio;
};

double snapshot_ns(const PublishSample& s) { return static_cast<double>(s.snapshot_ns); }
double staged_ns(const PublishSample& s) { return static_cast<double>(s.staged_ns); }
double load_ns(const PublishSample& s) { return static_cast<double>(s.load_ns); }
double paused_ns(const PublishSample& s) { return static_cast<double>(s.paused_ns); }
double whole_ns(const PublishSample& s) { return static_cast<double>(s.whole_ns); }
double snapshot_cpu_ns(const PublishSample& s) { return static_cast<double>(s.snapshot_cpu_ns); }
double cpu_ns(const PublishSample& s) { return static_cast<double>(s.cpu_ns); }
double growth_bytes(const PublishSample& s) { return static_cast<double>(s.growth_bytes); }
double copies(const PublishSample& s) {
  return static_cast<double>(s.copied_bytes + s.sent_bytes) / static_cast<double>(s.bytes);
}

constexpr std::array kFigures{Figure{"snapshot_ns", &snapshot_ns, true},
                              Figure{"staged_ns", &staged_ns, true},
                              Figure{"load_ns", &load_ns, false},
                              Figure{"paused_ns", &paused_ns, false},
                              Figure{"whole_ns", &whole_ns, true},
                              Figure{"snapshot_cpu_ns", &snapshot_cpu_ns, true},
                              Figure{"cpu_ns", &cpu_ns, true},
                              Figure{"copies_per_byte", &copies, false},
                              Figure{"growth_bytes", &growth_bytes, false}};

std::string name_of(const PublisherRow& row) {
  return row.kind == "c" ? "C" : row.kind == "numpy" ? "NumPy" : row.kind;
}

json row_json(const PublishersBenchResult& result, const PublisherRow& row) {
  json line = {{"publisher", row.kind}, {"rounds", json::array()}};
  const bool is_base = &row == &result.rows.front();
  if (!is_base) {
    line["ratio"] = json::object();
    line["ratio_met"] = result.met(row);
  }
  for (const Figure& figure : kFigures) {
    line[figure.name] = spread_json(row.spread(figure.of));
    if (!is_base && figure.has_ratio)
      line["ratio"][figure.name] = spread_json(result.ratio(row, figure.of));
  }
  for (const PublishSample& sample : row.rounds)
    line["rounds"].push_back({{"snapshot_ns", sample.snapshot_ns},
                              {"staged_ns", sample.staged_ns},
                              {"load_ns", sample.load_ns},
                              {"paused_ns", sample.paused_ns},
                              {"whole_ns", sample.whole_ns},
                              {"snapshot_cpu_ns", sample.snapshot_cpu_ns},
                              {"cpu_ns", sample.cpu_ns},
                              {"copied_bytes", sample.copied_bytes},
                              {"sent_bytes", sample.sent_bytes},
                              {"growth_bytes", sample.growth_bytes},
                              {"content_digest", sample.digest}});
  return line;
}

bool targets_met(const PublishersBenchResult& result) {
  return std::all_of(result.rows.begin() + 1, result.rows.end(),
                     [&](const PublisherRow& row) { return result.met(row); });
}

std::string duration(const Spread& ns) {
  return trace::format_duration(std::chrono::nanoseconds(static_cast<std::int64_t>(ns.median)));
}

std::string row_text(const PublisherRow& row) {
  return fmt::format(
      "{:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>8.2f} {:>10}\n", name_of(row),
      duration(row.spread(&snapshot_ns)), duration(row.spread(&staged_ns)),
      duration(row.spread(&load_ns)), duration(row.spread(&paused_ns)),
      duration(row.spread(&whole_ns)), duration(row.spread(&snapshot_cpu_ns)),
      duration(row.spread(&cpu_ns)), row.spread(&copies).median,
      trace::format_bytes(static_cast<std::uint64_t>(row.spread(&growth_bytes).median)));
}

std::string quartiles(const Spread& ratio) {
  return fmt::format("{:.3f} ({:.3f}-{:.3f})", ratio.median, ratio.lower_quartile,
                     ratio.upper_quartile);
}

std::string ratio_text(const PublishersBenchResult& result, const PublisherRow& row) {
  return fmt::format("{:<9} {:<21} {:<21} {:<21} {:<21}  {}\n", name_of(row),
                     quartiles(result.ratio(row, &snapshot_ns)),
                     quartiles(result.ratio(row, &whole_ns)),
                     quartiles(result.ratio(row, &snapshot_cpu_ns)),
                     quartiles(result.ratio(row, &cpu_ns)), result.met(row) ? "met" : "missed");
}

constexpr double kNsOfMs = 1e6;

void add_case(const PublishersBenchResult& result, const PublisherRow& row, std::string_view name,
              FigureOf of, double unit, SuiteResult& suite) {
  const auto scaled = [&](const PublisherRow& from) {
    std::vector<double> values = from.column(of);
    for (double& value : values) value /= unit;
    return values;
  };
  auto made = case_of("sync", name, name_of(row), scaled(row));
  if (&row != &result.rows.front() && (of == &snapshot_ns || of == &whole_ns || of == &cpu_ns)) {
    set_baseline_of("sync", name, made, scaled(result.rows.front()));
    if (of == &snapshot_ns)
      made.target = Target{.of = Target::Of::kRatio, .value = 1 / kPythonRatioTarget};
  }
  if (of == &snapshot_ns) made.bytes = result.bytes;
  suite.cases.push_back(std::move(made));
}

}  // namespace

json to_json(const PublishersBenchResult& result) {
  const Interpreter& python = result.interpreter;
  json rows = json::array();
  for (const PublisherRow& row : result.rows) rows.push_back(row_json(result, row));
  return {{"machine", machine_json(result.machine)},
          {"bytes", result.bytes},
          {"tensors", result.tensors},
          {"largest_tensor_bytes", result.largest_tensor_bytes},
          {"engines", result.engines},
          {"adopt", result.adopt},
          {"tcp", result.tcp},
          {"python",
           {{"executable", python.executable},
            {"python", python.python},
            {"wsync", python.wsync},
            {"numpy", python.numpy},
            {"torch", python.torch.empty() ? json() : json(python.torch)}}},
          {"others_busy", result.others_busy},
          {"stolen", result.stolen},
          {"ratio_target", kPythonRatioTarget},
          {"targets_met", targets_met(result)},
          {"publishers", std::move(rows)}};
}

std::string to_text(const PublishersBenchResult& result) {
  const Interpreter& python = result.interpreter;
  std::string text = fmt::format(
      "{}\nPython {}, wsync {}, NumPy {}{}\n", processor_text(result.machine), python.python,
      python.wsync, python.numpy, python.torch.empty() ? "" : ", torch " + python.torch);
  text += fmt::format(
      "{} of weights in {}, the largest {}; {}{}{}, {} rounds; every kind published "
      "the same bytes in each round\n\n",
      trace::format_bytes(result.bytes), counted(result.tensors, "tensor"),
      trace::format_bytes(result.largest_tensor_bytes), counted(result.engines, "engine"),
      result.adopt ? " that map" : "", result.tcp ? ", TCP" : "",
      result.rows.front().rounds.size());
  text += fmt::format("{:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>8} {:>10}\n",
                      "publisher", "snapshot", "staged", "load", "paused", "whole", "CPU snapshot",
                      "CPU whole", "copies", "growth");
  for (const PublisherRow& row : result.rows) text += row_text(row);
  text +=
      fmt::format("\n{:<9} {:<21} {:<21} {:<21} {:<21}  {}\n", "to C", "snapshot", "whole",
                  "CPU snapshot", "CPU whole", fmt::format("snapshot <= {}", kPythonRatioTarget));
  for (std::size_t i = 1; i < result.rows.size(); ++i) text += ratio_text(result, result.rows[i]);
  return text + "\n" + load_notes(result.others_busy, result.stolen);
}

SuiteResult to_suite(const PublishersBenchResult& result) {
  SuiteResult suite{.suite = "sync",
                    .parameters = {{"bytes", result.bytes},
                                   {"tensors", result.tensors},
                                   {"engines", result.engines},
                                   {"adopt", result.adopt},
                                   {"tcp", result.tcp},
                                   {"publishers", true}},
                    .cases = {},
                    .notes = load_sentences(result.others_busy, result.stolen),
                    .details = to_json(result)};
  for (const PublisherRow& row : result.rows) {
    add_case(result, row, "publish", &snapshot_ns, kNsOfMs, suite);
    add_case(result, row, "publish until it is served", &whole_ns, kNsOfMs, suite);
    add_case(result, row, "publish CPU", &cpu_ns, kNsOfMs, suite);
    add_case(result, row, "publish copies", &copies, 1, suite);
  }
  return suite;
}

}  // namespace wsync::bench
