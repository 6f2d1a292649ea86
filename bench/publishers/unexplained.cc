#include "bench/publishers/unexplained.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace wsync::bench {
namespace {

using nlohmann::json;

struct Interval {
  double begin = 0;  // in microseconds
  double end = 0;
};

// Lanes of the coordinator whose spans end when somebody else has done something.
bool only_waits(const std::string& lane) {
  return lane == "round" || lane == "snapshot" || lane.starts_with("sidecar ");
}

double covered(std::vector<Interval> spans, const Interval& within) {
  std::ranges::sort(spans, {}, &Interval::begin);
  double total = 0;
  double done = within.begin;
  for (const Interval& span : spans) {
    const double begin = std::max(span.begin, done);
    const double end = std::min(span.end, within.end);
    if (end <= begin) continue;
    total += end - begin;
    done = end;
  }
  return total;
}

Result<double> percent_of(const json& trace) {
  std::map<std::pair<int, int>, std::string> lanes;  // by process and thread
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      lanes[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  std::vector<Interval> spans;
  Interval update{.begin = -1, .end = -1};
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    const Interval span{.begin = begin, .end = begin + event.at("dur").get<double>()};
    const std::string& lane = lanes[{event.at("pid"), event.at("tid")}];
    if (lane == "snapshot") update.begin = std::max(update.begin, span.begin);
    if (event.at("name") == "resume") update.end = std::max(update.end, span.end);
    if (!only_waits(lane)) spans.push_back(span);
  }
  if (update.begin < 0 || update.end <= update.begin)
    return fail(ErrorCode::kNotFound,
                "the trace has no update with a snapshot and, after it, a resume");
  const double whole = update.end - update.begin;
  return 100 * (whole - covered(std::move(spans), update)) / whole;
}

}  // namespace

Result<double> unexplained_percent(const json& trace) {
  try {
    return percent_of(trace);
  } catch (const json::exception& error) {
    return fail(ErrorCode::kInvalidInput, std::string("the trace: ") + error.what());
  }
}

}  // namespace wsync::bench
