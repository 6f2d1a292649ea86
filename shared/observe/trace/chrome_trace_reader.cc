#include "shared/observe/trace/chrome_trace_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "shared/base/format.h"

namespace wsync::trace {
namespace {

using nlohmann::json;

constexpr double kMicrosecondsMost = 1e15;  // some 31 years

struct ThreadEvents {
  std::size_t process = 0;
  std::string lane;
  std::vector<std::size_t> spans;  // indices in the process
  std::vector<Span> open;          // begun, not ended
};

struct FlowEvent {
  std::string key;  // which flow it belongs to
  std::string name;
  double at = 0;
  int phase = 0;  // 0: start, 1: step, 2: end
  std::size_t thread = 0;
  std::size_t number = 0;  // in the file
};

TimePoint time_of(double microseconds) {
  return TimePoint{static_cast<std::int64_t>(std::llround(microseconds * 1e3))};
}

// What has been read of a file.
class Reading {
 public:
  explicit Reading(const ReadLimits& limits) : limits_(limits) {}

  // False ends it: problem() says why.
  bool take(const json& event) {
    if (++events_ > limits_.events)
      return refuse(fmt::format("more than {} events", limits_.events));
    if (!event.is_object()) return refuse("expected an object");
    const auto phase = event.find("ph");
    if (phase == event.end() || !phase->is_string()) return refuse("no \"ph\", a string");
    const std::string& kind = phase->get_ref<const std::string&>();
    if (kind == "X" || kind == "B") return span(event, kind == "X");
    if (kind == "E") return end(event);
    if (kind == "M") return metadata(event);
    if (kind == "s" || kind == "t" || kind == "f") return flow(event, kind);
    return true;
  }
  void other_data(const json& other) { other_ = other; }
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  bool refuse(const std::string& why) {
    if (problem_.empty()) problem_ = events_ == 0 ? why : fmt::format("event {}: {}", events_, why);
    return false;
  }

  Trace finish() {
    for (ThreadEvents& thread : threads_)
      while (!thread.open.empty()) close(thread, last_);
    for (const ThreadEvents& thread : threads_)
      for (const std::size_t span : thread.spans)
        trace_.processes[thread.process].spans[span].lane = thread.lane;
    bind_flows();
    describe_processes();
    return std::move(trace_);
  }

 private:
  // The number or name under which something is told apart; 0 where it is missing.
  std::optional<std::string> identity(const json& event, const char* field) {
    const auto found = event.find(field);
    if (found == event.end()) return "0";
    if (found->is_number_integer()) return found->dump();
    if (found->is_string()) return '"' + found->get<std::string>();
    refuse(fmt::format("\"{}\": expected a whole number or a string, found {}", field,
                       found->type_name()));
    return std::nullopt;
  }
  std::optional<std::size_t> process_of(const json& event) {
    const auto id = identity(event, "pid");
    if (!id) return std::nullopt;
    const auto [found, is_new] = process_index_.try_emplace(*id, trace_.processes.size());
    if (!is_new) return found->second;
    const auto pid = event.find("pid");
    std::uint32_t number = 0;
    if (pid != event.end() && pid->is_number_integer()) {
      if (pid->is_number_unsigned() ? pid->get<std::uint64_t>() > UINT32_MAX : true) {
        refuse("\"pid\": expected 0 to 4294967295, found " + pid->dump());
        return std::nullopt;
      }
      number = pid->get<std::uint32_t>();
    }
    trace_.processes.push_back(
        {.name = pid != event.end() && pid->is_string() ? pid->get<std::string>() : std::string(),
         .pid = number,
         .spans = {}});
    return found->second;
  }
  std::optional<std::size_t> thread_of(const json& event) {
    const auto process = process_of(event);
    if (!process) return std::nullopt;
    const auto id = identity(event, "tid");
    if (!id) return std::nullopt;
    const auto [found, is_new] =
        thread_index_.try_emplace(std::pair(*process, *id), threads_.size());
    if (is_new)
      threads_.push_back({.process = *process,
                          .lane = id->starts_with('"') ? id->substr(1) : "thread " + *id,
                          .spans = {},
                          .open = {}});
    return found->second;
  }
  std::optional<double> microseconds(const json& event, const char* field, double most) {
    const auto found = event.find(field);
    if (found != event.end() && found->is_number()) {
      const double value = found->get<double>();
      if (std::abs(value) <= most) return value;
    }
    refuse(fmt::format("\"{}\": expected microseconds, a number of at most {:.0e}, found {}", field,
                       most, found == event.end() ? "nothing" : found->dump().substr(0, 40)));
    return std::nullopt;
  }
  static std::string text(const json& event, const char* field) {
    const auto found = event.find(field);
    return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
  }

