#include "shared/observe/trace/chrome_trace.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "shared/base/format.h"
#include "shared/observe/trace/json_quote.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::trace {
namespace {

std::string quoted(std::string_view text) { return json_quoted(text); }

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

// The label is written as an argument because the format has no field for it.
std::string args_json(const Span& span) {
  std::string out = "{";
  for (const Arg& arg : span.args) {
    if (out.size() > 1) out += ',';
    out += quoted(arg.name) + ':';
    if (const auto* number = std::get_if<std::int64_t>(&arg.value))
      out += std::to_string(*number);
    else
      out += quoted(std::get<std::string>(arg.value));
  }
  if (!span.label.empty()) {
    if (out.size() > 1) out += ',';
    out += "\"label\":" + quoted(span.label);
  }
  return out + '}';
}

constexpr std::string_view kFlowCategory = "flow";

class Writer {
 public:
  void name(std::string_view what, std::uint32_t pid, std::size_t tid, std::string_view name) {
    line(R"({{"ph":"M","name":{},"pid":{},"tid":{},"args":{{"name":{}}}}})", quoted(what), pid, tid,
         quoted(name));
  }
  void order(std::string_view what, std::uint32_t pid, std::size_t tid, std::size_t index) {
    line(R"({{"ph":"M","name":{},"pid":{},"tid":{},"args":{{"sort_index":{}}}}})", quoted(what),
         pid, tid, index);
  }
  void span(std::uint32_t pid, std::size_t tid, const Span& s) {
    line(R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{}}})",
         quoted(s.name), quoted(category_name(s.category)), pid, tid,
         microseconds(static_cast<std::int64_t>(s.begin)), microseconds((s.end - s.begin).count()),
         args_json(s));
  }
  // `bp` binds the last event to the enclosing span; the other events bind to it by default.
  void flow(char phase, std::string_view name, std::size_t id, std::uint32_t pid, std::size_t tid,
            TimePoint at) {
    line(R"({{"ph":"{}","name":{},"cat":{},"id":{},"pid":{},"tid":{},"ts":{:.3f}{}}})", phase,
         quoted(name), quoted(kFlowCategory), id, pid, tid,
         microseconds(static_cast<std::int64_t>(at)), phase == 'f' ? R"(,"bp":"e")" : "");
  }
  std::string finish(const std::string& other_data) {
    return out_ + "\n],\"otherData\":" + other_data + "}\n";
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  std::string out_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
  bool first_ = true;
};

std::string other_data_json(const Trace& trace, const std::vector<std::uint32_t>& pids) {
  std::string out = "{\"processes\":[";
  for (std::size_t i = 0; i < trace.processes.size(); ++i) {
    const ProcessTrace& process = trace.processes[i];
    out += fmt::format(R"({}{{"name":{},"pid":{},"process_pid":{},"host":{},"dropped_spans":{})",
                       i == 0 ? "" : ",", quoted(process.name), pids[i], process.pid,
                       quoted(process.host), process.dropped);
    if (process.clock)
      out += fmt::format(R"(,"clock":"{}","clock_offset_us":{:.3f},"clock_uncertainty_us":{:.3f})",
                         clock_kind_name(process.clock->kind),
                         microseconds(process.clock->offset.count()),
                         microseconds(process.clock->uncertainty.count()));
    out += '}';
  }
  out += "],\"notes\":[";
  for (std::size_t i = 0; i < trace.notes.size(); ++i)
    out += (i == 0 ? "" : ",") + quoted(trace.notes[i]);
  return out + "]}";
}

// Returns a unique process id for each process of the file.
std::vector<std::uint32_t> unique_pids(const std::vector<ProcessTrace>& processes) {
  std::set<std::uint32_t> taken;
  for (const ProcessTrace& process : processes) taken.insert(process.pid);
  std::set<std::uint32_t> given;
  std::vector<std::uint32_t> pids;
  for (const ProcessTrace& process : processes) {
    std::uint32_t pid = process.pid;
    while (given.contains(pid) || (pid != process.pid && taken.contains(pid))) ++pid;
    given.insert(pid);
    pids.push_back(pid);
  }
  return pids;
}

