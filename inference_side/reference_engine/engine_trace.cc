#include "inference_side/reference_engine/engine_trace.h"

#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/observe/trace/chrome_trace.h"

namespace wsync::cli {
namespace {

using engine::reference::EngineEvent;
using trace::Category;

std::vector<trace::Arg> args_of_event(const EngineEvent& event) {
  std::vector<trace::Arg> args;
  for (const auto& [name, value] : event.fields) {
    if (const auto* number = std::get_if<std::uint64_t>(&value))
      args.push_back({.name = name, .value = static_cast<std::int64_t>(*number)});
    else
      args.push_back({.name = name, .value = std::get<std::string>(value)});
  }
  return args;
}

std::string text_of(const EngineEvent& event, std::string_view field) {
  for (const auto& [name, value] : event.fields)
    if (name == field) return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
  return {};
}

}  // namespace

void EngineTrace::end(const std::string& lane, Category category, std::string name,
                      std::vector<trace::Arg> args, TimePoint at) {
  const auto begin = begun_.extract(lane);
  if (begin.empty()) return;
  recorder_.record({.name = std::move(name),
                    .lane = lane,
                    .category = category,
                    .begin = begin.mapped(),
                    .end = at,
                    .label = {},
                    .args = std::move(args)});
}

void EngineTrace::heard(const EngineEvent& event, TimePoint at) {
  const std::string version = text_of(event, "version");
  if (event.name == "running") {
    end("pause", Category::kPause, "paused", args_of_event(event), at);
    begun_["serving"] = at;
  } else if (event.name == "paused") {
    end("serving", Category::kStep, "serving", args_of_event(event), at);
    begun_["pause"] = at;
  } else if (event.name == "loading") {
    begun_["load"] = begun_["bucket"] = at;
  } else if (event.name == "bucket") {
    end("bucket", Category::kReload, "copy of bucket " + text_of(event, "bucket"),
        args_of_event(event), at);
    begun_["bucket"] = at;
  } else if (event.name == "loaded") {
    end("load", Category::kReload, "load of " + version, args_of_event(event), at);
    begun_.erase("bucket");
    begun_["commit"] = at;
  } else if (event.name == "committed") {
    end("commit", Category::kOther, "commit of " + version, args_of_event(event), at);
  }
}

Result<> EngineTrace::write(const std::string& path, const std::string& name, TimePoint at) {
  end("serving", Category::kStep, "serving", {}, at);
  end("pause", Category::kPause, "paused", {}, at);
  return trace::write_chrome_trace(path, {{.name = name,
                                           .pid = static_cast<std::uint32_t>(::getpid()),
                                           .spans = recorder_.spans(),
                                           .host = host_name(),
                                           .dropped = recorder_.dropped()}});
}

}  // namespace wsync::cli