  static void read_args(const json& event, Span& span) {
    const auto args = event.find("args");
    if (args == event.end() || !args->is_object()) return;
    for (const auto& [name, value] : args->items()) {
      if (value.is_string() && name == "label")
        span.label = value.get<std::string>();
      else if (value.is_string())
        span.args.push_back({.name = name, .value = value.get<std::string>()});
      else if (value.is_number_integer())
        span.args.push_back({.name = name, .value = value.get<std::int64_t>()});
    }
  }
  bool span(const json& event, bool complete) {
    const auto thread = thread_of(event);
    const auto at = thread ? microseconds(event, "ts", kMicrosecondsMost) : std::nullopt;
    const auto lasts = !at        ? std::nullopt
                       : complete ? microseconds(event, "dur", 2 * kMicrosecondsMost)
                                  : 0.0;
    if (!lasts) return false;
    if (*lasts < 0) return refuse("\"dur\" is below 0");
    if (*at + *lasts > kMicrosecondsMost)
      return refuse(fmt::format("it ends after {:.0e} microseconds", kMicrosecondsMost));
    Span span{.name = text(event, "name"),
              .lane = {},
              .category = category_named(text(event, "cat")).value_or(Category::kOther),
              .begin = time_of(*at),
              .end = time_of(*at) + std::chrono::nanoseconds(std::llround(*lasts * 1e3)),
              .label = {},
              .args = {}};
    read_args(event, span);
    last_ = std::max(last_, span.end);
    if (complete)
      keep(threads_[*thread], std::move(span));
    else
      threads_[*thread].open.push_back(std::move(span));
    return true;
  }
  bool end(const json& event) {
    const auto thread = thread_of(event);
    const auto at = thread ? microseconds(event, "ts", kMicrosecondsMost) : std::nullopt;
    if (!at) return false;
    last_ = std::max(last_, time_of(*at));
    if (!threads_[*thread].open.empty()) close(threads_[*thread], time_of(*at));
    return true;
  }
  void close(ThreadEvents& thread, TimePoint at) {
    Span span = std::move(thread.open.back());
    thread.open.pop_back();
    span.end = std::max(span.begin, at);
    keep(thread, std::move(span));
  }
  void keep(ThreadEvents& thread, Span span) {
    std::vector<Span>& spans = trace_.processes[thread.process].spans;
    thread.spans.push_back(spans.size());
    spans.push_back(std::move(span));
  }
  bool metadata(const json& event) {
    const std::string what = text(event, "name");
    if (what != "process_name" && what != "thread_name") return true;
    const auto args = event.find("args");
    const std::string name =
        args != event.end() && args->is_object() ? text(*args, "name") : std::string();
    if (what == "process_name") {
      const auto process = process_of(event);
      if (!process) return false;
      trace_.processes[*process].name = name;
      return true;
    }
    const auto thread = thread_of(event);
    if (!thread) return false;
    if (!name.empty()) threads_[*thread].lane = name;
    return true;
  }
  bool flow(const json& event, const std::string& kind) {
    const auto thread = thread_of(event);
    const auto at = thread ? microseconds(event, "ts", kMicrosecondsMost) : std::nullopt;
    const auto id = at ? identity(event, "id") : std::nullopt;
    if (!id) return false;
    const std::string name = text(event, "name");
    flows_.push_back({.key = text(event, "cat") + '\0' + name + '\0' + *id,
                      .name = name,
                      .at = *at,
                      .phase = kind == "s"   ? 0
                               : kind == "t" ? 1
                                             : 2,
                      .thread = *thread,
                      .number = flows_.size()});
    return true;
  }

