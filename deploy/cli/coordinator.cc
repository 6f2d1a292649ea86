// `wsync coordinator`: a coordinator as a process of its own. It decides for a fleet and holds no
// weights; trainers publish to it (`coordinator` in their configuration).
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deploy/cli/commands.h"
#include "shared/base/log.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/signals.h"
#include "trainer_side/publish/fleet_coordinator.h"

namespace wsync::cli {
namespace {

struct CoordinatorOptions {
  std::string file;
  std::vector<std::string> set;
  bool take_over = false;
  std::string trace;  // empty: as in the config
};

Result<Outcome> run_coordinator(Context& context, const CoordinatorOptions& options) {
  std::vector<std::string> set = options.set;
  if (options.take_over) set.push_back("take_over=true");
  if (!options.trace.empty()) {
    const auto trace_file = WSYNC_TRY(trace_file_setting(options.trace));
    set.push_back("trace_file=" + trace_file);
  }
  if (context.options.log_level_given) set.push_back("log.level=" + context.options.log_level);
  if (context.options.log_format_given) set.push_back("log.format=" + context.options.log_format);
  const auto config = WSYNC_TRY(config::load_trainer(
      {.file = options.file, .environment = config::process_environment(), .set = set}));
  context.configure_log("coordinator", config.log);
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  std::optional<Error> failure;
  const auto signals = WSYNC_TRY(Signals::create(**loop, [&loop](int) { (*loop)->stop(); }));
  const auto fleet =
      WSYNC_TRY(publish::FleetCoordinator::create(**loop, config, [&](const Error& why) {
        failure = why;
        (*loop)->stop();
      }));
  log_info(
      "coordinator listens at {}; a trainer publishes to it with `coordinator: {}`, and a sidecar "
      "joins with `{}`",
      fleet->address(), fleet->address(), config::sidecar_command(fleet->address()));
  (*loop)->run();
  if (failure) return fail(*failure);
  log_info(
      "stopping; the engines continue to serve, and the next coordinator goes on from the "
      "record");
  return Outcome{.result = {{"stopped", true}}};
}

}  // namespace

void add_coordinator(CLI::App& app, Context& context) {
  auto options = std::make_shared<CoordinatorOptions>();
  CLI::App* command = add_command(
      app, context,
      {.name = "coordinator",
       .description = "Run a coordinator without weights, which outlives the trainers that publish "
                      "to it (a trainer has one of its own otherwise)",
       .examples = {"wsync coordinator -c trainer.yaml",
                    "wsync coordinator --set listen=tcp://0.0.0.0:9300 --set keys=/etc/wsync/keys",
                    "wsync trainer --set coordinator=tcp://coordinator-host:9300 --set "
                    "publisher_key=/etc/wsync/publisher.key"}});
  command->add_option("-c,--config", options->file,
                      "YAML file (deploy/config/trainer.yaml); what concerns weights is not used");
  command->add_option("--set", options->set,
                      "Set a key as key=value; overrides the file (repeatable)");
  command->add_flag("--take-over", options->take_over,
                    "Take over the fleet and the address of another coordinator");
  command
      ->add_option("--trace", options->trace,
                   "Set trace_file: at the end, write a Chrome trace of the latest rounds")
      ->type_name("FILE.json");
  command->callback([&context, options] {
    context.run("coordinator", [&] { return run_coordinator(context, *options); });
  });
}

}  // namespace wsync::cli