// Returns true if the span can start on a thread whose open spans end at these times (the innermost
// last).
bool fits(std::vector<TimePoint>& open, const Span& span) {
  while (!open.empty() && open.back() <= span.begin) open.pop_back();
  return open.empty() || span.end <= open.back();
}

// Spans of a process, sorted by begin. A viewer drops spans of one thread that overlap without
// being nested. Such spans therefore move to additional lanes "<lane> (2)" and so on.
struct Placed {
  std::vector<Span> spans;
  std::vector<std::size_t> order;  // original index of each span
};

Placed placed(const std::vector<Span>& spans) {
  Placed result;
  result.order.resize(spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) result.order[i] = i;
  std::stable_sort(result.order.begin(), result.order.end(), [&](std::size_t a, std::size_t b) {
    return spans[a].begin != spans[b].begin ? spans[a].begin < spans[b].begin
                                            : spans[a].end > spans[b].end;
  });
  // End times of open spans, per lane and thread.
  std::map<std::string_view, std::vector<std::vector<TimePoint>>> lanes;
  for (const std::size_t index : result.order) {
    const Span& span = spans[index];
    auto& threads = lanes[span.lane];
    std::size_t thread = 0;
    while (thread < threads.size() && !fits(threads[thread], span)) ++thread;
    if (thread == threads.size()) threads.emplace_back();
    threads[thread].push_back(span.end);
    Span& copy = result.spans.emplace_back(span);
    if (thread > 0) copy.lane = fmt::format("{} ({})", span.lane, thread + 1);
  }
  return result;
}

}  // namespace

std::string chrome_trace_json(const Trace& trace) {
  Writer writer;
  const std::vector<std::uint32_t> pids = unique_pids(trace.processes);
  std::vector<std::vector<std::size_t>> tids(trace.processes.size());  // thread of each span
  std::size_t next_tid = 1;  // unique in the file: viewers match names by thread id alone
  for (std::size_t p = 0; p < trace.processes.size(); ++p) {
    const ProcessTrace& process = trace.processes[p];
    writer.name("process_name", pids[p], 0, process.name);
    writer.order("process_sort_index", pids[p], 0, p);
    const Placed sorted = placed(process.spans);
    tids[p].resize(process.spans.size());
    std::map<std::string_view, std::size_t> lanes;
    for (std::size_t i = 0; i < sorted.spans.size(); ++i) {
      const Span& s = sorted.spans[i];
      const auto [lane, is_new] = lanes.try_emplace(s.lane, next_tid);
      if (is_new) {
        ++next_tid;
        writer.name("thread_name", pids[p], lane->second, s.lane);
        writer.order("thread_sort_index", pids[p], lane->second, lane->second);
      }
      writer.span(pids[p], lane->second, s);
      tids[p][sorted.order[i]] = lane->second;
    }
  }
  for (std::size_t id = 0; id < trace.flows.size(); ++id) {
    const Flow& flow = trace.flows[id];
    TimePoint at{};
    for (std::size_t i = 0; i < flow.steps.size(); ++i) {
      const auto& [p, span] = flow.steps[i];
      const char phase = i == 0 ? 's' : i + 1 == flow.steps.size() ? 'f' : 't';
      const Span& s = trace.processes[p].spans[span];
      // The time of an event must not precede that of the event before it. With inexact clock
      // offsets the begin of the span may be too early; a later time within the span is used then.
      at = at > s.begin && at <= s.end ? at : s.begin;
      writer.flow(phase, flow.name, id + 1, pids[p], tids[p][span], at);
    }
  }
  return writer.finish(other_data_json(trace, pids));
}

std::string chrome_trace_json(const std::vector<ProcessTrace>& processes) {
  return chrome_trace_json(Trace{.processes = processes});
}

Result<> write_chrome_trace(const std::string& path, const Trace& trace) {
  return write_text_file(path, chrome_trace_json(trace));
}

Result<> write_chrome_trace(const std::string& path, const std::vector<ProcessTrace>& processes) {
  return write_text_file(path, chrome_trace_json(processes));
}

}  // namespace wsync::trace
