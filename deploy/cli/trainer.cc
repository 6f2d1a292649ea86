// `wsync trainer`: the trainer-side agent as a process of its own, publishing checkpoint
// directories.
#include <filesystem>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/config/config.h"
#include "shared/loop/signals.h"
#include "shared/trace/progress.h"
#include "trainer_side/publish/checkpoint_source.h"
#include "trainer_side/publish/directory_watch.h"
#include "trainer_side/publish/trainer_agent.h"

namespace wsync::cli {
namespace {

struct TrainerOptions {
  std::string file;
  std::vector<std::string> set;
  std::string checkpoint;
  bool take_over = false;
};

Result<config::TrainerConfig> read_config(const TrainerOptions& options) {
  config::Sources sources{
      .file = options.file, .environment = config::process_environment(), .set = options.set};
  if (!options.checkpoint.empty()) sources.set.push_back("checkpoint=" + options.checkpoint);
  if (options.take_over) sources.set.emplace_back("take_over=true");
  return config::load_trainer(sources);
}

void log_result(const publish::PublishResult& result) {
  const control::PushReply& reply = result.reply;
  if (!reply.ok) {
    log_warning("{}: {}", reply.version.to_string(), reply.reason);
    return;
  }
  std::uint64_t paused_ns = 0;
  for (const control::ReplicaOutcome& o : reply.outcomes)
    paused_ns = std::max(paused_ns, o.paused_ns);
  log_info("{} is served by {} replicas: {} staged in {}, paused {} at most, digest {}",
           reply.version.to_string(), reply.outcomes.size(), human_bytes(reply.bytes),
           trace::format_duration(std::chrono::nanoseconds(reply.staged_ns)),
           trace::format_duration(std::chrono::nanoseconds(paused_ns)),
           reply.content_digest.to_string());
}

// Publishes directories one after the other, as they come.
class Publisher {
 public:
  Publisher(Loop& loop, const config::TrainerConfig& config) : loop_(loop), config_(config) {}
  [[nodiscard]] Result<> start(std::function<void(const Error&)> on_stopped) {
    publish::TrainerAgentCallbacks callbacks;
    callbacks.on_stopped = std::move(on_stopped);
    auto agent = publish::TrainerAgent::create(loop_, config_, std::move(callbacks));
    if (!agent) return fail(agent.error());
    agent_ = std::move(*agent);
    log_info("coordinator listens at {}", agent_->address());
    if (config_.checkpoint.empty()) return {};
    publish_directory(config_.checkpoint, publish::step_of(config_.checkpoint).value_or(0));
    if (config_.watch)
      watch_ = std::make_unique<publish::DirectoryWatch>(
          loop_, config_.checkpoint,
          [this](const std::filesystem::path& directory, std::uint64_t step) {
            publish_directory(directory.string(), step);
          });
    return {};
  }

 private:
  void publish_directory(const std::string& directory, std::uint64_t step) {
    log_info("publishing {}", directory);
    publish::PublishJob job;
    job.open = [directory] { return publish::open_checkpoint_source(directory); };
    job.step = step;
    job.on_progress = [this](const publish::PublishProgress& progress) {
      line_.update("publishing", progress.done_bytes, progress.total_bytes, now());
    };
    job.on_done = [](const publish::PublishResult& result) { log_result(result); };
    agent_->publish(std::move(job));
  }

  Loop& loop_;
  const config::TrainerConfig config_;
  trace::ProgressLine line_;
  std::unique_ptr<publish::TrainerAgent> agent_;
  std::unique_ptr<publish::DirectoryWatch> watch_;
};

Result<Outcome> run_trainer(Context& context, const TrainerOptions& options) {
  const auto config = read_config(options);
  if (!config) return fail(config.error());
  if (!config->checkpoint.empty()) {
    const auto source = publish::open_checkpoint_source(config->checkpoint);
    if (!source) return fail(source.error());
  }
  context.configure_log("trainer", config->log);
  auto loop = Loop::create();
  if (!loop) return fail(loop.error());
  std::optional<Error> failure;
  auto signals = Signals::create(**loop, [&loop](int) { (*loop)->stop(); });
  if (!signals) return fail(signals.error());
  {
    Publisher publisher(**loop, *config);
    WSYNC_TRY(publisher.start([&](const Error& why) {
      failure = why;
      (*loop)->stop();
    }));
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
           "Coordinate the fleet and publish a checkpoint directory and the step_N beside it",
       .examples = {"wsync trainer --checkpoint /models/run7/step_100",
                    "wsync trainer -c trainer.yaml --set commit=quorum:3"}});
  command->add_option("-c,--config", options->file, "YAML file (deploy/config/trainer.yaml)");
  command->add_option("--set", options->set, "key=value, over the file (repeatable)");
  command->add_option("--checkpoint", options->checkpoint, "Directory to publish first");
  command->add_flag("--take-over", options->take_over,
                    "Claim the fleet, and the address, of another coordinator");
  command->callback([&context, options] {
    context.run("trainer", [&] { return run_trainer(context, *options); });
  });
}

}  // namespace wsync::cli
