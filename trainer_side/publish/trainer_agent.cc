#include "trainer_side/publish/trainer_agent.h"

#include <filesystem>
#include <utility>
#include <variant>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/publish/checkpoint_source.h"
#include "trainer_side/publish/directory_watch.h"
#include "trainer_side/publish/push_origin.h"
#include "trainer_side/publish/remote_coordinator.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};

// An event that the queue refuses is a defect. It has changed nothing, so training continues.
void log_refused(const Error& error) { log_error("publish queue: {}", error.message()); }

SharedBytes encoded(const Manifest& manifest) {
  ByteWriter layout;
  manifest.encode(layout);
  return std::move(layout).take();
}

}  // namespace

Result<std::unique_ptr<TrainerAgent>> TrainerAgent::create(Loop& loop,
                                                           const config::TrainerConfig& config,
                                                           TrainerAgentCallbacks callbacks) {
  WSYNC_TRY(make_private_directory(config.run_dir));
  WSYNC_TRY(make_private_directory(config.state_dir));
  WSYNC_TRY(
      make_private_directory((std::filesystem::path(config.state_dir) / config.fleet).string()));
  auto agent = std::unique_ptr<TrainerAgent>(new TrainerAgent(loop, config));
  agent->publisher_ = WSYNC_TRY(Publisher::create(loop, config));
  // Bind the control address before the sockets of this host and the lock, so that the error of a
  // second coordinator is about the control address.
  auto on_parts = std::move(callbacks.on_parts);
  CoordinatorAgentCallbacks own = agent->coordinator_callbacks(std::move(callbacks));
  if (config.coordinator.empty())
    agent->coordinator_ = WSYNC_TRY(CoordinatorAgent::create(
        loop, config, std::move(own), WSYNC_TRY(CoordinatorAgent::open_store(loop, config))));
  else
    agent->coordinator_ = WSYNC_TRY(RemoteCoordinator::create(loop, config, std::move(own)));
  agent->publisher_->versions().observe(
      {.on_completed =
           [owner = agent.get()](const ServedVersions::Completed& completed) {
             owner->coordinator_->recorder().version_completed(completed);
           },
       .on_lost =
           [owner = agent.get()](const std::string& sentence) {
             owner->coordinator_->recorder().version_lost(sentence, now());
           },
       .on_parts = std::move(on_parts),
       .on_given_up = [owner = agent.get()](
                          const Version& version,
                          const std::string& why) { owner->give_up_version(version, why); }});
  WSYNC_TRY(agent->publisher_->versions().listen());
  WSYNC_TRY(agent->coordinator_->open(agent->publisher_->versions().transports(),
                                      agent->publisher_->versions().secret()));
  if (!config.directory.publish.empty())
    agent->directory_ = WSYNC_TRY(DirectoryPublisher::create(
        loop, config.directory,
        [owner = agent.get()](const std::string& sentence) { owner->report_incident(sentence); }));
  agent->queue_.emplace(*agent->coordinator_, config.deadlines.publish);
  agent->progress_timer_.start_repeating(kProgressInterval);
  return agent;
}

TrainerAgent::TrainerAgent(Loop& loop, const config::TrainerConfig& config)
    : config_(config), progress_timer_(loop, [this] { report_progress(); }) {}

TrainerAgent::~TrainerAgent() {
  // Stop the snapshots first, because the publisher waits for the current one.
  for (auto& [request, job] : jobs_) job.stop.request_stop();
  directory_.reset();  // it writes the newest version, and calls this object
  for (auto& [request, job] : jobs_) job.copied.reset();
  held_.clear();
  coordinator_.reset();  // it calls this object
  publisher_.reset();
}

