// `wsync sidecar`: the inference-side agent of this host.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "deploy/cli/commands.h"
#include "inference_side/sidecar/sidecar_agent.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"
#include "trainer_side/publish/directory_follower.h"
#include "trainer_side/publish/fleet_place.h"

namespace wsync::cli {
namespace {

struct SidecarOptions {
  std::string file;
  std::vector<std::string> set;
  std::string follow_directory;
  std::string trace;  // empty: as in the config
};

// The trainer of a sidecar that follows a folder: at the address where the sidecar looks for one.
// Other keys are in the environment, where those of both mean this sidecar's addresses and files.
Result<config::TrainerConfig> trainer_of(const config::SidecarConfig& sidecar) {
  return config::parse_trainer(
      "", "the trainer of a sidecar that follows a directory",
      {.file = "",
       .environment = config::process_environment(),
       .set = {"listen=" + sidecar.coordinator, "run_dir=" + sidecar.run_dir,
               "state_dir=" + sidecar.state_dir, "fleet=" + sidecar.fleet,
               "follow_directory=" + sidecar.follow_directory,
               fmt::format("follow_interval={}ms", sidecar.follow_interval.count()),
               "coordinator=auto", "publisher_key=", "decision_store=file", "etcd.ca=",
               "etcd.certificate=", "etcd.key=", "checkpoint=", "trace_file=", "http.address=auto",
               "data_address=tcp://127.0.0.1:0", "advertise="}});
}

// What makes a sidecar the coordinator of its own fleet. While a command such as `wsync push` is
// that coordinator, this waits: the command may need this sidecar to end.
class Following {
 public:
  Following(Loop& loop, config::TrainerConfig config)
      : loop_(loop), config_(std::move(config)), wait_(config_), look_(loop, [this] {
          if (const auto begun = begin(); !begun) {
            failure_ = begun.error();
            loop_.stop();
          }
        }) {}

  // Follows the folder, now or as soon as no command is the coordinator. Errors as
  // DirectoryFollower::create().
  [[nodiscard]] Result<> begin() {
    const auto later = [this]() -> Result<> {
      if (!look_.active()) look_.start_repeating(publish::kPlaceLook);
      return {};
    };
    if (wait_.must_wait()) return later();
    auto follower = publish::DirectoryFollower::create(loop_, config_, [this](const Error& why) {
      // Another coordinator has taken the fleet over, and this is one of its sidecars from now on.
      log_error("{} is not followed any more: {}", config_.follow_directory, why.message());
    });
    if (!follower && wait_.may_try_again(follower.error())) return later();
    look_.stop();
    if (!follower) return fail(follower.error());
    follower_ = std::move(*follower);
    return {};
  }
  // Why the folder could not be followed after a wait; the loop was stopped then.
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  Loop& loop_;
  const config::TrainerConfig config_;
  publish::PlaceWait wait_;
  Timer look_;
  std::optional<Error> failure_;
  std::unique_ptr<publish::DirectoryFollower> follower_;
};

Result<Outcome> run_sidecar(Context& context, const SidecarOptions& options) {
  std::vector<std::string> set = options.set;
  if (!options.trace.empty()) {
    const auto trace_file = WSYNC_TRY(trace_file_setting(options.trace));
    set.push_back("trace_file=" + trace_file);
  }
  if (!options.follow_directory.empty())
    set.push_back("follow_directory=" + options.follow_directory);
  const auto config = WSYNC_TRY(config::load_sidecar(
      {.file = options.file, .environment = config::process_environment(), .set = set}));
  context.configure_log("sidecar " + config.name, config.log);
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  const auto signals = WSYNC_TRY(Signals::create(**loop, [&loop](int) { (*loop)->stop(); }));
  std::optional<Following> following;
  if (!config.follow_directory.empty()) {
    auto trainer = WSYNC_TRY(trainer_of(config));
    following.emplace(**loop, std::move(trainer));
    WSYNC_TRY(following->begin());
  }
  auto agent = WSYNC_TRY(agent::SidecarAgent::create(**loop, config));
  log_info("engines attach at {}; coordinator {}", agent->engine_socket(), config.coordinator);
  (*loop)->run();
  if (agent->leave())
    log_info("stopping; no engine is attached, so this sidecar signs off from the coordinator");
  else
    log_info("stopping; engines continue to serve");
  if (following && following->failure()) return fail(*following->failure());
  return Outcome{.result = {{"stopped", true}}};
}

}  // namespace

void add_sidecar(CLI::App& app, Context& context) {
  auto options = std::make_shared<SidecarOptions>();
  CLI::App* command = add_command(
      app, context,
      {.name = "sidecar",
       .description = "Run the inference-side agent of a host: receives versions and "
                      "switches the engines to them",
       .examples = {"wsync sidecar -c sidecar.yaml", "wsync sidecar --follow-directory /nfs/run7",
                    "wsync sidecar --set name=host0 --set devices.kind=separate --set "
                    "devices.count=4"}});
  command->add_option("-c,--config", options->file, "YAML file (deploy/config/sidecar.yaml)");
  command->add_option("--set", options->set,
                      "Set a key as key=value; overrides the file (repeatable)");
  command
      ->add_option("--follow-directory", options->follow_directory,
                   "Set follow_directory: without a trainer, serve what FOLDER/latest names, each "
                   "time it changes")
      ->type_name("FOLDER");
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
