#include "shared/trace/chrome_trace.h"

#include <iterator>
#include <map>
#include <string_view>

#include "shared/base/format.h"
#include "shared/trace/text_file.h"

namespace wsync::trace {
namespace {

// A JSON string literal.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

std::string args_json(const std::vector<Arg>& args) {
  std::string out = "{";
  for (const Arg& arg : args) {
    if (out.size() > 1) out += ',';
    out += quoted(arg.name) + ':';
    if (const auto* number = std::get_if<std::int64_t>(&arg.value))
      out += std::to_string(*number);
    else
      out += quoted(std::get<std::string>(arg.value));
  }
  return out + '}';
}

class Writer {
 public:
  void name(std::string_view what, std::uint32_t pid, std::size_t tid, std::string_view name) {
    line(R"({{"ph":"M","name":{},"pid":{},"tid":{},"args":{{"name":{}}}}})", quoted(what), pid, tid,
         quoted(name));
  }
  void order(std::uint32_t pid, std::size_t tid) {
    line(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
         pid, tid, tid);
  }
  void span(std::uint32_t pid, std::size_t tid, const Span& s) {
    line(R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{}}})",
         quoted(s.name), quoted(category_name(s.category)), pid, tid,
         microseconds(static_cast<std::int64_t>(s.begin)), microseconds((s.end - s.begin).count()),
         args_json(s.args));
  }
  std::string finish() { return out_ + "\n]}\n"; }

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

}  // namespace

std::string chrome_trace_json(const std::vector<ProcessTrace>& processes) {
  Writer writer;
  for (const ProcessTrace& process : processes) {
    writer.name("process_name", process.pid, 0, process.name);
    std::map<std::string_view, std::size_t> lanes;
    for (const Span& s : process.spans) {
      const auto [lane, is_new] = lanes.try_emplace(s.lane, lanes.size() + 1);
      if (is_new) {
        writer.name("thread_name", process.pid, lane->second, s.lane);
        writer.order(process.pid, lane->second);
      }
      writer.span(process.pid, lane->second, s);
    }
  }
  return writer.finish();
}

Result<> write_chrome_trace(const std::string& path, const std::vector<ProcessTrace>& processes) {
  return write_text_file(path, chrome_trace_json(processes));
}

}  // namespace wsync::trace
