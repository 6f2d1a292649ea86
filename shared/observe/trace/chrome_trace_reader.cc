#include "shared/observe/trace/chrome_trace_reader.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "shared/base/format.h"

namespace wsync::trace {
namespace {

using nlohmann::json;

constexpr double kMicrosecondsMax = 1e15;  // about 31 years

TimePoint time_of(double microseconds) {
  return TimePoint{static_cast<std::int64_t>(std::llround(microseconds * 1e3))};
}

// Returns a string field, or an empty string if it is missing.
std::string text_of(const json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Result<std::uint64_t> number_of(const json& event, const char* field, std::uint64_t max) {
  const auto found = event.find(field);
  if (found == event.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() > max)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("\"{}\": expected 0 to {}, found {}", field, max,
                            found == event.end() ? "nothing" : found->dump()));
  return found->get<std::uint64_t>();
}

Result<double> microseconds_of(const json& event, const char* field) {
  const auto found = event.find(field);
  const double value =
      found != event.end() && found->is_number() ? found->get<double>() : std::nan("");
  // Written so that NaN is refused: every comparison with NaN is false.
  if (!(value >= 0 && value <= kMicrosecondsMax))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("\"{}\": expected 0 to {:.0e} microseconds, found {}", field,
                            kMicrosecondsMax, found == event.end() ? "nothing" : found->dump()));
  return value;
}

// State of reading one trace.
class Reading {
 public:
  Result<> add(const json& event) {
    if (!event.is_object()) return fail(ErrorCode::kInvalidInput, "expected an object");
    const std::string phase = text_of(event, "ph");
    if (phase.empty())
      return fail(ErrorCode::kInvalidInput, "\"ph\" is missing; expected a string");
    if (phase == "X") return add_span(event);
    if (phase == "M") return add_name(event);
    return {};
  }
  // A thread's name may follow its spans in the file, so lanes get their names at the end.
  std::vector<ProcessTrace> finish() && {
    for (ProcessTrace& process : processes_)
      for (Span& span : process.spans) {
        const auto name = lanes_.find({process.pid, span.lane});
        span.lane = name != lanes_.end() ? name->second : "thread " + span.lane;
      }
    return std::move(processes_);
  }

 private:
  Result<ProcessTrace*> process_of(const json& event) {
    const auto pid = static_cast<std::uint32_t>(WSYNC_TRY(number_of(event, "pid", UINT32_MAX)));
    const auto [found, is_new] = index_.try_emplace(pid, processes_.size());
    if (is_new) processes_.push_back({.name = {}, .pid = pid, .spans = {}});
    return &processes_[found->second];
  }
  Result<> add_span(const json& event) {
    ProcessTrace* process = WSYNC_TRY(process_of(event));
    const std::uint64_t thread = WSYNC_TRY(number_of(event, "tid", UINT64_MAX));
    const double begin = WSYNC_TRY(microseconds_of(event, "ts"));
    const double lasts = WSYNC_TRY(microseconds_of(event, "dur"));
    if (begin + lasts > kMicrosecondsMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the event ends after {:.0e} microseconds", kMicrosecondsMax));
    Span span{.name = text_of(event, "name"),
              .lane = std::to_string(thread),
              .category = category_named(text_of(event, "cat")).value_or(Category::kOther),
              .begin = time_of(begin),
              .end = time_of(begin) + std::chrono::nanoseconds(std::llround(lasts * 1e3)),
              .label = {},
              .args = {}};
    read_args(event, span);
    process->spans.push_back(std::move(span));
    return {};
  }
  static void read_args(const json& event, Span& span) {
    const auto args = event.find("args");
    if (args == event.end() || !args->is_object()) return;
    for (const auto& [name, value] : args->items()) {
      if (name == "label" && value.is_string())
        span.label = value.get<std::string>();
      else if (value.is_string())
        span.args.push_back({.name = name, .value = value.get<std::string>()});
      else if (value.is_number_integer())
        span.args.push_back({.name = name, .value = value.get<std::int64_t>()});
    }
  }
  Result<> add_name(const json& event) {
    const std::string what = text_of(event, "name");
    if (what != "process_name" && what != "thread_name") return {};
    ProcessTrace* process = WSYNC_TRY(process_of(event));
    const auto args = event.find("args");
    std::string name =
        args != event.end() && args->is_object() ? text_of(*args, "name") : std::string();
    if (what == "process_name") {
      process->name = std::move(name);
      return {};
    }
    const std::uint64_t thread = WSYNC_TRY(number_of(event, "tid", UINT64_MAX));
    if (!name.empty()) lanes_[{process->pid, std::to_string(thread)}] = std::move(name);
    return {};
  }

  std::vector<ProcessTrace> processes_;
  std::map<std::uint32_t, std::size_t> index_;  // index in processes_ by pid
  std::map<std::pair<std::uint32_t, std::string>, std::string> lanes_;
};

// Callback of the JSON parser. It discards each event as soon as the event has been read, so that
// the document tree of the whole file is never in memory.
class Splitter {
 public:
  Splitter(Reading& reading, const ReadLimits& limits) : reading_(reading), limits_(limits) {}