CoordinatorAgentCallbacks TrainerAgent::coordinator_callbacks(TrainerAgentCallbacks callbacks) {
  CoordinatorAgentCallbacks own;
  own.on_stopped = std::move(callbacks.on_stopped);
  own.on_rank_message = std::move(callbacks.on_rank_message);
  own.on_peer_lost = std::move(callbacks.on_peer_lost);
  own.on_ready = std::move(callbacks.on_ready);
  own.on_phase = [this](const coordinator::PhaseEntered& phase) { enter_phase(phase); };
  own.on_round_done = [this](const coordinator::RoundDone& done) {
    execute(queue_->round_ended(
        done.request,
        {.superseded = done.superseded, .cancelled = done.cancelled, .reply = done.reply}));
    publisher_->prepare_next();
  };
  own.on_round_lost = [this](const coordinator::RoundLost& lost) { lose_round(lost); };
  own.on_drop = [this](const Version& version) {
    publisher_->versions().withdraw(version, "the coordinator has released this version");
    held_.erase(version);
  };
  own.on_promoted = [this](const Version& version) {
    if (directory_) write(version);
  };
  own.on_rolled_back = [this](const Version& to) {
    publisher_->versions().make_complete(to);
    if (!directory_) return;
    const auto held = held_.find(to);
    directory_->go_back(to, held == held_.end() ? nullptr : held->second);
  };
  own.on_step = [this] { advance(); };
  own.on_push = [this](const std::string& peer, std::uint64_t request, const control::Push& push) {
    handle_push(peer, request, push);
  };
  own.on_cancel = [this](const Version& version,
                         const std::function<void(control::CancelReply)>& answer) {
    answer(cancel(version));
  };
  own.snapshot_bytes = [this](std::uint64_t request) -> std::optional<PhaseBytes> {
    // The progress of one that streams is that of its round.
    if (queue_->snapshotting() != request || queue_->state(request) == JobState::kStreaming)
      return std::nullopt;
    const SnapshotProgress& snapshot = *jobs_.at(request).snapshot;
    return PhaseBytes{.done = snapshot.done.load(std::memory_order_relaxed),
                      .total = snapshot.total.load(std::memory_order_relaxed)};
  };
  own.why_held = [this](std::uint64_t request) { return queue_->waits_for(request); };
  own.publish_facts = [this] {
    return coordinator::PublishFacts{
        .queued = queue_->queued(),
        .arena_bytes = publisher_->arena_bytes(),
        .wire_bytes = publisher_->versions().copied_bytes(),
        .refused_connections = publisher_->versions().refused_connections(),
        .min_replicas = config_.min_replicas,
        .directory = directory_ ? std::optional(directory_->facts()) : std::nullopt};
  };
  return own;
}

// ---- requests ----

void TrainerAgent::publish(PublishJob job) {
  const std::uint64_t request = coordinator_->recorder().next_request();
  const std::uint64_t step = job.step;
  jobs_[request].job = std::move(job);
  const bool is_kept = jobs_[request].job.is_kept;
  if (const auto added = queue_->publish(request, step, now(), is_kept); !added)
    log_refused(added.error());
  advance();
}

void TrainerAgent::handle_push(const std::string& peer, std::uint64_t request,
                               const control::Push& push) {
  if (const Result<> may = coordinator::check_given_step(push.step); !may)
    return coordinator_->reply(
        peer, request,
        control::ErrorReply{.code = may.error().code(), .message = may.error().message()});
  if (const auto why = why_not_read_here(push, host_name(), boot_id()))
    return coordinator_->reply(peer, request,
                               control::ErrorReply{.code = ErrorCode::kRefused, .message = *why});
  PublishJob job;
  job.open = [directory = push.directory] { return open_checkpoint_source(directory); };
  job.step = push.step != 0 ? push.step : named_step(push.directory);
  job.on_progress = [this, peer, request](const PublishProgress& progress) {
    coordinator_->reply(peer, request,
                        control::Progress{.phase = progress.phase,
                                          .done_bytes = progress.done_bytes,
                                          .total_bytes = progress.total_bytes});
  };
  job.on_done = [this, peer, request](PublishResult result) {
    if (result.error)
      coordinator_->reply(
          peer, request,
          control::ErrorReply{.code = result.error->code(), .message = result.error->message()});
    else
      coordinator_->reply(peer, request, std::move(result.reply));
  };
  publish(std::move(job));
}

std::uint64_t TrainerAgent::named_step(const std::string& directory) const {
  auto step = step_of(directory);
  if (!step) step = weight_directory_number(std::filesystem::path(directory).filename().string());
  if (!step || *step == 0) return 0;
  const Result<> may = coordinator::check_given_step(*step);
  const Result<Version> version = may ? coordinator_->next_version(*step) : fail(may.error());
  if (version || version.error().code() == ErrorCode::kBusy) return *step;
  log_info("{}: its version gets the next free step, because {}", directory,
           version.error().message());
  return 0;
}

void TrainerAgent::give_up(std::uint64_t step) {
  const auto request = queue_->snapshotting();
  const bool weights_read =
      request && jobs_.at(*request).snapshot->done.load(std::memory_order_relaxed) != 0;
  execute(queue_->give_up(step, weights_read));
}

