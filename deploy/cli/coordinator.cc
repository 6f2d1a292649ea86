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
#include "trainer_side/publish/coordinator_agent.h"
#include "trainer_side/publish/fleet_coordinator.h"
#include "trainer_side/publish/stand_by.h"

namespace wsync::cli {
namespace {

struct CoordinatorOptions {
  std::string file;
  std::vector<std::string> set;
  bool take_over = false;
  bool stand_by = false;
  std::string trace;  // empty: as in the config
};

// Runs the loop until this process leads. Returns nothing if somebody has stopped the loop before.
Result<std::optional<publish::OpenedStore>> wait_for_lead(Loop& loop,
                                                          const config::TrainerConfig& config) {
  std::optional<Result<>> ended;
  const auto stand_by = WSYNC_TRY(publish::StandBy::create(loop, config, [&](Result<> outcome) {
    ended = std::move(outcome);
    loop.stop();
  }));
  loop.run();
  if (!ended) return std::nullopt;
  if (!*ended) return fail(ended->error());
  log_info("this coordinator leads fleet '{}' now", config.fleet);
  return stand_by->take();
}

Result<Outcome> run_coordinator(Context& context, const CoordinatorOptions& options) {
  std::vector<std::string> set = options.set;
  if (options.take_over) set.push_back("take_over=true");
  if (!options.trace.empty()) {
    const auto trace_file = WSYNC_TRY(trace_file_setting(options.trace));
    set.push_back("trace_file=" + trace_file);
  }
  if (context.options.log_level_given) set.push_back("log.level=" + context.options.log_level);
  if (context.options.log_format_given) set.push_back("log.format=" + context.options.log_format);
  auto config = WSYNC_TRY(config::load_trainer(
      {.file = options.file, .environment = config::process_environment(), .set = set}));
  context.configure_log("coordinator", config.log);
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  std::optional<Error> failure;
  const auto signals = WSYNC_TRY(Signals::create(**loop, [&loop](int) { (*loop)->stop(); }));
  publish::OpenedStore opened;
  if (options.stand_by) {
    auto led = WSYNC_TRY(wait_for_lead(**loop, config));
    if (!led) {
      log_info("stopping; this coordinator stood by, and the fleet has not noticed it");
      return Outcome{.result = {{"stopped", true}}};
    }
    opened = std::move(*led);
    // A process that holds the address all the same hangs, because its lease has ended.
    if (!config.etcd.members.empty()) config.take_over = true;
  } else {
    WSYNC_TRY(publish::make_fleet_folders(config));
    opened = WSYNC_TRY(publish::CoordinatorAgent::open_store(**loop, config));
  }
  const auto fleet = WSYNC_TRY(publish::FleetCoordinator::create(
      **loop, config,
      [&](const Error& why) {
        failure = why;
        (*loop)->stop();
      },
      std::move(opened)));
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
                    "wsync coordinator --stand-by --set decision_store=etcd:https://10.0.0.5:2379",
                    "wsync trainer --set coordinator=tcp://coordinator-host:9300 --set "
                    "publisher_key=/etc/wsync/publisher.key"}});
  command->add_option("-c,--config", options->file,
                      "YAML file (deploy/config/trainer.yaml); what concerns weights is not used");
  command->add_option("--set", options->set,
                      "Set a key as key=value; overrides the file (repeatable)");
  command->add_flag("--take-over", options->take_over,
                    "Take over the fleet and the address of another coordinator");
  command->add_flag("--stand-by", options->stand_by,
                    "Wait until no other coordinator leads the fleet, and take the lead then");
  command
      ->add_option("--trace", options->trace,
                   "Set trace_file: at the end, write a Chrome trace of the latest rounds")
      ->type_name("FILE.json");
  command->callback([&context, options] {
    context.run("coordinator", [&] { return run_coordinator(context, *options); });
  });
}

}  // namespace wsync::cli
