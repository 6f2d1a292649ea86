// `wsync trainer`: a separate trainer process that publishes checkpoint directories through the
// public C API. With a training configuration, it executes `wsync-train` instead.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <list>
#include <optional>
#include <vector>
#include <wsync/trainer.h>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/command/programs.h"
#include "shared/config/role.h"
#include "shared/config/sources.h"
#include "shared/config/train_config.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/trace/progress.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/version.h"
#include "trainer_side/publish/directory_follower.h"
#include "trainer_side/publish/directory_watch.h"
#include "trainer_side/publish/fleet_place.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

struct TrainerOptions {
  std::string file;
  std::vector<std::string> set;
  std::string checkpoint;
  std::string publish_directory;
  std::string follow_directory;
  bool take_over = false;
  std::string trace;  // empty: as in the config
};

std::vector<std::string> settings_of(const Context& context, const TrainerOptions& options) {
  std::vector<std::string> set = options.set;
  if (!options.checkpoint.empty()) set.push_back("checkpoint=" + options.checkpoint);
  if (!options.publish_directory.empty())
    set.push_back("directory.publish=" + options.publish_directory);
  if (!options.follow_directory.empty())
    set.push_back("follow_directory=" + options.follow_directory);
  if (options.take_over) set.push_back("take_over=true");
  if (!options.trace.empty()) set.push_back("trace_file=" + options.trace);
  if (context.options.log_level_given) set.push_back("log.level=" + context.options.log_level);
  if (context.options.log_format_given) set.push_back("log.format=" + context.options.log_format);
  return set;
}

ErrorCode trainer_error_code(wsync_code code) {
  switch (code) {
    case WSYNC_INVALID_INPUT:
      return ErrorCode::kInvalidInput;
    case WSYNC_NOT_FOUND:
      return ErrorCode::kNotFound;
    case WSYNC_REFUSED:
      return ErrorCode::kRefused;
    case WSYNC_BUSY:
      return ErrorCode::kBusy;
    case WSYNC_DEADLINE:
      return ErrorCode::kDeadline;
    case WSYNC_PEER_LOST:
      return ErrorCode::kPeerLost;
    case WSYNC_FENCED:
      return ErrorCode::kFenced;
    case WSYNC_DIGEST_MISMATCH:
      return ErrorCode::kDigestMismatch;
    case WSYNC_RESOURCE_EXHAUSTED:
      return ErrorCode::kResourceExhausted;
    case WSYNC_CANCELLED:
      return ErrorCode::kCancelled;
    case WSYNC_IO:
      return ErrorCode::kIo;
    case WSYNC_PARTIAL:
      return ErrorCode::kPartial;
    case WSYNC_OK:
    case WSYNC_INTERNAL:
      return ErrorCode::kInternal;
  }
  return ErrorCode::kInternal;
}

Result<> result_of(wsync_code code) {
  if (code == WSYNC_OK) return {};
  return fail(trainer_error_code(code), wsync_trainer_error());
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

  // Describes its tensors to the trainer. This object must exist until the publish has its
  // snapshot.
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

// Publishes directories. A newer one is looked for when the snapshot of the one before has ended.
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
          loop_, config_.checkpoint, [this] { return !takes_snapshot(); },
          [this](const std::filesystem::path& directory, std::uint64_t step) {
            publish_found(directory.string(), step);
          });
    return {};
  }

 private:
  struct Running {
    wsync_publish id = 0;
    std::string path;
    std::uint64_t step = 0;
    std::unique_ptr<OpenDirectory> directory;  // null after the snapshot
    bool again = false;                        // found no free arena before
  };

  // One that waits for a free arena again does not count: a newer directory replaces it.
  [[nodiscard]] bool takes_snapshot() const {
    return opening_ || std::ranges::any_of(running_, [](const Running& running) {
             return running.directory != nullptr && !running.again;
           });
  }

  // Whether no newer directory is being opened or published.
  [[nodiscard]] bool is_newest(const Running& running) const {
    return !opening_ && std::ranges::none_of(running_, [&](const Running& other) {
      return other.step > running.step;
    });
  }

  // Opens the directory on the worker because this reads the headers of all its files. The
  // completion runs on the loop while `this` exists.
  void publish_found(const std::string& path, std::uint64_t step, bool again = false) {
    auto opened = std::make_shared<std::optional<Result<CheckpointDirectory>>>();
    const auto submitted = files_.submit(
        [opened, path] { opened->emplace(CheckpointDirectory::open(path)); },
        [this, opened, path, step, again] {
          if (!again) opening_ = false;
          if (const auto begun = publish(path, step, std::move(**opened), again); !begun)
            log_warning("{}: {}", path, begun.error().message());
        });
    if (!again) opening_ = submitted.has_value();
    if (!submitted) log_warning("{}: {}", path, submitted.error().message());
  }

  [[nodiscard]] Result<> publish(const std::string& path, std::uint64_t step,
                                 Result<CheckpointDirectory> opened, bool again = false) {
    if (!opened) return fail(std::move(opened).error());
    log_info("publishing {}", path);
    again_.reset();  // it is older, or the same
    Running running{.path = path,
                    .step = step,
                    .directory = std::make_unique<OpenDirectory>(std::move(*opened)),
                    .again = again};
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
    // The newest directory is published again if its snapshot found no free arena: no newer one may
    // ever come.
    std::erase_if(running_, [this](Running& running) {
      wsync_publish_status status;
      if (wsync_trainer_poll(trainer_.get(), running.id, &status) != WSYNC_OK) return true;
      // Unmapping can take long, so the worker destroys the directory.
      if (status.state >= WSYNC_PUBLISH_SNAPSHOTTED && running.directory)
        (void)files_.submit([directory = std::move(running.directory)] {});
      line_.update("publishing", status.done_bytes, status.total_bytes, now());
      if (status.state < WSYNC_PUBLISH_COMMITTED) return false;
      log_result(status);
      if (status.state == WSYNC_PUBLISH_FAILED && status.code == WSYNC_BUSY && is_newest(running))
        again_ = std::pair(running.path, running.step);
      return true;
    });
    if (!again_) return;
    const auto [path, step] = *std::exchange(again_, std::nullopt);
    publish_found(path, step, true);
  }

  Loop& loop_;
  const config::TrainerConfig config_;
  std::function<void(const Error&)> on_stopped_;
  trace::ProgressLine line_;
  Timer poll_;
  Worker files_;
  bool opening_ = false;        // a new directory, whose publish then begins
  std::list<Running> running_;  // outlives the trainer, which reads from it
  // The newest directory, if its snapshot found no free arena.
  std::optional<std::pair<std::string, std::uint64_t>> again_;
  std::unique_ptr<wsync_trainer, DestroyTrainer> trainer_;
  std::unique_ptr<publish::DirectoryWatch> watch_;
};