void TrainerAgent::roll_back(const Version& to,
                             std::function<void(Result<control::RollbackReply>)> on_done) {
  if (auto why = coordinator_->why_rollback_waits())
    return on_done(fail(ErrorCode::kBusy, std::move(*why)));
  coordinator_->roll_back(to, std::move(on_done));
}

control::CancelReply TrainerAgent::cancel(const Version& version) {
  auto cancelled = queue_->cancel(version);
  if (!cancelled) {
    log_refused(cancelled.error());
    return {.reason = cancelled.error().message()};
  }
  execute(std::move(cancelled->commands));
  control::CancelReply reply =
      cancelled->reply ? std::move(*cancelled->reply) : coordinator_->cancel(version, {});
  if (reply.ok && !reply.version.none())
    log_info("{} was cancelled on request", reply.version.to_string());
  return reply;
}

// ---- commands of the queue ----

void TrainerAgent::advance() { execute(queue_->advance(now())); }

// Callbacks of a job may call this agent again. By then the queue has completed its step, so the
// commands of a nested call are complete. They are executed before the rest of the outer ones.
void TrainerAgent::execute(Result<PublishQueue::Commands> commands) {
  if (!commands) return log_refused(commands.error());
  for (QueueCommand& command : *commands)
    std::visit([this](auto& what) { apply(std::move(what)); }, command);
}

void TrainerAgent::apply(const BeginSnapshot& command) {
  const std::uint64_t request = command.request;
  Job& job = jobs_.at(request);
  coordinator_->recorder().snapshot_began(request, command.version, now());
  const std::uint64_t value_cost = coordinator_->patch_value_cost();
  const bool as_changes = may_take_changes();
  const auto submitted = publisher_->snapshot(
      // Moved, because it may hold memory that the snapshot is the last to read.
      {.open = std::move(job.job.open),
       .fence = coordinator_->fence(),
       .version = command.version,
       .deadline = command.deadline,
       .arena_wait = job.job.arena_wait,
       .on_wait = [this, request] { execute(queue_->memory_awaited(request)); },
       .on_copy = [this,
                   request](const CopiedSnapshot& snapshot) { begin_copy(request, snapshot); },
       .on_bucket =
           [this, request](std::uint64_t bucket, const std::vector<WordSum>& sums) {
             Job& copied = jobs_.at(request);
             copied.complete.emplace_back(bucket, sums);
             if (copied.streams)
               publisher_->versions().bucket_complete(copied.version, bucket, sums);
           },
       .base = as_changes        ? coordinator_->target()
               : value_cost != 0 ? last_served_
                                 : Version(),
       .value_cost = value_cost,
       .as_changes = as_changes,
       .stop = job.stop.get_token(),
       .progress = job.snapshot},
      [this, request](Result<std::shared_ptr<Snapshot>> snapshot,
                      const Publisher::TakingTime& time) {
        end_snapshot(request, std::move(snapshot), time);
      });
  if (!submitted) execute(queue_->snapshot_ended(request, submitted.error()));
}

void TrainerAgent::apply(const StopSnapshot& command) {
  jobs_.at(command.request).stop.request_stop();
}

void TrainerAgent::end_snapshot(std::uint64_t request, Result<std::shared_ptr<Snapshot>> snapshot,
                                const Publisher::TakingTime& time) {
  std::optional<Error> failure;
  jobs_.at(request).copied.reset();
  jobs_.at(request).complete = {};
  if (snapshot) {
    jobs_.at(request).taken = std::move(*snapshot);
    jobs_.at(request).snapshot_time = time;
  } else {
    failure = snapshot.error();
  }
  execute(queue_->snapshot_ended(request, failure));
  advance();
}

void TrainerAgent::apply(const HoldSnapshot& command) {
  const Job& job = jobs_.at(command.request);
  if (job.job.on_snapshotted)
    job.job.on_snapshotted(job.version, job.snapshot_time.took(), command.why);
}

void TrainerAgent::lose_round(const coordinator::RoundLost& lost) {
  Job& job = jobs_.at(lost.request);
  job.progress.phase = control::ProgressPhase::kSnapshot;
  // A snapshot that is being taken is served when it is complete, perhaps under another name.
  if (std::exchange(job.streams, false) && !job.taken) job.version = {};
  execute(queue_->round_lost(lost.request, lost.reason));
}

