// `wsync trainer`: a trainer as a process of its own, publishing checkpoint directories through the
// C API that trainers use; or, with a training configuration, training itself.
#include <cerrno>
#include <filesystem>
#include <list>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#include <wsync/trainer.h>

#include "deploy/cli/commands.h"
#include "deploy/cli/fleet_trace.h"
#include "deploy/cli/train_launch.h"
#include "deploy/cli/train_progress.h"
#include "deploy/cli/train_rank.h"
#include "deploy/cli/train_setup.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/config/config.h"
#include "shared/config/role.h"
#include "shared/config/train_config.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/trace/progress.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/version.h"
#include "trainer_side/publish/directory_watch.h"
#include "trainer_side/training/checkpoint.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

struct TrainerOptions {
  std::string file;
  std::vector<std::string> set;
  std::string checkpoint;
  bool take_over = false;
  std::string trace;  // empty: as the config says
  // Of training.
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

// `trains`: the keys of train.yaml.
std::vector<std::string> settings_of(const Context& context, const TrainerOptions& options,
                                     bool trains) {
  const std::string own = trains ? "publish." : "";
  std::vector<std::string> set = options.set;
  if (!options.checkpoint.empty())
    set.push_back((trains ? "model.checkpoint=" : "checkpoint=") + options.checkpoint);
  if (options.take_over) set.push_back(own + "take_over=true");
  if (!options.data.empty())
    set.push_back(fmt::format("data.files={}", fmt::join(options.data, ":")));
  if (!options.resume.empty()) set.push_back("resume=" + options.resume);
  if (!options.trace.empty()) set.push_back("trace_file=" + options.trace);
  if (context.options.log_level_given) set.push_back("log.level=" + context.options.log_level);
  if (context.options.log_format_given) set.push_back("log.format=" + context.options.log_format);
  return set;
}

Result<> result_of(wsync_code code) {
  if (code == WSYNC_OK) return {};
  return fail(static_cast<ErrorCode>(static_cast<int>(code) - 1), wsync_trainer_error());
}

void log_result(const wsync_publish_status& status) {
  const Version version{.epoch = status.version.epoch, .step = status.version.step};
  if (status.state != WSYNC_PUBLISH_COMMITTED) {
    log_warning("{}: {}", version.to_string(), status.reason);
    return;
  }
  log_info("{} is served by {}: {} staged in {}, paused {} at most, digest {}", version.to_string(),
           counted(status.replicas, "replica"), human_bytes(status.bytes),
           trace::format_duration(std::chrono::nanoseconds(status.staged_ns)),
           trace::format_duration(std::chrono::nanoseconds(status.paused_ns)),
           Digest{.low = status.content_digest[0], .high = status.content_digest[1]}.to_string());
}

// A checkpoint directory whose tensors are read by callbacks.
class OpenDirectory {
 public:
  explicit OpenDirectory(CheckpointDirectory directory) : directory_(std::move(directory)) {
    for (std::size_t i = 0; i < directory_.manifest().size(); ++i) tensors_.push_back({this, i});
  }
  OpenDirectory(const OpenDirectory&) = delete;
  OpenDirectory& operator=(const OpenDirectory&) = delete;

  // Describes its tensors; this object outlives the publish's snapshot.
  [[nodiscard]] Result<> describe(wsync_trainer* trainer) {
    wsync_trainer_clear_tensors(trainer);
    for (Tensor& tensor : tensors_) {
      const TensorInfo& info = directory_.manifest().tensor(tensor.index);
      const std::string dtype(dtype_name(info.dtype));
      const wsync_trainer_tensor described{.name = info.name.c_str(),
                                           .dtype = dtype.c_str(),
                                           .shape = info.shape.data(),
                                           .shape_count = info.shape.size(),
                                           .ranges = nullptr,
                                           .range_count = 0,
                                           .data = nullptr,
                                           .read = read,
                                           .user = &tensor};
      WSYNC_TRY(result_of(wsync_trainer_add_tensor(trainer, &described)));
    }
    return {};
  }