  // The span that each flow event lies in: the innermost of its thread.
  std::vector<std::optional<std::size_t>> enclosing_spans() {
    std::vector<std::optional<std::size_t>> found(flows_.size());
    std::vector<std::vector<std::size_t>> by_thread(threads_.size());
    for (const FlowEvent& flow : flows_) by_thread[flow.thread].push_back(flow.number);
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (by_thread[t].empty()) continue;
      const std::vector<Span>& spans = trace_.processes[threads_[t].process].spans;
      std::vector<std::size_t> order = threads_[t].spans;
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return spans[a].begin != spans[b].begin ? spans[a].begin < spans[b].begin
                                                : spans[a].end > spans[b].end;
      });
      std::stable_sort(by_thread[t].begin(), by_thread[t].end(),
                       [&](std::size_t a, std::size_t b) { return flows_[a].at < flows_[b].at; });
      std::vector<std::size_t> open;
      auto next = order.begin();
      for (const std::size_t event : by_thread[t]) {
        const TimePoint at = time_of(flows_[event].at);
        for (; next != order.end() && spans[*next].begin <= at; ++next) open.push_back(*next);
        while (!open.empty() && spans[open.back()].end < at) open.pop_back();
        if (!open.empty()) found[event] = open.back();
      }
    }
    return found;
  }

  void bind_flows() {
    const auto enclosing = enclosing_spans();
    std::stable_sort(flows_.begin(), flows_.end(), [](const FlowEvent& a, const FlowEvent& b) {
      return std::tie(a.at, a.phase, a.number) < std::tie(b.at, b.phase, b.number);
    });
    std::map<std::string, Flow> flows;
    std::vector<const std::string*> order;
    std::uint64_t unbound = 0;
    for (const FlowEvent& event : flows_) {
      const auto [flow, is_new] = flows.try_emplace(event.key);
      if (is_new) {
        flow->second.name = event.name;
        order.push_back(&flow->first);
      }
      const auto span = enclosing[event.number];
      if (span)
        flow->second.steps.push_back({.process = threads_[event.thread].process, .span = *span});
      else
        ++unbound;
    }
    for (const std::string* key : order)
      if (flows[*key].steps.size() >= 2) trace_.flows.push_back(std::move(flows[*key]));
    if (unbound != 0) trace_.notes.push_back(fmt::format("{} flow events lie in no span", unbound));
  }

  // What chrome_trace_json() has written of each process; anything else is passed over.
  void describe_processes() {
    if (!other_.is_object()) return;
    const auto notes = other_.find("notes");
    if (notes != other_.end() && notes->is_array())
      for (const json& note : *notes)
        if (note.is_string()) trace_.notes.push_back(note.get<std::string>());
    const auto processes = other_.find("processes");
    if (processes == other_.end() || !processes->is_array()) return;
    for (const json& told : *processes) {
      if (!told.is_object()) continue;
      const auto pid = told.find("pid");
      if (pid == told.end() || !pid->is_number_unsigned()) continue;
      const auto index = process_index_.find(pid->dump());
      if (index == process_index_.end()) continue;
      ProcessTrace& process = trace_.processes[index->second];
      process.host = text(told, "host");
      if (const auto n = told.find("dropped_spans"); n != told.end() && n->is_number_unsigned())
        process.dropped = n->get<std::uint64_t>();
      for (const ClockKind kind : {ClockKind::kSame, ClockKind::kMeasured, ClockKind::kUnknown})
        if (text(told, "clock") == clock_kind_name(kind))
          process.clock = ClockReading{.kind = kind,
                                       .offset = duration(told, "clock_offset_us"),
                                       .uncertainty = duration(told, "clock_uncertainty_us")};
    }
  }
  static std::chrono::nanoseconds duration(const json& object, const char* field) {
    const auto found = object.find(field);
    if (found == object.end() || !found->is_number()) return {};
    const double value = found->get<double>();
    if (!(std::abs(value) <= kMicrosecondsMost)) return {};
    return std::chrono::nanoseconds(std::llround(value * 1e3));
  }

  const ReadLimits& limits_;
  Trace trace_;
  std::uint64_t events_ = 0;
  std::map<std::string, std::size_t> process_index_;
  std::map<std::pair<std::size_t, std::string>, std::size_t> thread_index_;
  std::vector<ThreadEvents> threads_;
  std::vector<FlowEvent> flows_;
  TimePoint last_{};
  json other_;
  std::string problem_;
};

