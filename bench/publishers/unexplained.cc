#include "bench/publishers/unexplained.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr double kMicrosInMs = 1000;

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

struct NamedSpan {
  std::string name;
  Interval time;
};

// The newest update of a trace, and all spans that are more than waiting.
struct Update {
  Interval whole{.begin = -1, .end = -1};
  std::vector<NamedSpan> spans;
};

Result<Update> newest_update(const json& trace) {
  std::map<std::pair<int, int>, std::string> lanes;  // by process and thread
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      lanes[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  Update update;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    const Interval time{.begin = begin, .end = begin + event.at("dur").get<double>()};
    const std::string& lane = lanes[{event.at("pid"), event.at("tid")}];
    if (lane == "snapshot") update.whole.begin = std::max(update.whole.begin, time.begin);
    if (event.at("name") == "resume") update.whole.end = std::max(update.whole.end, time.end);
    if (!only_waits(lane)) update.spans.push_back({.name = event.at("name"), .time = time});
  }
  if (update.whole.begin < 0 || update.whole.end <= update.whole.begin)
    return fail(ErrorCode::kNotFound,
                "the trace has no update with a snapshot and, after it, a resume");
  return update;
}

// "snapshot of bucket 12" and "staging of 1.2" without the numbers, and without the word that led
// to them.
std::string work_of(const std::string& name) {
  constexpr std::array<std::string_view, 5> kLeading = {"of", "for", "to", "with", "target"};
  std::vector<std::string> words;
  std::istringstream text(name);
  for (std::string word; text >> word;)
    if (word.find_first_not_of("0123456789.") != std::string::npos) words.push_back(word);
  while (words.size() > 1 && std::ranges::find(kLeading, words.back()) != kLeading.end())
    words.pop_back();
  return words.empty() ? name : fmt::format("{}", fmt::join(words, " "));
}

template <class Evaluate>
auto evaluate(const json& trace, Evaluate of) -> Result<decltype(of(Update{}))> {
  try {
    return of(WSYNC_TRY(newest_update(trace)));
  } catch (const json::exception& error) {
    return fail(ErrorCode::kInvalidInput, std::string("the trace: ") + error.what());
  }
}

}  // namespace

Result<double> unexplained_percent(const json& trace) {
  return evaluate(trace, [](const Update& update) {
    std::vector<Interval> spans;
    for (const NamedSpan& span : update.spans) spans.push_back(span.time);
    const double whole = update.whole.end - update.whole.begin;
    return 100 * (whole - covered(std::move(spans), update.whole)) / whole;
  });
}

Result<std::vector<WorkTime>> work_times(const json& trace) {
  return evaluate(trace, [](const Update& update) {
    std::map<std::string, std::vector<Interval>> kinds;
    for (const NamedSpan& span : update.spans)
      if (span.time.end > update.whole.begin && span.time.begin < update.whole.end)
        kinds[work_of(span.name)].push_back(span.time);
    std::vector<std::pair<double, WorkTime>> times;
    for (auto& [work, spans] : kinds) {
      const double begin = std::ranges::min_element(spans, {}, &Interval::begin)->begin;
      times.push_back(
          {begin, {.work = work, .ms = covered(std::move(spans), update.whole) / kMicrosInMs}});
    }
    std::ranges::sort(times, {}, &std::pair<double, WorkTime>::first);
    std::vector<WorkTime> sorted;
    for (auto& [begin, time] : times) sorted.push_back(std::move(time));
    return sorted;
  });
}

}  // namespace wsync::bench