 private:
  struct Tensor {
    const OpenDirectory* owner;
    std::size_t index;
  };
  static int read(void* user, std::uint64_t offset, void* out, std::uint64_t bytes) {
    const auto* tensor = static_cast<const Tensor*>(user);
    const Result<> done = tensor->owner->directory_.read(
        tensor->index, offset, std::span(static_cast<std::byte*>(out), bytes));
    if (done) return 0;
    log_error("{}", done.error().message());
    return 1;
  }

  CheckpointDirectory directory_;
  std::vector<Tensor> tensors_;
};

struct DestroyTrainer {
  void operator()(wsync_trainer* trainer) const { wsync_trainer_destroy(trainer); }
};

// Publishes directories one after the other, as they come.
class Publisher {
 public:
  Publisher(Loop& loop, const config::TrainerConfig& config)
      : loop_(loop),
        config_(config),
        poll_(loop, [this] { poll(); }),
        files_(loop, {.name = "checkpoints"}) {}

  [[nodiscard]] Result<> start(const TrainerOptions& options,
                               const std::vector<std::string>& settings,
                               std::function<void(const Error&)> on_stopped) {
    on_stopped_ = std::move(on_stopped);
    std::vector<const char*> set;
    for (const std::string& setting : settings) set.push_back(setting.c_str());
    const wsync_trainer_options made{
        .config_file = options.file.empty() ? nullptr : options.file.c_str(),
        .settings = set.data(),
        .setting_count = set.size(),
        .rank = 0,
        .world_size = 1};
    wsync_trainer* trainer = nullptr;
    WSYNC_TRY(result_of(wsync_trainer_create(&made, &trainer)));
    trainer_.reset(trainer);
    WSYNC_TRY(result_of(wsync_trainer_start(trainer)));
    poll_.start_repeating(kPollInterval);
    if (config_.checkpoint.empty()) return {};
    WSYNC_TRY(publish(config_.checkpoint, publish::step_of(config_.checkpoint).value_or(0),
                      CheckpointDirectory::open(config_.checkpoint)));
    if (config_.watch)
      watch_ = std::make_unique<publish::DirectoryWatch>(
          loop_, config_.checkpoint,
          [this](const std::filesystem::path& directory, std::uint64_t step) {
            publish_found(directory.string(), step);
          });
    return {};
  }

 private:
  struct Running {
    wsync_publish id = 0;
    std::unique_ptr<OpenDirectory> directory;  // until it is snapshotted
  };

  // Opening reads the headers of all its files. `this` outlives the loop's turns.
  void publish_found(const std::string& path, std::uint64_t step) {
    auto opened = std::make_shared<std::optional<Result<CheckpointDirectory>>>();
    const auto submitted =
        files_.submit([opened, path] { opened->emplace(CheckpointDirectory::open(path)); },
                      [this, opened, path, step] {
                        if (const auto begun = publish(path, step, std::move(**opened)); !begun)
                          log_warning("{}: {}", path, begun.error().message());
                      });
    if (!submitted) log_warning("{}: {}", path, submitted.error().message());
  }

  [[nodiscard]] Result<> publish(const std::string& path, std::uint64_t step,
                                 Result<CheckpointDirectory> opened) {
    if (!opened) return fail(std::move(opened).error());
    log_info("publishing {}", path);
    Running running{.directory = std::make_unique<OpenDirectory>(std::move(*opened))};
    WSYNC_TRY(running.directory->describe(trainer_.get()));
    WSYNC_TRY(result_of(wsync_trainer_publish_async(trainer_.get(), step, &running.id)));
    running_.push_back(std::move(running));
    return {};
  }

  void poll() {
    if (const Result<> good = result_of(wsync_trainer_check(trainer_.get())); !good) {
      poll_.stop();
      return on_stopped_(good.error());
    }
    std::erase_if(running_, [this](Running& running) {
      wsync_publish_status status;
      if (wsync_trainer_poll(trainer_.get(), running.id, &status) != WSYNC_OK) return true;
      // Unmapping takes a while.
      if (status.state >= WSYNC_PUBLISH_SNAPSHOTTED && running.directory)
        (void)files_.submit([directory = std::move(running.directory)] {});
      line_.update("publishing", status.done_bytes, status.total_bytes, now());
      if (status.state < WSYNC_PUBLISH_COMMITTED) return false;
      log_result(status);
      return true;
    });
  }

