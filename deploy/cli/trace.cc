// `wsync trace`: what a running fleet has traced as a file, and any trace as a picture.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "deploy/cli/remote.h"
#include "deploy/cli/trace_draw.h"
#include "shared/base/format.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/chrome_trace_reader.h"
#include "shared/observe/trace/text_file.h"
#include "shared/weights/version.h"

namespace wsync::cli {
namespace {

constexpr unsigned kUpdatesMost = 10'000;
constexpr unsigned kPictureWidthLeast = 400;
constexpr unsigned kPictureWidthMost = 20'000;

struct GetOptions {
  std::string address;
  std::string output;
  unsigned updates = 1;
  double timeout_s = 30;
};

struct DrawArguments {
  std::vector<std::string> files;
  std::string output;
  std::string version;
  std::string from;
  std::string to;
  unsigned width_px = 1600;
};

nlohmann::json describe(const trace::Trace& trace) {
  nlohmann::json processes = nlohmann::json::array();
  for (const trace::ProcessTrace& process : trace.processes) {
    nlohmann::json told = {{"name", process.name},
                           {"host", process.host},
                           {"spans", process.spans.size()},
                           {"dropped_spans", process.dropped}};
    if (process.clock) {
      told["clock"] = trace::clock_kind_name(process.clock->kind);
      told["clock_offset_ns"] = process.clock->offset.count();
      told["clock_uncertainty_ns"] = process.clock->uncertainty.count();
    }
    processes.push_back(std::move(told));
  }
  return {{"processes", std::move(processes)},
          {"versions", traced_versions(trace)},
          {"flows", trace.flows.size()},
          {"notes", trace.notes}};
}

Result<Outcome> get(const GetOptions& options) {
  WSYNC_TRY(check_trace_file(options.output));
  auto trace =
      ask_trace(options.address, std::chrono::nanoseconds(0),
                std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000)));
  if (!trace) return fail(trace.error());
  std::vector<std::string> versions = traced_versions(*trace);
  if (options.updates != 0 && versions.size() > options.updates) {
    versions.resize(options.updates);
    keep_versions(*trace, versions);
  }
  WSYNC_TRY(trace::write_chrome_trace(options.output, *trace));
  Outcome outcome{.result = describe(*trace)};
  outcome.result["trace"] = options.output;
  outcome.text = fmt::format("{}: {}", options.output, trace_text(*trace));
  if (versions.empty()) outcome.text += "\nno update has been traced yet";
  return outcome;
}

// "1.5s", "200ms", "30us" since the begin of what is drawn.
Result<std::optional<std::chrono::nanoseconds>> parse_time(const std::string& name,
                                                           const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::size_t unit_at = text.find_first_not_of("0123456789.");
  const std::string unit = unit_at == std::string::npos ? "" : text.substr(unit_at);
  const double scale = unit == "s" ? 1e9 : unit == "ms" ? 1e6 : unit == "us" ? 1e3 : 0;
  double number = 0;
  constexpr double kMostNs = 1e18;
  if (scale == 0 || !CLI::detail::lexical_cast(text.substr(0, unit_at), number) ||
      !(number >= 0 && number * scale <= kMostNs))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} {}: expected a time since the first span, as 1.5s, 200ms or 30us",
                            name, text));
  return std::chrono::nanoseconds(static_cast<std::int64_t>(number * scale));
}

Result<Outcome> draw(const DrawArguments& arguments) {
  const auto from = WSYNC_TRY(parse_time("--from", arguments.from));
  const auto to = WSYNC_TRY(parse_time("--to", arguments.to));
  std::string output = arguments.output;
  if (output.empty())
    output = std::filesystem::path(arguments.files.front()).replace_extension(".svg").string();
  if (!output.ends_with(".svg"))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--output {}: expected a file that ends with .svg, the form that is "
                            "drawn",
                            output));
  WSYNC_TRY(check_trace_file(output));
  trace::Trace all;
  for (const std::string& file : arguments.files) {
    auto trace = WSYNC_TRY(trace::read_chrome_trace(file));
    std::ranges::move(trace.processes, std::back_inserter(all.processes));
    std::ranges::move(trace.notes, std::back_inserter(all.notes));
  }
  DrawOptions options{.title = std::filesystem::path(arguments.files.front()).filename().string(),
                      .version = arguments.version,
                      .from = from,
                      .to = to,
                      .width_px = arguments.width_px};
  if (arguments.files.size() > 1)
    options.title += fmt::format(" and {} more", arguments.files.size() - 1);
  Outcome outcome{.result = describe(all)};
  const auto svg = WSYNC_TRY(draw_trace(std::move(all), options));
  WSYNC_TRY(trace::write_text_file(output, svg));
  outcome.result["picture"] = output;
  outcome.text = output;
  return outcome;
}

void add_get(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "get",
       .description = "Write what a running fleet has traced of its last update, both sides on one "
                      "clock, as a Chrome trace (open it at ui.perfetto.dev)",
       .examples = {"wsync trace get --output update.json",
                    "wsync trace get --output all.json --updates 0 --json"}});
  auto options = std::make_shared<GetOptions>();
  options->address = default_address();
  command->add_option("-o,--output", options->output, "File to write")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--updates", options->updates,
                   "How many of the last updates; 0: all that are kept (default: 1)")
      ->check(CLI::Range(0U, kUpdatesMost));
  command
      ->add_option("--coordinator", options->address,
                   "Control address of the coordinator, or of one sidecar")
      ->capture_default_str()
      ->check(check_address);
  command->add_option("--timeout", options->timeout_s, "Seconds to wait for the reply")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 3600.0));
  command->callback(
      [&context, options] { context.run("trace get", [&] { return get(*options); }); });
}

void add_draw(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "draw",
       .description =
           "Draw any Chrome trace as a timeline: a row for each lane, grouped by process, "
           "pauses as bands",
       .examples = {"wsync trace draw update.json", "wsync trace draw all.json --version 1.7",
                    "wsync trace draw host0.json engine.json --from 1s --to 1.2s -o detail.svg"}});
  auto options = std::make_shared<DrawArguments>();
  command
      ->add_option("FILE", options->files,
                   "Chrome traces; those of processes of one host stand on one clock")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "Picture to write (default: the first file's name with .svg)")
      ->type_name("FILE");
  command->add_option("--version", options->version, "Only this version's update")
      ->type_name("E.S")
      ->check([](const std::string& text) {
        const auto version = Version::parse(text);
        return version ? std::string() : version.error().message();
      });
  command
      ->add_option("--from", options->from, "Begin there, since the first span: 1.5s, 200ms, 30us")
      ->type_name("TIME");
  command->add_option("--to", options->to, "End there")->type_name("TIME");
  command->add_option("--width", options->width_px, "Pixels (default: 1600)")
      ->check(CLI::Range(kPictureWidthLeast, kPictureWidthMost));
  command->callback(
      [&context, options] { context.run("trace draw", [&] { return draw(*options); }); });
}

}  // namespace

void add_trace(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("trace", "Traces of updates: of a running fleet, and as pictures");
  command->require_subcommand(1);
  add_get(*command, context);
  add_draw(*command, context);
}

}  // namespace wsync::cli