// Arguments of training without a training configuration.
class UnexpectedArguments : public CLI::ParseError {
 public:
  explicit UnexpectedArguments(const std::vector<std::string>& words)
      : ParseError(
            "ExtrasError",
            fmt::format(
                "unexpected arguments: {} (options of a training run belong to `wsync train`)",
                fmt::join(words, " ")),
            CLI::ExitCodes::ExtrasError) {}
};

config::Sources sources_of(const TrainerOptions& options) {
  return {.file = options.file, .environment = config::process_environment(), .set = options.set};
}

Result<Outcome> run_trainer(Context& context, TrainerOptions options) {
  const auto trains = WSYNC_TRY(config::is_train_config(sources_of(options)));
  if (trains) {
    std::vector<std::string> line = context.arguments;
    line.front() = "train";
    return fail(become_wsync_program("wsync-train", line));
  }
  if (!options.trace.empty()) {
    options.trace = WSYNC_TRY(trace_file_setting(options.trace));
  }
  const std::vector<std::string> settings = settings_of(context, options);
  const auto config = WSYNC_TRY(config::load_trainer(
      {.file = options.file, .environment = config::process_environment(), .set = settings}));
  if (!config.checkpoint.empty()) {
    const auto opened = CheckpointDirectory::open(config.checkpoint);
    if (!opened) return fail(opened.error());
  }
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  std::optional<Error> failure;
  const auto signals = WSYNC_TRY(Signals::create(**loop, [&loop](int) { (*loop)->stop(); }));
  if (!config.take_over) {
    context.configure_log("trainer", config.log);
    if (publish::wait_for_place(**loop, config)) return Outcome{.result = {{"stopped", true}}};
  }
  const auto stop_with = [&](const Error& why) {
    failure = why;
    (*loop)->stop();
  };
  if (!config.follow_directory.empty()) {
    context.configure_log("trainer", config.log);
    const auto follower = WSYNC_TRY(publish::DirectoryFollower::create(**loop, config, stop_with));
    (*loop)->run();
  } else {
    Publisher publisher(**loop, config);
    WSYNC_TRY(publisher.start(options, settings, stop_with));
    if (config.checkpoint.empty())
      log_info(
          "nothing to publish yet: waiting for `wsync push` (--checkpoint DIRECTORY publishes at "
          "start; -c train.yaml trains)");
    (*loop)->run();
  }
  if (failure) return fail(*failure);
  return Outcome{.result = {{"stopped", true}}};
}

}  // namespace

void add_trainer(CLI::App& app, Context& context) {
  auto options = std::make_shared<TrainerOptions>();
  CLI::App* command =
      add_command(app, context,
                  {.name = "trainer",
                   .description = "Publish a checkpoint directory and the newest step_N beside it, "
                                  "or what is published in a folder; or train, with a train.yaml",
                   .examples = {"wsync trainer --checkpoint /models/run7/step_100",
                                "wsync trainer -c trainer.yaml --set commit=quorum:3",
                                "wsync trainer --checkpoint /models/run7/step_100 "
                                "--publish-directory /nfs/run7",
                                "wsync trainer --follow-directory /nfs/run7",
                                "wsync trainer -c train.yaml (as `wsync train -c train.yaml`)"}});
  command->add_option("-c,--config", options->file,
                      "YAML file (deploy/config/trainer.yaml or train.yaml)");
  command->add_option("--set", options->set,
                      "Set a key as key=value; overrides the file (repeatable)");
  command->add_option(
      "--checkpoint", options->checkpoint,
      "Checkpoint directory to publish at start; with a train.yaml: the model to begin with");
  command
      ->add_option(
          "--publish-directory", options->publish_directory,
          "Set directory.publish: write each decided version to FOLDER/weight_vNNNNNN, and "
          "let FOLDER/latest name the newest")
      ->type_name("FOLDER");
  command
      ->add_option("--follow-directory", options->follow_directory,
                   "Set follow_directory: publish what FOLDER/latest names, each time it changes")
      ->type_name("FOLDER");
  command->add_flag("--take-over", options->take_over,
                    "Take over the fleet and the address of another coordinator");
  command
      ->add_option("--trace", options->trace,
                   "Set trace_file: at the end, write a Chrome trace of the latest snapshots and "
                   "rounds, or steps")
      ->type_name("FILE.json");
  command->allow_extras();  // training options, parsed by `wsync train`
  command->callback([&context, command, options] {
    const auto trains = config::is_train_config(sources_of(*options));
    if (const auto extras = command->remaining(); !extras.empty() && !trains.value_or(false))
      throw UnexpectedArguments(extras);
    context.run("trainer", [&] { return run_trainer(context, *options); });
  });
}

}  // namespace wsync::cli
