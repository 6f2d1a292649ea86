// `wsync trace`: writes the trace of a running fleet to a file.
#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "deploy/cli/remote.h"
#include "shared/base/format.h"
#include "shared/command/command_key.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"

namespace wsync::cli {
namespace {

constexpr unsigned kUpdatesMax = 10'000;

struct GetOptions {
  std::string address;
  std::string key;  // file; empty: the coordinator has no keys
  std::string output;
  unsigned updates = 1;
  double timeout_s = 30;
};

nlohmann::json describe(const trace::Trace& trace) {
  nlohmann::json processes = nlohmann::json::array();
  for (const trace::ProcessTrace& process : trace.processes) {
    nlohmann::json entry = {{"name", process.name},
                            {"host", process.host},
                            {"spans", process.spans.size()},
                            {"dropped_spans", process.dropped}};
    if (process.clock) {
      entry["clock"] = trace::clock_kind_name(process.clock->kind);
      entry["clock_offset_ns"] = process.clock->offset.count();
      entry["clock_uncertainty_ns"] = process.clock->uncertainty.count();
    }
    processes.push_back(std::move(entry));
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
                std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000)),
                WSYNC_TRY(command_key(options.key)));
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

void add_get(CLI::App& parent, Context& context) {
  CLI::App* command =
      add_command(parent, context,
                  {.name = "get",
                   .description = "Write a Chrome trace of a running fleet's last update, both "
                                  "sides on one clock (open it at ui.perfetto.dev)",
                   .examples = {"wsync trace get --output update.json",
                                "wsync trace get --output all.json --updates 0 --json"}});
  auto options = std::make_shared<GetOptions>();
  options->address = default_address();
  command->add_option("-o,--output", options->output, "File to write")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--updates", options->updates,
                   "Number of latest updates; 0: all that the fleet has kept (default: 1)")
      ->check(CLI::Range(0U, kUpdatesMax));
  command
      ->add_option("--coordinator", options->address,
                   "Control address of the coordinator, or of one sidecar")
      ->capture_default_str()
      ->check(check_address);
  add_key_option(*command, options->key);
  add_timeout(*command, options->timeout_s);
  command->callback(
      [&context, options] { context.run("trace get", [&] { return get(*options); }); });
}

}  // namespace

void add_trace(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("trace", "Traces of the updates of a running fleet");
  command->require_subcommand(1);
  add_get(*command, context);
}

}  // namespace wsync::cli