void TrainerAgent::give_up_version(const Version& version, const std::string& why) {
  report_incident(fmt::format("the publish of {} is given up: {}", version.to_string(), why));
  // Also of a job that is kept: it would be announced again with this snapshot.
  const control::CancelReply reply =
      coordinator_->has_update(version)
          ? coordinator_->cancel(version,
                                 fmt::format("given up, because {}; publish it again", why))
          : cancel(version);
  if (!reply.ok) log_debug("{}: {}", version.to_string(), reply.reason);
}

void TrainerAgent::begin_copy(std::uint64_t request, const CopiedSnapshot& snapshot) {
  jobs_.at(request).copied = snapshot;
  execute(queue_->copy_began(request));
}

std::shared_ptr<const Snapshot> TrainerAgent::serve(std::uint64_t request) {
  Job& job = jobs_.at(request);
  std::shared_ptr<const Snapshot> snapshot = job.taken;
  if (!job.job.is_kept) job.taken.reset();
  if (!std::exchange(job.is_recorded, true))
    coordinator_->recorder().snapshot_taken(request, *snapshot, job.snapshot_time.begin,
                                            job.snapshot_time.end, now());
  job.version = snapshot->version();
  if (job.job.on_snapshotted) job.job.on_snapshotted(job.version, job.snapshot_time.took(), {});
  publisher_->versions().offer(snapshot);
  last_served_ = job.version;
  if (directory_) held_[job.version] = snapshot;
  return snapshot;
}

void TrainerAgent::apply(const RequestRound& command) {
  if (command.streams) return request_stream(command);
  const Job& job = jobs_.at(command.request);
  give_name(*job.taken, command.version);
  // Before the round, because a sidecar may request its bytes as soon as the version is announced.
  const auto snapshot = serve(command.request);
  coordinator_->request_round(
      {.request = command.request,
       .version = snapshot->version(),
       .layout_digest = snapshot->manifest()->layout_digest(),
       .content_digest = snapshot->identity().content,
       .layout = encoded(*snapshot->manifest()),
       .bucket_bytes = snapshot->plan()->bucket_bytes(),
       .arena_bytes = snapshot->plan()->arena_bytes(),
       .snapshot_ns = static_cast<std::uint64_t>(job.snapshot_time.took().count()),
       .is_kept = job.job.is_kept,
       .deadline = command.deadline,
       .parts = snapshot->parted() ? snapshot->parted()->parts() : SharedBytes(),
       .owners = snapshot->parted() ? snapshot->parted()->owners()
                                    : std::vector<coordinator::PartOwner>()});
}

// A snapshot that began before the fence was claimed has no name, or one of another epoch.
void TrainerAgent::give_name(Snapshot& snapshot, const Version& version) {
  const control::Fence& fence = coordinator_->fence();
  const ArenaIdentity& identity = snapshot.identity();
  if (snapshot.version() != version || identity.fence_epoch != fence.epoch ||
      identity.fence_run_id != fence.run_id)
    publisher_->rename(snapshot, fence, version);
}

void TrainerAgent::request_stream(const RequestRound& command) {
  Job& job = jobs_.at(command.request);
  CopiedSnapshot snapshot = *job.copied;
  const control::Fence& fence = coordinator_->fence();
  snapshot.identity.fence_epoch = fence.epoch;
  snapshot.identity.fence_run_id = fence.run_id;
  snapshot.identity.version_epoch = command.version.epoch;
  snapshot.identity.version_step = command.version.step;
  job.version = command.version;
  job.streams = true;
  publisher_->versions().offer_buckets(snapshot);
  for (const auto& [bucket, sums] : job.complete)
    publisher_->versions().bucket_complete(command.version, bucket, sums);
  coordinator_->request_round({.request = command.request,
                               .version = command.version,
                               .layout_digest = snapshot.identity.layout,
                               .content_digest = {},
                               .layout = encoded(*snapshot.manifest),
                               .bucket_bytes = snapshot.layout.plan->bucket_bytes(),
                               .arena_bytes = snapshot.layout.plan->arena_bytes(),
                               .is_complete = false,
                               .was_streamed = true,
                               .is_kept = job.job.is_kept,
                               .deadline = command.deadline});
}

void TrainerAgent::apply(const CompleteRound& command) {
  const std::chrono::nanoseconds time = jobs_.at(command.request).snapshot_time.took();
  give_name(*jobs_.at(command.request).taken, command.version);
  const auto snapshot = serve(command.request);
  coordinator_->end_snapshot({.version = command.version,
                              .content_digest = snapshot->identity().content,
                              .snapshot_ns = static_cast<std::uint64_t>(time.count())});
}

