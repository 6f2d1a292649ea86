#include "deploy/cli/demo_trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "deploy/cli/context.h"
#include "inference_side/reload/pipeline_trace.h"
#include "shared/base/format.h"
#include "shared/trace/timeline.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using trace::Category;

Category category_of(const std::string& name) {
  for (const Category category :
       {Category::kH2D, Category::kBroadcast, Category::kReload, Category::kPause, Category::kStage,
        Category::kForward, Category::kBackward, Category::kExpertParallel,
        Category::kPipelineParallel, Category::kOffload, Category::kStep})
    if (name == trace::category_name(category)) return category;
  return Category::kOther;
}

std::int64_t nanoseconds(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1e3);
}

trace::Span span_of(const json& event, const std::map<std::int64_t, std::string>& lanes) {
  trace::Span span;
  span.name = event.at("name");
  span.lane = lanes.at(event.at("tid"));
  span.category = category_of(event.at("cat"));
  const std::int64_t begin = nanoseconds(event.at("ts"));
  span.begin = TimePoint{begin};
  span.end = TimePoint{begin + nanoseconds(event.at("dur"))};
  for (const auto& [name, value] : event.at("args").items()) {
    if (value.is_number())
      span.args.push_back({.name = name, .value = value.get<std::int64_t>()});
    else
      span.args.push_back({.name = name, .value = value.get<std::string>()});
    if (name == "source" && value.is_number()) span.label = value.dump();
  }
  return span;
}

std::vector<trace::ProcessTrace> parse(const json& file) {
  std::vector<trace::ProcessTrace> processes;
  std::vector<std::map<std::int64_t, std::string>> lanes;  // of each process, by thread
  for (const json& event : file.at("traceEvents")) {
    const std::uint32_t pid = event.at("pid");
    auto process = std::find_if(processes.begin(), processes.end(),
                                [pid](const trace::ProcessTrace& p) { return p.pid == pid; });
    if (process == processes.end()) {
      process = processes.insert(process, {.name = {}, .pid = pid, .spans = {}});
      lanes.emplace_back();
    }
    auto& of_process = lanes[static_cast<std::size_t>(process - processes.begin())];
    if (event.at("name") == "process_name") process->name = event.at("args").at("name");
    if (event.at("name") == "thread_name")
      of_process[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") process->spans.push_back(span_of(event, of_process));
  }
  return processes;
}

std::string subtitle_of(const UpdatePicture& picture) {
  return fmt::format(
      "version {} on {}; separate host devices, buffers of {}; {}", picture.version.to_string(),
      picture.sidecars == 1
          ? std::string("one sidecar")
          : fmt::format("one of {} sidecars that switch at the same time", picture.sidecars),
      human_bytes(picture.buffer_bytes), machine_text());
}

}  // namespace

std::string machine_text() {
  std::string model = "an unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  return fmt::format("{} cores of {}", std::thread::hardware_concurrency(), model);
}

Result<std::vector<trace::ProcessTrace>> read_traces(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(ErrorCode::kNotFound, path + ": no trace was written");
  try {
    return parse(json::parse(file));
  } catch (const std::exception& error) {  // a thread without a name, or other JSON than expected
    return fail(ErrorCode::kInternal, fmt::format("{}: {}", path, error.what()));
  }
}

Result<trace::ProcessTrace> read_trace(const std::string& path) {
  auto processes = read_traces(path);
  if (!processes) return fail(processes.error());
  if (processes->size() != 1)
    return fail(ErrorCode::kInternal,
                fmt::format("{}: a trace of {} processes, expected one", path, processes->size()));
  return std::move(processes->front());
}

Result<> write_update_picture(const std::string& path, const trace::ProcessTrace& sidecar,
                              const UpdatePicture& picture) {
  for (const trace::PauseBand& band : trace::pause_bands(sidecar.spans))
    if (band.begin >= picture.begin && band.end <= picture.end)
      return trace::write_timeline_svg(
          path, trace::spans_between(sidecar.spans, band.begin, band.end),
          {.title = fmt::format("One update as measured: {} into {} engine{} through {} devices",
                                human_bytes(picture.model_bytes), picture.engines,
                                picture.engines == 1 ? "" : "s", picture.devices),
           .subtitle = subtitle_of(picture),
           .lanes = reload::PipelineTrace::chart_lanes(picture.devices)});
  return fail(ErrorCode::kNotFound,
              fmt::format("the trace of {} shows no pause for the picture", sidecar.name));
}

}  // namespace wsync::cli
