// `wsync sidecar`: the inference-side agent of this host.
#include <CLI/CLI.hpp>

#include "deploy/cli/commands.h"
#include "inference_side/sidecar/sidecar_agent.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/loop/signals.h"

namespace wsync::cli {
namespace {

struct SidecarOptions {
  std::string file;
  std::vector<std::string> set;
  std::string trace;  // empty: as in the config
};

Result<Outcome> run_sidecar(Context& context, const SidecarOptions& options) {
  std::vector<std::string> set = options.set;
  if (!options.trace.empty()) {
    const auto trace_file = WSYNC_TRY(trace_file_setting(options.trace));
    set.push_back("trace_file=" + trace_file);
  }
  const auto config = WSYNC_TRY(config::load_sidecar(
      {.file = options.file, .environment = config::process_environment(), .set = set}));
  context.configure_log("sidecar " + config.name, config.log);
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  const auto signals = WSYNC_TRY(Signals::create(**loop, [&loop](int) { (*loop)->stop(); }));
  auto agent = WSYNC_TRY(agent::SidecarAgent::create(**loop, config));
  log_info("engines attach at {}; coordinator {}", agent->engine_socket(), config.coordinator);
  (*loop)->run();
  if (agent->leave())
    log_info("stopping; no engine is attached, so this sidecar signs off from the coordinator");
  else
    log_info("stopping; engines continue to serve");
  return Outcome{.result = {{"stopped", true}}};
}

}  // namespace

void add_sidecar(CLI::App& app, Context& context) {
  auto options = std::make_shared<SidecarOptions>();
  CLI::App* command =
      add_command(app, context,
                  {.name = "sidecar",
                   .description = "Run the inference-side agent of a host: receives versions and "
                                  "switches the engines to them",
                   .examples = {"wsync sidecar -c sidecar.yaml",
                                "wsync sidecar --set name=host0 --set devices.kind=separate --set "
                                "devices.count=4"}});
  command->add_option("-c,--config", options->file, "YAML file (deploy/config/sidecar.yaml)");
  command->add_option("--set", options->set,
                      "Set a key as key=value; overrides the file (repeatable)");
  command
      ->add_option("--trace", options->trace,
                   "Set trace_file: at the end, write a Chrome trace of the latest switches, and a "
                   "picture of the last one beside it")
      ->type_name("FILE.json");
  command->callback([&context, options] {
    context.run("sidecar", [&] { return run_sidecar(context, *options); });
  });
}

}  // namespace wsync::cli