void TrainerAgent::apply(const AbandonRound& command) {
  coordinator_->end_snapshot({.version = command.version,
                              .failure = command.why.message(),
                              .cancelled = command.why.code() == ErrorCode::kCancelled});
}

void TrainerAgent::apply(EndPublish command) {
  auto job = jobs_.extract(command.request);
  if (command.had_round) {  // the coordinator has recorded it
    const std::string version = command.reply.version.to_string();
    if (command.end == JobState::kServed)
      log_info(
          "{} is served{}", version,
          command.reply.canary.empty() ? "" : " by the canary '" + command.reply.canary + "' only");
    else if (control::failure_code(command.reply) == ErrorCode::kPartial)
      log_warning("{} is not served by every replica: {}", version, command.reply.reason);
    else if (command.end == JobState::kSuperseded)  // the trainer is faster than its fleet
      log_info("{} is not served: {}", version, command.reply.reason);
    else
      log_warning("the publish of {} failed: {}", version, command.reply.reason);
  } else if (command.error) {
    log_warning("publish failed: {}", command.error->message());
    coordinator_->recorder().failed(command.request, *command.error, now());
  } else {
    coordinator_->recorder().superseded(command.request, command.reply, now());
  }
  if (job.empty() || !job.mapped().job.on_done) return;
  job.mapped().job.on_done({.superseded = command.end == JobState::kSuperseded,
                            .reply = std::move(command.reply),
                            .error = std::move(command.error)});
}

void TrainerAgent::apply(const ReplaceWaiting& command) {
  coordinator_->replace_waiting(command.version, command.by);
}

void TrainerAgent::apply(const ReportWait& command) {
  coordinator_->recorder().incident(command.text, now());
}

void TrainerAgent::report_incident(const std::string& text) {
  coordinator_->recorder().incident(text, now());
}

// ---- progress ----

void TrainerAgent::enter_phase(const coordinator::PhaseEntered& phase) {
  if (const auto entered = queue_->phase_entered(phase.request, phase.phase); !entered)
    return log_refused(entered.error());
  Job& job = jobs_.at(phase.request);
  job.progress.phase = phase.phase;
  // Decided: the arena of the version before may be changed, and no round begins again with it.
  if (phase.phase == control::ProgressPhase::kSwitch) {
    job.taken.reset();
    publisher_->versions().make_complete(job.version);
  }
  // With a canary it is written when it is promoted.
  if (phase.phase == control::ProgressPhase::kSwitch && directory_ && config_.canary.empty())
    write(job.version);
  if (job.job.on_phase) job.job.on_phase(phase.phase);
}

// From the target, which is in an arena, or will be when the snapshot is taken. Not while another
// version may become the target: the arena could not be changed to it, because this snapshot reads
// it.
bool TrainerAgent::may_take_changes() const {
  const Version& target = coordinator_->target();
  return config::arena_obstacle(config_).empty() && !target.none() &&
         (last_served_ == target || !coordinator_->has_update({})) &&
         coordinator_->may_hold_changes();
}

void TrainerAgent::write(const Version& version) {
  if (const auto held = held_.find(version); held != held_.end())
    directory_->write(held->second);
  else  // promoted, and published by the process before this one
    report_incident(
        fmt::format("{} is not written to {}: this trainer has no snapshot of it; the next "
                    "version is written",
                    version.to_string(), config_.directory.publish));
}

void TrainerAgent::report_progress() {
  advance();  // for the deadlines of waiting publishes
  const auto snapshotting = queue_->snapshotting();
  const PhaseBytes moved = coordinator_->moved_bytes();
  for (auto& [request, job] : jobs_) {
    if (!job.job.on_progress || queue_->state(request) == JobState::kQueued) continue;
    const std::uint64_t total = job.snapshot->total.load(std::memory_order_relaxed);
    if (job.progress.phase != control::ProgressPhase::kSnapshot) {
      job.progress.done_bytes = moved.done;
      job.progress.total_bytes = moved.total;
    } else {
      // A publish that waits for the previous round has copied everything.
      job.progress.done_bytes =
          snapshotting == request ? job.snapshot->done.load(std::memory_order_relaxed) : total;
      job.progress.total_bytes = total;
    }
    job.job.on_progress(job.progress);
  }
}

}  // namespace wsync::publish