  Loop& loop_;
  const config::TrainerConfig config_;
  std::function<void(const Error&)> on_stopped_;
  trace::ProgressLine line_;
  Timer poll_;
  Worker files_;
  std::list<Running> running_;  // outlives the trainer, which reads from it
  std::unique_ptr<wsync_trainer, DestroyTrainer> trainer_;
  std::unique_ptr<publish::DirectoryWatch> watch_;
};

// ---- training ----

// A file as it is now, under a name that processes started by this one have too: what a rank that
// replaces another one reads is what the run began with.
Result<std::string> kept_as_it_is(const std::string& path) {
  const auto text = config::read_config_file(path);
  if (!text) return fail(text.error());
  const int fd = ::memfd_create("train.yaml", 0);  // for as long as this process lives
  if (fd < 0 || ::write(fd, text->data(), text->size()) != static_cast<ssize_t>(text->size()))
    return fail_errno(path + ": cannot be kept in memory", errno);
  return fmt::format("/proc/self/fd/{}", fd);
}

// What a rank that this process starts is given; `file` may be empty.
std::vector<std::string> rank_arguments(const std::string& file,
                                        const std::vector<std::string>& settings,
                                        const config::TrainConfig& config) {
  std::vector<std::string> arguments;
  if (!file.empty()) arguments = {"--config", file};
  for (const std::string& setting : settings) {
    arguments.emplace_back("--set");
    arguments.push_back(setting);
  }
  // What they do is told by this process.
  if (config.log.level == LogLevel::kInfo)
    arguments.insert(arguments.end(), {"--set", "log.level=warning"});
  return arguments;
}

// A rank that was started by itself, or by launch_training().
Result<Outcome> run_as_rank(const TrainerOptions& options, const config::TrainConfig& config) {
  const std::uint32_t ranks = config.parallel.pp * config.parallel.dp;
  if (*options.rank >= ranks)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--rank {}: parallel.pp {} times parallel.dp {} is {} ranks, counted "
                            "from 0",
                            *options.rank, config.parallel.pp, config.parallel.dp, ranks));
  const bool launched = options.segment >= 0;
  if (!launched && config.ranks.rendezvous.empty())
    return fail(ErrorCode::kInvalidInput,
                "--rank: ranks that are started one by one meet in ranks.rendezvous, which is "
                "empty; leave --rank out and all ranks are started on this host");
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

// What engines can load before the first step is published, or after the last one.
Result<Outcome> export_model(const config::TrainConfig& config,
                             const training::TrainingOptions& planned, RunBegin& begin,
                             const std::string& directory) {
  const training::ParameterSet weights = initial_weights(config, planned, begin);
  WSYNC_TRY(training::save_model(directory, planned.spec, weights, training::SavedAs::kBFloat16));
  return Outcome{
      .result = {{"directory", directory}, {"step", begin.facts.step}},
      .text = fmt::format("{}: the model after step {}, in bfloat16", directory, begin.facts.step)};
}

Result<Outcome> run_training(Context& context, const TrainerOptions& options,
                             const config::Sources& sources) {
  auto config = config::load_train(sources);
  if (!config) return fail(config.error());
  if (!options.export_to.empty()) {  // beside it nothing is written, and no step is taken
    config->steps = config::kTrainSteps;
    config->save = {};
    config->trace_file = config->picture = "";
  }
  context.configure_log(
      options.rank ? fmt::format("trainer rank {}", *options.rank) : std::string("trainer"),
      config->log);
  if (options.rank) return run_as_rank(options, *config);
  // What is wrong is said before any rank is started, and once.
  const auto planned = training_options(*config);
  if (!planned) return fail(planned.error());
  {
    auto begin = begin_run(*config, *planned);
    if (!begin) return fail(begin.error());
    if (!options.export_to.empty())
      return export_model(*config, *planned, *begin, options.export_to);
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
                "--rank, or leave it empty to have all of them on this host");
  const auto point = fail_point_of(config->parallel.pp * config->parallel.dp);
  if (!point) return fail(point.error());
  const auto file = options.file.empty() ? Result<std::string>("") : kept_as_it_is(options.file);
  if (!file) return fail(file.error());
  return launch_training(*config, rank_arguments(*file, sources.set, *config), options.events);
}

