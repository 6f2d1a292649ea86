// `wsync train`: a training run on this host, or one rank of a run on several hosts.
#include "trainer_side/run/train_command.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/config/role.h"
#include "shared/config/sources.h"
#include "shared/config/train_config.h"
#include "trainer_side/run/launch.h"
#include "trainer_side/run/progress.h"
#include "trainer_side/run/rank_run.h"
#include "trainer_side/run/setup.h"
#include "trainer_side/training/checkpoint.h"

namespace wsync::cli {
namespace {

struct TrainOptions {
  std::string file;
  std::vector<std::string> set;
  std::string checkpoint;
  bool take_over = false;
  std::string trace;  // empty: as in the configuration
  std::vector<std::string> data;
  std::string resume;
  bool sequential = false;
  std::string export_to;
  bool events = false;
  std::optional<std::uint32_t> rank;
  int segment = -1;
  int control = -1;
  std::uint32_t generation = 0;
  std::uint64_t told = 0;
};

std::vector<std::string> settings_of(const Context& context, const TrainOptions& options) {
  std::vector<std::string> set = options.set;
  if (!options.checkpoint.empty()) set.push_back("model.checkpoint=" + options.checkpoint);
  if (options.take_over) set.push_back("publish.take_over=true");
  if (!options.data.empty())
    set.push_back(fmt::format("data.files={}", fmt::join(options.data, ":")));
  if (!options.resume.empty()) set.push_back("resume=" + options.resume);
  if (!options.trace.empty()) set.push_back("trace_file=" + options.trace);
  if (context.options.log_level_given) set.push_back("log.level=" + context.options.log_level);
  if (context.options.log_format_given) set.push_back("log.format=" + context.options.log_format);
  return set;
}

// Copies a file to memory, under a name that is also valid in child processes. A replacement of a
// rank therefore reads the same configuration as the first ranks, even if the file has changed.
Result<std::string> kept_as_it_is(const std::string& path) {
  const auto text = WSYNC_TRY(config::read_config_file(path));
  const int fd = ::memfd_create("train.yaml", 0);  // exists until this process ends
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return fail_errno(path + ": cannot be kept in memory", errno);
  return fmt::format("/proc/self/fd/{}", fd);
}

// Returns the arguments of a rank that this process starts; `file` may be empty.
std::vector<std::string> rank_arguments(const std::string& file,
                                        const std::vector<std::string>& settings,
                                        const config::TrainConfig& config) {
  std::vector<std::string> arguments;
  if (!file.empty()) arguments = {"--config", file};
  for (const std::string& setting : settings) {
    arguments.emplace_back("--set");
    arguments.push_back(setting);
  }
  // This process logs what the ranks do.
  if (config.log.level == LogLevel::kInfo)
    arguments.insert(arguments.end(), {"--set", "log.level=warning"});
  return arguments;
}

// Runs a rank that was started directly or by launch_training().
Result<Outcome> run_as_rank(const TrainOptions& options, const config::TrainConfig& config) {
  const std::uint32_t ranks = config.parallel.pp * config.parallel.dp;
  if (*options.rank >= ranks)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--rank {}: parallel.pp {} times parallel.dp {} is {} ranks, counted "
                            "from 0",
                            *options.rank, config.parallel.pp, config.parallel.dp, ranks));
  const bool launched = options.segment >= 0;
  if (!launched && config.ranks.rendezvous.empty())
    return fail(ErrorCode::kInvalidInput,
                "--rank: ranks that are started one by one connect through ranks.rendezvous, which "
                "is empty; without --rank, all ranks are started on this host");
  TrainReport report(options.events);
  const auto on_event = [&](const nlohmann::json& event) {
    if (launched)
      print_line(stdout, to_line(event));
    else
      report.take(event);
  };
  const Result<> done = run_rank({.config = config,
                                  .rank = *options.rank,
                                  .segment = options.segment,
                                  .control = options.control,
                                  .generation = options.generation,
                                  .told = options.told,
                                  .on_event = on_event});
  if (!done && launched) {
    log_error("stops: {}", done.error().message());
    return Outcome{.exit_code = exit_code_of(done.error().code())};
  }
  if (!done) return fail(done.error());
  if (launched || *options.rank != 0) return Outcome{};
  return report.outcome();
}

// Writes a model that engines can load before the first publish or after the last one.
Result<Outcome> export_model(const config::TrainConfig& config,
                             const training::TrainingOptions& planned, RunBegin& begin,
                             const std::string& directory) {
  const training::ParameterSet weights = initial_weights(config, planned, begin);
  WSYNC_TRY(training::save_model(directory, planned.spec, weights, training::SavedAs::kBFloat16));
  return Outcome{
      .result = {{"directory", directory}, {"step", begin.facts.step}},
      .text = fmt::format("{}: the model after step {}, in bfloat16", directory, begin.facts.step)};
}

