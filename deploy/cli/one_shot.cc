#include "deploy/cli/one_shot.h"

#include <memory>
#include <optional>
#include <span>

#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"
#include "shared/loop/signals.h"
#include "shared/observe/trace/limits.h"
#include "trainer_side/publish/checkpoint_source.h"
#include "trainer_side/publish/trainer_agent.h"

namespace wsync::cli {
namespace {

// A sidecar that runs finds a new coordinator within its reconnection pause, to which the port adds
// a random part of the shortest one.
const std::chrono::milliseconds kFindsUs{limits::kReconnectMaxMs + limits::kReconnectMinMs};
// How long the command waits for a first sidecar, which may have been started beside it.
constexpr std::chrono::milliseconds kSidecarWait{2'000};

enum class OneShotKind : std::uint8_t { kPush, kRollback };

Result<config::TrainerConfig> one_shot_config(const OneShotOptions& options, OneShotKind kind) {
  auto config = config::parse_trainer(
      "", "one-shot coordinator",
      {.environment = config::process_environment(), .set = {"listen=" + options.address}});
  if (!config) return config;
  // A rollback concerns every replica, so it has no canary.
  if (kind == OneShotKind::kRollback) config->canary.clear();
  if (!config->canary.empty())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("`canary` is '{}', but no coordinator runs at {}, and one that ends with "
                    "this command could not promote the version: start `wsync trainer`, or "
                    "leave out the key",
                    config->canary, options.address));
  config->deadlines.publish =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  config->watch = false;
  // Limits how long this command waits for a sidecar of the record that is down.
  config->deadlines.gather = kSidecarWait / 2;
  // The default state directory describes the fleet at the default address. Another address
  // therefore gets its own fleet name.
  if (config->fleet == config::TrainerConfig{}.fleet &&
      options.address != "ipc://" + config->run_dir + "/control")
    config->fleet = "at-" + digest_of(std::as_bytes(std::span(options.address))).to_string();
  return config;
}

// Ends the loop after the result is known. Collects the fleet's trace first, if requested.
void end_of(const OneShotOptions& options, Loop& loop, publish::TrainerAgent& agent) {
  if (!options.on_trace) return loop.stop();
  agent.collect_trace({.age_ns = static_cast<std::uint64_t>(options.trace_age().count()),
                       .max_bytes = limits::kTraceAnswerBytes},
                      [&options, &loop](control::TraceAnswer answer) {
                        options.on_trace(std::move(answer));
                        loop.stop();
                      });
}

// Runs a loop with an agent until `done` has a value, a signal arrives, or the deadline passes.
template <class T>
Result<T> run_once(
    const OneShotOptions& options, OneShotKind kind,
    const std::function<void(Loop&, publish::TrainerAgent&, std::optional<T>&)>& begin) {
  const auto config = WSYNC_TRY(one_shot_config(options, kind));
  auto loop = WSYNC_TRY(Loop::create());
  std::optional<Error> failure;
  std::optional<T> done;
  const auto stop_with = [&](const Error& why) {
    if (!failure) failure = why;
    loop->stop();
  };
  const auto signals = WSYNC_TRY(Signals::create(*loop, [&](int) {
    stop_with(
        Error(ErrorCode::kCancelled, "interrupted; the engines keep the version that they serve"));
  }));
  std::unique_ptr<publish::TrainerAgent> agent;
  Timer no_sidecar(*loop, [&] {
    if (agent->complaint()) return stop_with(Error(ErrorCode::kRefused, *agent->complaint()));
    stop_with(Error(ErrorCode::kPeerLost,
                    fmt::format("no coordinator answered and no sidecar connected at {} within {} "
                                "s; start `{}`, or give the address of the coordinator with "
                                "--coordinator",
                                options.address, kSidecarWait.count() / 1000,
                                config::sidecar_command(options.address))));
  });
  Timer deadline(*loop, [&] {
    stop_with(Error(
        ErrorCode::kDeadline,
        fmt::format("the operation was not complete after {} s (--timeout)", options.timeout_s)));
  });
  publish::TrainerAgentCallbacks callbacks;
  callbacks.on_stopped = stop_with;
  // The first sidecar completed the claim. The operation begins once every other sidecar that runs
  // has had the time to find this coordinator as well.
  TimePoint found_by_all{};
  Timer settled(*loop, [&] { begin(*loop, *agent, done); });
  callbacks.on_ready = [&](const Version&) {
    no_sidecar.stop();
    settled.start_at(found_by_all);
  };
  name_lock_holder(kind == OneShotKind::kPush ? "wsync push" : "wsync rollback");
  auto created = publish::TrainerAgent::create(*loop, config, std::move(callbacks));
  if (options.is_taken != nullptr)
    *options.is_taken = !created && created.error().code() == ErrorCode::kBusy;
  if (!created && created.error().code() == ErrorCode::kBusy)
    return fail(created.error().with_context(
        fmt::format("no coordinator answers at {}, but one seems to run on this host; if it "
                    "listens at another address, give that address with --coordinator",
                    options.address)));
  if (!created) return fail(created.error());
  log_info("no coordinator runs at {}, so this command is the coordinator until it has ended",
           options.address);
  agent = std::move(*created);
  found_by_all = now() + kFindsUs;
  no_sidecar.start(kSidecarWait);
  deadline.start(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.timeout_s)));
  loop->run();
  agent.reset();
  if (done) return std::move(*done);
  return fail(failure ? *failure
                      : Error(ErrorCode::kInternal,
                              "the event loop ended before the operation was complete"));
}

}  // namespace

Result<control::PushReply> push_once(
    const OneShotOptions& options, const std::string& directory, std::uint64_t step,
    const std::function<void(const control::Progress&)>& on_progress) {
  // Opens the checkpoint before the claim, so that an invalid checkpoint changes nothing.
  (void)WSYNC_TRY(publish::open_checkpoint_source(directory));
  std::optional<Error> failure;
  auto pushed = run_once<control::PushReply>(
      options, OneShotKind::kPush,
      [&](Loop& loop, publish::TrainerAgent& agent, std::optional<control::PushReply>& done) {
        publish::PublishJob job;
        job.open = [directory] { return publish::open_checkpoint_source(directory); };
        job.step = step != 0 ? step : agent.named_step(directory);
        job.on_progress = [&](const publish::PublishProgress& progress) {
          on_progress({.phase = progress.phase,
                       .done_bytes = progress.done_bytes,
                       .total_bytes = progress.total_bytes});
        };
        job.on_done = [&](publish::PublishResult result) {
          done = std::move(result.reply);
          failure = std::move(result.error);
          end_of(options, loop, agent);
        };
        agent.publish(std::move(job));
      });
  if (failure) return fail(*failure);
  return pushed;
}

Result<control::RollbackReply> roll_back_once(const OneShotOptions& options, const Version& to) {
  std::optional<Error> failure;
  auto back = run_once<control::RollbackReply>(
      options, OneShotKind::kRollback,
      [&](Loop& loop, publish::TrainerAgent& agent, std::optional<control::RollbackReply>& done) {
        agent.roll_back(to, [&](Result<control::RollbackReply> reply) {
          if (reply)
            done = std::move(*reply);
          else
            failure = std::move(reply).error();
          end_of(options, loop, agent);
        });
      });
  if (failure) return fail(*failure);
  return back;
}

}  // namespace wsync::cli