bool has_training_options(const TrainerOptions& options) {
  return options.sequential || options.rank || !options.data.empty() || !options.resume.empty() ||
         !options.export_to.empty() || options.events;
}

Result<Outcome> run_trainer(Context& context, TrainerOptions options) {
  if (!options.trace.empty()) {
    auto trace_file = trace_file_setting(options.trace);
    if (!trace_file) return fail(trace_file.error());
    options.trace = std::move(*trace_file);
  }
  config::Sources sources{
      .file = options.file, .environment = config::process_environment(), .set = options.set};
  const auto trains = config::is_train_config(sources);
  if (!trains) return fail(trains.error());
  if (*trains || has_training_options(options)) {
    sources.set = settings_of(context, options, true);
    return run_training(context, options, sources);
  }
  const std::vector<std::string> settings = settings_of(context, options, false);
  const auto config = config::load_trainer(
      {.file = options.file, .environment = config::process_environment(), .set = settings});
  if (!config) return fail(config.error());
  if (!config->checkpoint.empty()) {
    const auto opened = CheckpointDirectory::open(config->checkpoint);
    if (!opened) return fail(opened.error());
  }
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  std::optional<Error> failure;
  auto signals = Signals::create(**loop, [&loop](int) { (*loop)->stop(); });
  if (!signals) return fail(signals.error());
  {
    Publisher publisher(**loop, *config);
    WSYNC_TRY(publisher.start(options, settings, [&](const Error& why) {
      failure = why;
      (*loop)->stop();
    }));
    if (config->checkpoint.empty())
      log_info(
          "nothing to publish yet: give --checkpoint DIRECTORY, or a train.yaml (-c) to train");
    (*loop)->run();
  }
  if (failure) return fail(*failure);
  return Outcome{.result = {{"stopped", true}}};
}

}  // namespace

void add_trainer(CLI::App& app, Context& context) {
  auto options = std::make_shared<TrainerOptions>();
  CLI::App* command = add_command(
      app, context,
      {.name = "trainer",
       .description =
           "Publish a checkpoint directory and the step_N beside it; or train, with a train.yaml",
       .examples = {"wsync trainer --checkpoint /models/run7/step_100",
                    "wsync trainer -c trainer.yaml --set commit=quorum:3",
                    "wsync trainer -c train.yaml --set save.directory=/models/run8",
                    "wsync trainer --set steps=50 --data README.md"}});
  command->add_option("-c,--config", options->file,
                      "YAML file (deploy/config/trainer.yaml or train.yaml)");
  command->add_option("--set", options->set, "key=value, over the file (repeatable)");
  command->add_option("--checkpoint", options->checkpoint,
                      "Directory to publish first; train: whose model to begin with");
  command->add_flag("--take-over", options->take_over,
                    "Claim the fleet, and the address, of another coordinator");
  command
      ->add_option("--trace", options->trace,
                   "As trace_file: write the latest snapshots and rounds, or steps, as a Chrome "
                   "trace at the end")
      ->type_name("FILE.json");
  command->add_option("--data", options->data, "Train: files and directories of text to train on");
  command->add_option("--resume", options->resume, "Train: step_N directory to go on from");
  CLI::Option* sequential = command->add_flag(
      "--sequential", options->sequential,
      "Train in one process with plain loops: what all ranks together must equal");
  CLI::Option* exported =
      command->add_option("--export", options->export_to,
                          "Train: write the model as the run begins with it, in bfloat16, and end");
  command->add_flag("--events", options->events,
                    "Train: print what happens as it does, a JSON object on each line");
  command
      ->add_option("--rank", options->rank,
                   "Train: be this rank of a run on several hosts (ranks.rendezvous)")
      ->excludes(sequential, exported);
  sequential->excludes(exported);
  // What launch_training() gives its ranks.
  command->add_option("--segment", options->segment)->group("");
  command->add_option("--control", options->control)->group("");
  command->add_option("--generation", options->generation)->group("");
  command->add_option("--told", options->told)->group("");
  command->callback([&context, options] {
    context.run("trainer", [&] { return run_trainer(context, *options); });
  });
}

}  // namespace wsync::cli
