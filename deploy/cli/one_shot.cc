#include "deploy/cli/one_shot.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "deploy/cli/own_address.h"
#include "deploy/cli/own_run_dir.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/base/tcp_address.h"
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
// How long a coordinator may refuse this command as its trainer. The trainer before it may have
// ended just now, and has some seconds to come back.
constexpr std::chrono::milliseconds kTrainerWait{10'000};
// How often it is looked whether what others have asked meanwhile has ended.
constexpr std::chrono::milliseconds kIdleLook{5};

enum class OneShotKind : std::uint8_t { kPush, kRollback };

// What this command is until its operation has ended.
struct Place {
  config::TrainerConfig config;
  std::string lock_holder;  // who others are told has the locks
  std::chrono::milliseconds ready_wait{};
  // After that wait, if nobody has complained. `why`: what it waits for, as far as that is known.
  std::function<Error(const std::string& why)> not_ready;
  std::chrono::milliseconds settling{};  // from the start until the operation may begin
  std::optional<OwnRunDir> own_run_dir = {};
  std::function<Error(const Error&)> taken;  // another process has the place; empty: cannot be
};

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

// Called after the result is known: collects the fleet's trace, if requested, and ends the loop
// when what other commands have asked meanwhile has ended too.
void end_of(const OneShotOptions& options, Timer& end, publish::TrainerAgent& agent) {
  if (!options.on_trace) return end.start_repeating(kIdleLook);
  agent.collect_trace({.age_ns = static_cast<std::uint64_t>(options.trace_age().count()),
                       .max_bytes = limits::kTraceAnswerBytes},
                      [&options, &end](control::TraceAnswer answer) {
                        options.on_trace(std::move(answer));
                        end.start_repeating(kIdleLook);
                      });
}

Result<Place> coordinator_place(const OneShotOptions& options, OneShotKind kind) {
  Place place{.config = WSYNC_TRY(one_shot_config(options, kind))};
  place.lock_holder = kind == OneShotKind::kPush ? "wsync push" : "wsync rollback";
  place.ready_wait = kSidecarWait;
  place.not_ready = [address = options.address](const std::string& /*why*/) {
    return Error(
        ErrorCode::kPeerLost,
        fmt::format("no coordinator answered and no sidecar connected at {} within {} s; "
                    "start `{}`, or give the address of the coordinator with "
                    "--coordinator",
                    address, kSidecarWait.count() / 1000, config::sidecar_command(address)));
  };
  // The first sidecar completes the claim. The operation begins once every other sidecar that runs
  // has had the time to find this coordinator as well.
  place.settling = kFindsUs;
  place.taken = [address = options.address](const Error& error) {
    return error.with_context(
        fmt::format("no coordinator answers at {}, but one seems to run on this host; if it "
                    "listens at another address, give that address with --coordinator",
                    address));
  };
  return place;
}

Result<Place> trainer_place(const OneShotOptions& options, const std::string& key) {
  const auto environment = config::process_environment();
  std::vector<std::string> set = {
      "coordinator=" + options.address, "keys=", "follow_directory=", "http.address=none",
      "publisher_key=" + (key.empty() ? key : std::filesystem::absolute(key).string())};
  if (!environment.contains("WSYNC_DATA_ADDRESS")) {
    // Any of several coordinators may lead. All are taken to be reached by one network.
    const auto own = WSYNC_TRY(own_address_towards(options.address));
    if (!own.empty()) set.push_back("data_address=" + TcpAddress{.host = own}.to_string());
  }
  Place place{.config = WSYNC_TRY(config::parse_trainer("", "wsync push",
                                                        {.environment = environment, .set = set}))};
  place.config.deadlines.publish =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  place.config.watch = false;
  place.own_run_dir.emplace(WSYNC_TRY(OwnRunDir::create(place.config.run_dir)));
  place.config.run_dir = place.own_run_dir->path();
  place.lock_holder = "wsync push";
  place.ready_wait = kTrainerWait;
  place.not_ready = [address = options.address](const std::string& why) {
    return Error(
        ErrorCode::kPeerLost,
        fmt::format("the coordinator at {} could not take this push within {} s: {}", address,
                    kTrainerWait.count() / 1000, why.empty() ? "see `wsync status`" : why));
  };
  return place;
}

// Runs a loop with an agent until `done` has a value, a signal arrives, or the deadline passes.
template <class T>
Result<T> run_once(
    const OneShotOptions& options, const Place& place,
    const std::function<void(Timer& end, publish::TrainerAgent&, std::optional<T>&)>& begin) {
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
  Timer not_ready(*loop, [&] {
    if (agent->complaint() && options.is_taken != nullptr && !place.config.coordinator.empty())
      *options.is_taken = true;
    stop_with(agent->complaint() ? Error(ErrorCode::kRefused, *agent->complaint())
                                 : place.not_ready(agent->why_not_ready().value_or("")));
  });
  Timer deadline(*loop, [&] {
    stop_with(Error(
        ErrorCode::kDeadline,
        fmt::format("the operation was not complete after {} s (--timeout)", options.timeout_s)));
  });
  publish::TrainerAgentCallbacks callbacks;
  callbacks.on_stopped = stop_with;
  TimePoint settles_at{};
  Timer end(*loop, [&] {
    if (!agent->has_jobs()) loop->stop();
  });
  Timer settled(*loop, [&] { begin(end, *agent, done); });
  callbacks.on_ready = [&](const Version&) {
    not_ready.stop();
    settled.start_at(settles_at);
  };
  name_lock_holder(place.lock_holder);
  auto created = publish::TrainerAgent::create(*loop, place.config, std::move(callbacks));
  const bool is_taken = !created && created.error().code() == ErrorCode::kBusy;
  if (options.is_taken != nullptr) *options.is_taken = is_taken;
  if (is_taken && place.taken) return fail(place.taken(created.error()));
  if (!created) return fail(created.error());
  if (place.config.coordinator.empty())
    log_info("no coordinator runs at {}, so this command is the coordinator until it has ended",
             options.address);
  else
    log_info(
        "the coordinator at {} has no trainer, so this command is its trainer until it has "
        "ended",
        options.address);
  agent = std::move(*created);
  settles_at = now() + place.settling;
  not_ready.start(place.ready_wait);
  deadline.start(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.timeout_s)));
  loop->run();
  agent.reset();
  if (done) return std::move(*done);
  return fail(failure ? *failure
                      : Error(ErrorCode::kInternal,
                              "the event loop ended before the operation was complete"));
}