// Takes events out of the text one after the other, so that no tree of all of them is ever held.
class Splitter {
 public:
  Splitter(Reading& reading, const ReadLimits& limits) : reading_(reading), limits_(limits) {}

  // The JSON library's callback; false drops what has just been read.
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (!reading_.problem().empty()) return false;
    using What = json::parse_event_t;
    const bool begins = event == What::object_start || event == What::array_start;
    if (begins && static_cast<std::uint64_t>(depth) >= limits_.depth)
      return reading_.refuse(fmt::format("lists and objects nested deeper than {}", limits_.depth));
    if (depth == 0 && begins) is_list_ = event == What::array_start;
    if (depth == 1 && event == What::key) {
      in_events_ = parsed == "traceEvents";
      found_ = found_ || in_events_;
      return in_events_ || parsed == "otherData";
    }
    const int event_depth = is_list_ ? 1 : 2;
    const bool complete =
        event == What::object_end || event == What::array_end || event == What::value;
    if ((is_list_ || in_events_) && depth == event_depth && complete) {
      reading_.take(parsed);
      return false;
    }
    if (in_events_ && depth == 1 && (event == What::value || event == What::object_start))
      return reading_.refuse("\"traceEvents\" is no list");
    return true;
  }
  [[nodiscard]] bool found_events() const noexcept { return found_ || is_list_; }

 private:
  Reading& reading_;
  const ReadLimits& limits_;
  bool is_list_ = false;
  bool in_events_ = false;
  bool found_ = false;
};

}  // namespace

Result<Trace> parse_chrome_trace(std::string_view text, const ReadLimits& limits) {
  const auto refused = [](const std::string& why) {
    return fail(ErrorCode::kInvalidInput, "no Chrome trace: " + why);
  };
  if (text.size() > limits.bytes)
    return refused(fmt::format("{} bytes, at most {} are read", text.size(), limits.bytes));
  Reading reading(limits);
  Splitter splitter(reading, limits);
  try {
    const json root = json::parse(text.begin(), text.end(),
                                  [&](int depth, json::parse_event_t event, json& parsed) {
                                    return splitter(depth, event, parsed);
                                  });
    if (!reading.problem().empty()) return refused(reading.problem());
    if (!splitter.found_events()) return refused("no list \"traceEvents\"");
    if (root.is_object() && root.contains("otherData")) reading.other_data(root.at("otherData"));
    return reading.finish();
  } catch (const json::exception& error) {
    return refused(reading.problem().empty() ? error.what() : reading.problem());
  }
}

Result<Trace> read_chrome_trace(const std::string& path, const ReadLimits& limits) {
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
  auto trace = parse_chrome_trace(text, limits);
  if (!trace) return fail(trace.error().with_context(path));
  return trace;
}

}  // namespace wsync::trace