Result<Outcome> run_training(Context& context, TrainOptions options) {
  if (!options.trace.empty()) {
    options.trace = WSYNC_TRY(trace_file_setting(options.trace));
  }
  const config::Sources sources{.file = options.file,
                                .environment = config::process_environment(),
                                .set = settings_of(context, options)};
  auto config = config::load_train(sources);
  if (!config) return fail(config.error());
  if (!options.export_to.empty()) {  // no training: only the model is written
    config->steps = config::kTrainSteps;
    config->save = {};
    config->trace_file = config->picture = "";
  }
  context.configure_log(
      options.rank ? fmt::format("trainer rank {}", *options.rank) : std::string("trainer"),
      config->log);
  if (options.rank) return run_as_rank(options, *config);
  // Check before any rank is started, so that an error is reported only once.
  const auto planned = WSYNC_TRY(training_options(*config));
  {
    auto begin = WSYNC_TRY(begin_run(*config, planned));
    if (!options.export_to.empty()) return export_model(*config, planned, begin, options.export_to);
  }
  if (options.sequential && config->rollout)
    return fail(ErrorCode::kInvalidInput,
                "--sequential trains on text; leave it out beside `rollout`");
  if (options.sequential) {
    if (config->publish || !config->trace_file.empty() || !config->picture.empty())
      log_warning("--sequential publishes nothing, and writes neither trace_file nor picture");
    TrainReport report(options.events);
    WSYNC_TRY(run_sequential(*config, [&](const nlohmann::json& event) { report.take(event); }));
    return report.outcome();
  }
  if (!config->ranks.rendezvous.empty())
    return fail(ErrorCode::kInvalidInput,
                "ranks.rendezvous is given, so ranks are started one by one: start each with "
                "--rank, or leave ranks.rendezvous empty to start all of them on this host");
  (void)WSYNC_TRY(fail_point_of(config->parallel.pp * config->parallel.dp));
  const auto file =
      WSYNC_TRY(options.file.empty() ? Result<std::string>("") : kept_as_it_is(options.file));
  return launch_training(*config, rank_arguments(file, sources.set, *config), options.events);
}

}  // namespace

void add_train(CLI::App& app, Context& context) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command =
      add_command(app, context,
                  {.name = "train",
                   .description = "Train a mixture-of-experts model, and publish its steps",
                   .examples = {"wsync train -c train.yaml --set save.directory=/models/run8",
                                "wsync train --set steps=50 --data README.md"}});
  command->add_option("-c,--config", options->file, "YAML file (deploy/config/train.yaml)");
  command->add_option("--set", options->set, "key=value, over the file (repeatable)");
  command->add_option("--checkpoint", options->checkpoint, "Directory of the model to begin with");
  command->add_flag("--take-over", options->take_over,
                    "Claim the fleet, and the address, of another coordinator");
  command
      ->add_option("--trace", options->trace,
                   "As trace_file: write the latest steps as a Chrome trace at the end")
      ->type_name("FILE.json");
  command->add_option("--data", options->data, "Files and directories of text to train on");
  command->add_option("--resume", options->resume, "step_N directory to resume from");
  CLI::Option* sequential = command->add_flag(
      "--sequential", options->sequential,
      "Train in one process with plain loops: the reference that all ranks together must equal");
  CLI::Option* exported =
      command->add_option("--export", options->export_to,
                          "Write the model with which the run begins, in bfloat16, and exit");
  command->add_flag("--events", options->events,
                    "Print events when they happen, one JSON object per line");
  command
      ->add_option("--rank", options->rank,
                   "Start this rank of a run on several hosts (ranks.rendezvous)")
      ->excludes(sequential, exported);
  sequential->excludes(exported);
  // Options that launch_training() passes to its ranks.
  command->add_option("--segment", options->segment)->group("");
  command->add_option("--control", options->control)->group("");
  command->add_option("--generation", options->generation)->group("");
  command->add_option("--told", options->told)->group("");
  command->callback([&context, options] {
    context.run("train", [&] { return run_training(context, *options); });
  });
}

ProgramSpec training_program() {
  return {.description = "wsync-train trains a mixture-of-experts model and publishes its steps",
          .add_commands =
              [](CLI::App& app, Context& context) {
                add_train(app, context);
                add_schedule(app, context);
              },
          .only_command = "train",
          .others = {}};
}

}  // namespace wsync::cli