Result<control::PushReply> push_from(
    const OneShotOptions& options, const Place& place, const std::string& directory,
    std::uint64_t step, const std::function<void(const control::Progress&)>& on_progress) {
  std::optional<Error> failure;
  auto pushed = run_once<control::PushReply>(
      options, place,
      [&](Timer& end, publish::TrainerAgent& agent, std::optional<control::PushReply>& done) {
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
          end_of(options, end, agent);
        };
        agent.publish(std::move(job));
      });
  if (failure) return fail(*failure);
  return pushed;
}

}  // namespace

Result<control::PushReply> push_once(
    const OneShotOptions& options, const std::string& directory, std::uint64_t step,
    const std::function<void(const control::Progress&)>& on_progress) {
  // Opens the checkpoint before the claim, so that an invalid checkpoint changes nothing.
  (void)WSYNC_TRY(publish::open_checkpoint_source(directory));
  return push_from(options, WSYNC_TRY(coordinator_place(options, OneShotKind::kPush)), directory,
                   step, on_progress);
}

Result<control::PushReply> push_as_trainer(
    const OneShotOptions& options, const std::string& key, const std::string& directory,
    std::uint64_t step, const std::function<void(const control::Progress&)>& on_progress) {
  (void)WSYNC_TRY(publish::open_checkpoint_source(directory));
  return push_from(options, WSYNC_TRY(trainer_place(options, key)), directory, step, on_progress);
}

Result<control::RollbackReply> roll_back_once(const OneShotOptions& options, const Version& to) {
  std::optional<Error> failure;
  auto back = run_once<control::RollbackReply>(
      options, WSYNC_TRY(coordinator_place(options, OneShotKind::kRollback)),
      [&](Timer& end, publish::TrainerAgent& agent, std::optional<control::RollbackReply>& done) {
        agent.roll_back(to, [&](Result<control::RollbackReply> reply) {
          if (reply)
            done = std::move(*reply);
          else
            failure = std::move(reply).error();
          end_of(options, end, agent);
        });
      });
  if (failure) return fail(*failure);
  return back;
}

}  // namespace wsync::cli