  // Returns false to discard the value that was just parsed.
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (problem_) return false;
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && static_cast<std::uint64_t>(depth) >= limits_.depth)
      return refuse(fmt::format("lists and objects nested deeper than {}", limits_.depth));
    if (depth == 1 && event == Event::key) {
      in_events_ = parsed == "traceEvents";
      found_ = found_ || in_events_;
      return in_events_;
    }
    if (!in_events_) return true;
    if (depth == 1 && (event == Event::value || event == Event::object_start))
      return refuse("\"traceEvents\" is not a list");
    const bool is_whole =
        event == Event::object_end || event == Event::array_end || event == Event::value;
    if (depth == 2 && is_whole) {
      add(parsed);
      return false;
    }
    return true;
  }
  [[nodiscard]] const std::optional<std::string>& problem() const noexcept { return problem_; }
  [[nodiscard]] bool found_events() const noexcept { return found_; }

 private:
  bool refuse(std::string why) {
    problem_ = std::move(why);
    return false;
  }
  void add(const json& event) {
    if (++events_ > limits_.events) {
      refuse(fmt::format("more than {} events", limits_.events));
      return;
    }
    if (const Result<> added = reading_.add(event); !added)
      refuse(fmt::format("event {}: {}", events_, added.error().message()));
  }

  Reading& reading_;
  const ReadLimits& limits_;
  std::uint64_t events_ = 0;
  bool in_events_ = false;
  bool found_ = false;
  std::optional<std::string> problem_;
};

}  // namespace

Result<std::vector<ProcessTrace>> parse_chrome_trace(std::string_view text,
                                                     const ReadLimits& limits) {
  const auto refused = [](const std::string& why) {
    return fail(ErrorCode::kInvalidInput, "not a Chrome trace: " + why);
  };
  if (text.size() > limits.bytes)
    return refused(fmt::format("{} bytes, at most {} are read", text.size(), limits.bytes));
  Reading reading;
  Splitter splitter(reading, limits);
  try {
    const json rest = json::parse(text.begin(), text.end(),
                                  [&](int depth, json::parse_event_t event, json& parsed) {
                                    return splitter(depth, event, parsed);
                                  });
  } catch (const json::exception& error) {
    return refused(splitter.problem().value_or(error.what()));
  }
  if (splitter.problem()) return refused(*splitter.problem());
  if (!splitter.found_events()) return refused("no list \"traceEvents\"");
  return std::move(reading).finish();
}

Result<std::vector<ProcessTrace>> read_chrome_trace(const std::string& path,
                                                    const ReadLimits& limits) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return fail_errno(fmt::format("cannot read the trace {}", path), error.value());
  if (bytes > limits.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {} bytes, at most {} are read", path, bytes, limits.bytes));
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes)))
    return fail(ErrorCode::kIo, fmt::format("cannot read the trace {}", path));
  auto processes = parse_chrome_trace(text, limits);
  if (!processes) return fail(processes.error().with_context(path));
  return processes;
}

}  // namespace wsync::trace
