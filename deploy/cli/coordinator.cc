// `wsync coordinator`: a coordinator as a process of its own. It decides for a fleet and holds no
// weights; trainers publish to it (`coordinator` in their configuration).
#include <CLI/CLI.hpp>
#include <chrono>
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
#include "shared/loop/timer.h"
#include "trainer_side/publish/coordinator_agent.h"
#include "trainer_side/publish/fleet_coordinator.h"
#include "trainer_side/publish/key_watch.h"
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

// A coordinator that stands by again does so after this time.
constexpr std::chrono::milliseconds kStandByAgain{1'000};

// What ends the loop of this command.
struct CoordinatorRun {
  Loop& loop;
  const config::TrainerConfig& config;
  bool is_interrupted = false;
};

// Runs the loop until this process leads. Returns nothing if it is interrupted before.
Result<std::optional<publish::OpenedStore>> wait_for_lead(CoordinatorRun& run) {
  std::optional<Result<>> ended;
  const auto stand_by =
      WSYNC_TRY(publish::StandBy::create(run.loop, run.config, [&](Result<> outcome) {
        ended = std::move(outcome);
        run.loop.stop();
      }));
  if (!run.is_interrupted) run.loop.run();
  if (run.is_interrupted) return std::nullopt;
  if (!*ended) return fail(ended->error());
  log_info("this coordinator leads fleet '{}' now", run.config.fleet);
  return stand_by->take();
}

// Leads the fleet until it is interrupted, which is no error, or must stop.
Result<> lead_fleet(CoordinatorRun& run, publish::OpenedStore opened) {
  std::optional<Error> failure;
  const auto fleet = WSYNC_TRY(publish::FleetCoordinator::create(
      run.loop, run.config,
      [&](const Error& why) {
        failure = why;
        run.loop.stop();
      },
      std::move(opened)));
  log_info(
      "coordinator listens at {}; a trainer publishes to it with `coordinator: {}`, and a sidecar "
      "joins with `{}`",
      fleet->address(), fleet->address(), config::sidecar_command(fleet->address()));
  if (!run.is_interrupted) run.loop.run();
  if (failure && !run.is_interrupted) return fail(*failure);
  log_info(
      "stopping; the engines continue to serve, and the next coordinator goes on from the "
      "record");
  return {};
}

// Stands by and leads in turn, until it is interrupted.
Result<> take_turns(CoordinatorRun& run) {
  if (run.config.take_over)
    return fail(ErrorCode::kInvalidInput,
                "take_over: a coordinator that stands by takes nothing from one that lives: leave "
                "out --stand-by or --take-over (`take_over` in the settings)");
  // What is wrong with the settings is said now, and not when the other coordinator is lost.
  if (!run.config.keys.empty()) (void)WSYNC_TRY(publish::KeyWatch::create(run.config.keys));
  for (;;) {
    auto led = WSYNC_TRY(wait_for_lead(run));
    if (!led) {
      log_info("stopping; this coordinator stood by, and the fleet has not noticed it");
      return {};
    }
    const Result<> ended = lead_fleet(run, std::move(*led));
    if (ended || run.is_interrupted) return {};
    // Another one leads, or a process that does not lead has the address.
    const ErrorCode code = ended.error().code();
    if (code != ErrorCode::kFenced && code != ErrorCode::kBusy) return ended;
    log_warning("{}; this coordinator stands by again", ended.error().message());
    Timer again(run.loop, [&run] { run.loop.stop(); });
    again.start(kStandByAgain);
    run.loop.run();
    if (run.is_interrupted) return {};
  }
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
  const auto config = WSYNC_TRY(config::load_trainer(
      {.file = options.file, .environment = config::process_environment(), .set = set}));
  context.configure_log("coordinator", config.log);
  const auto loop = WSYNC_TRY(Loop::create());
  CoordinatorRun run{.loop = *loop, .config = config};
  const auto signals = WSYNC_TRY(Signals::create(*loop, [&run](int) {
    run.is_interrupted = true;
    run.loop.stop();
  }));
  if (options.stand_by) {
    WSYNC_TRY(take_turns(run));
  } else {
    WSYNC_TRY(publish::make_fleet_folders(config));
    WSYNC_TRY(lead_fleet(run, WSYNC_TRY(publish::CoordinatorAgent::open_store(*loop, config))));
  }
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
  CLI::Option* take_over =
      command->add_flag("--take-over", options->take_over,
                        "Take over the fleet and the address of another coordinator");
  command
      ->add_flag("--stand-by", options->stand_by,
                 "Wait until no other coordinator leads the fleet, and take the lead then")
      ->excludes(take_over);
  command
      ->add_option("--trace", options->trace,
                   "Set trace_file: at the end, write a Chrome trace of the latest rounds")
      ->type_name("FILE.json");
  command->callback([&context, options] {
    context.run("coordinator", [&] { return run_coordinator(context, *options); });
  });
}

}  // namespace wsync::cli
