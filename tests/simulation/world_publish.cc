// Simulates the trainer around each coordinator: the real PublishQueue, snapshots that take time
// and occupy an arena, and the client's requests to publish, to give up and to cancel.
#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "tests/simulation/world.h"
#include "tests/simulation/world_facts.h"

namespace wsync::simulation {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kPoll{100};      // the agent's value
constexpr milliseconds kArenaRetry{2};  // the snapshotter's value
// allowed delay of an answer after the deadline of its publish
constexpr milliseconds kLateness{1'000};

}  // namespace

void World::start_queue(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  process.stopping.clear();
  process.arenas.emplace(schedule_.pick(3, 5));
  process.publish_deadline = milliseconds(schedule_.pick(2'000, 10'000));
  process.facts = std::make_unique<Facts>(*this, c);
  process.queue = std::make_unique<publish::PublishQueue>(*process.facts, process.publish_deadline);
  poll_queue(c);
}

std::string World::address_of(std::size_t c) const {
  return fmt::format("c{}#{}", c, coordinators_[c].trainer);
}

// The trainer of a coordinator that is a process of its own attaches, sooner or later.
void World::start_trainer(std::size_t c) {
  schedule_.after(schedule_.micros(100, 900'000), [this, c, life = coordinators_[c].life] {
    CoordinatorProcess& process = coordinators_[c];
    if (!process.machine || process.life != life || process.queue) return;
    ++process.trainer;
    start_queue(c);
    coordinator_step(c, {.now = schedule_.now(),
                         .what = coordinator::PublisherAttached{
                             .transports = {{"memfd", address_of(c)}, {"tcp", address_of(c)}},
                             .secret = std::nullopt,
                             .boot_id = "host-0",
                             .process = process.trainer}});
  });
}

// What ends with a trainer's process.
void World::end_trainer(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  ++process.trainer;
  process.queue.reset();
  process.snapshot.reset();
  process.snapshots.clear();
  process.held.clear();
  process.lost.clear();
  process.keeps.clear();
  process.kept.clear();
  if (process.arenas) statistics_.arenas_added += process.arenas->additional();
  process.arenas.reset();
}

// It is killed, and its coordinator hears of that later, as its desk does.
void World::lose_trainer(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  if (!process.machine || !process.is_apart || !process.queue) return;
  ++statistics_.trainers_lost;
  trace([&] { return fmt::format("the trainer of c{} crashes", c); });
  end_trainer(c);
  for (const auto& [request, since] : process.publishes) process.orphans.insert(request);
  process.publishes.clear();
  schedule_.after(schedule_.micros(100, 600'000), [this, c, life = process.life] {
    if (coordinators_[c].life != life) return;
    coordinator_step(c, {.now = schedule_.now(),
                         .what = coordinator::PublisherLost{.reason = "the trainer is lost"}});
    start_trainer(c);
  });
}

void World::poll_queue(std::size_t c) {
  schedule_.after(kPoll, [this, c, trainer = coordinators_[c].trainer] {
    CoordinatorProcess& process = coordinators_[c];
    if (!process.machine || process.trainer != trainer) return;
    execute(c, process.queue->advance(schedule_.now()));
    poll_queue(c);
  });
}

void World::execute(std::size_t c, const Result<publish::PublishQueue::Commands>& commands) {
  CoordinatorProcess& process = coordinators_[c];
  if (!commands) return violate(commands.error().message());
  if (const auto hold = process.queue->invariants(); !hold)
    violate(fmt::format("the queue of coordinator {}: {}", c, hold.error().message()));
  const std::uint64_t trainer = process.trainer;
  for (const publish::QueueCommand& command : *commands)
    if (process.trainer == trainer) execute(c, command);
}

void World::execute(std::size_t c, const publish::QueueCommand& command) {
  CoordinatorProcess& process = coordinators_[c];
  if (const auto* begin = std::get_if<publish::BeginSnapshot>(&command)) {
    if (process.snapshot) violate("two snapshots are taken at once");
    process.snapshot = SnapshotRun{.what = *begin, .hold = {}};
    process.arenas->begin_wait(schedule_.now(), begin->deadline);
    take_snapshot(c);
  } else if (const auto* stop = std::get_if<publish::StopSnapshot>(&command)) {
    if (process.snapshot && process.snapshot->what.request == stop->request)
      process.snapshot->stopped = true;
    else
      violate("a snapshot is stopped that is not taken");
  } else if (const auto* hold = std::get_if<publish::HoldSnapshot>(&command)) {
    if (!process.held.contains(hold->request)) violate("a snapshot is kept that is not complete");
    ++statistics_.held;
  } else if (const auto* round = std::get_if<publish::RequestRound>(&command)) {
    request_round(c, *round);
  } else if (const auto* complete = std::get_if<publish::CompleteRound>(&command)) {
    end_stream(c, complete->version, std::nullopt);
  } else if (const auto* abandon = std::get_if<publish::AbandonRound>(&command)) {
    ++statistics_.stream_failures;
    end_stream(c, abandon->version, abandon->why);
  } else if (const auto* end = std::get_if<publish::EndPublish>(&command)) {
    end_publish(c, *end);
  } else if (const auto* replaced = std::get_if<publish::ReplaceWaiting>(&command)) {
    coordinator_step(c, {.now = schedule_.now(),
                         .what = coordinator::WaitingReplaced{.version = replaced->version,
                                                              .by = replaced->by}});
  }
}

// Waits for an arena that nobody reads, then copies.
void World::take_snapshot(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  SnapshotRun& run = *process.snapshot;
  const std::uint64_t trainer = process.trainer;
  const auto later = [this, c, trainer](std::chrono::nanoseconds delay, auto action) {
    schedule_.after(delay, [this, c, trainer, action] {
      if (coordinators_[c].trainer == trainer) action();
    });
  };
  if (run.stopped) {
    end_snapshot(c, Error(ErrorCode::kCancelled, "stopped while waiting for a free arena"));
  } else if ((run.hold = process.arenas->take(schedule_.now()))) {
    check_arenas(c);
    run.weights_read = true;
    begin_copy(c);
    if (process.trainer != trainer || !process.snapshot) return;
    // Some copies take longer than everything else of a round.
    later(schedule_.micros(100, schedule_.chance(0.05) ? 900'000 : 40'000), [this, c] {
      const SnapshotRun& copied = *coordinators_[c].snapshot;
      // otherwise the copy was complete before it could see the stop
      if (copied.stopped && schedule_.chance(0.5))
        end_snapshot(c, Error(ErrorCode::kCancelled, "the snapshot was stopped"));
      else if (faults_on_ && schedule_.chance(0.02))
        end_snapshot(c, Error(ErrorCode::kIo, "the source cannot be read"));
      else
        end_snapshot(c, std::nullopt);
    });
  } else if (process.arenas->is_over(schedule_.now())) {
    if (!process.arenas->all_needed_here())
      violate("a snapshot has waited in vain for processes that stand still");
    end_snapshot(c, Error(ErrorCode::kBusy, "all arenas are still being read"));
  } else {
    if (!std::exchange(run.awaits_memory, true))
      execute(c, process.queue->memory_awaited(run.what.request));
    later(kArenaRetry, [this, c] { take_snapshot(c); });
  }
}

// The round may begin now, while the snapshot is being taken.
void World::begin_copy(std::size_t c) {
  execute(c, coordinators_[c].queue->copy_began(coordinators_[c].snapshot->what.request));
}

// A process that stands still keeps the versions that it held, and no more.
void World::check_arenas(std::size_t c) {
  std::size_t read = 0;
  for (std::size_t s = 0; s < sidecars_.size(); ++s) {
    if (!is_on_trainers_host(s)) continue;
    read += sidecars_[s].leases.size();
    for (const auto& group : sidecars_[s].groups) read += group->leases();
  }
  if (coordinators_[c].arenas->size() > coordinators_[c].arenas->count() + read)
    violate(fmt::format("there are {} arenas for {} of the trainer and {} that are read",
                        coordinators_[c].arenas->size(), coordinators_[c].arenas->count(), read));
}

void World::end_snapshot(std::size_t c, const std::optional<Error>& failure) {
  CoordinatorProcess& process = coordinators_[c];
  const std::uint64_t request = process.snapshot->what.request;
  // Its round may have lost every sidecar meanwhile.
  const bool streams = !process.snapshot->streamed.none() &&
                       process.queue->state(request) != publish::JobState::kSnapshotting;
  if (streams && !coordinators_[c].machine->has_update(process.snapshot->streamed))
    ++statistics_.stream_cancels;
  if (!failure && !streams) process.held[request] = *process.snapshot->hold;
  process.snapshot.reset();
  auto commands = process.queue->snapshot_ended(request, failure);
  const bool is_given =
      commands && std::ranges::any_of(*commands, [](const publish::QueueCommand& command) {
        return std::holds_alternative<publish::RequestRound>(command) ||
               std::holds_alternative<publish::HoldSnapshot>(command);
      });
  if (is_given && failure) violate("a version is made of a snapshot that has failed");
  if (!is_given) process.held.erase(request);
  const std::uint64_t trainer = process.trainer;
  execute(c, commands);
  if (process.machine && process.trainer == trainer)
    execute(c, process.queue->advance(schedule_.now()));
}

// A version comes into existence when the coordinator receives it.
void World::request_round(std::size_t c, const publish::RequestRound& command) {
  CoordinatorProcess& process = coordinators_[c];
  trace([&] {
    return fmt::format("the trainer of c{} requests a round of {}{}", c,
                       command.version.to_string(),
                       command.streams ? ", whose snapshot is being taken" : "");
  });
  if (process.stopping.contains(command.request))
    violate("a publish goes on that was cancelled during its snapshot");
  std::optional<TrainerHold> hold;
  if (command.streams) {
    if (!process.snapshot || process.snapshot->what.request != command.request ||
        !process.snapshot->hold)
      return violate("a version is made of a snapshot that is not being taken");
    ++statistics_.streamed;
    process.snapshot->streamed = command.version;
    hold = process.snapshot->hold;
  } else if (auto held = process.held.extract(command.request); !held.empty()) {
    hold = std::move(held.mapped());
  }
  if (!hold) return violate("a version is made of no snapshot");
  // A snapshot whose round was lost keeps its name.
  const auto named = process.lost.find(command.request);
  const bool is_again = named != process.lost.end() && named->second == command.version;
  const Digest content =
      is_again ? contents_.at(command.version) : Digest{.low = ++published_, .high = 77};
  if (is_again)
    ++statistics_.repeated;
  else if (!contents_.emplace(command.version, content).second)
    return violate(
        fmt::format("version {} is given to two byte strings", command.version.to_string()));
  // Ranks on other hosts serve parts of some. Their loss is that of a source.
  if (!is_again && !command.streams && faults_on_ && schedule_.chance(0.3)) {
    parted_.insert(command.version);
    ++statistics_.parted;
  }
  const bool has_parts = parted_.contains(command.version);
  std::vector<coordinator::PartOwner> owners;
  if (has_parts) {
    owners.emplace_back();
    owners.back().name = "a rank";
    owners.back().transports = {{"tcp", "another host"}};
    owners.back().boot_id = "host-0";
  }
  process.snapshots[command.version] = {
      .content = content, .hold = std::move(*hold), .complete = !command.streams};
  coordinator_step(c, {.now = schedule_.now(),
                       .what = coordinator::PublishRequested{
                           .request = command.request,
                           .version = command.version,
                           .layout_digest = {.low = 5},
                           .content_digest = command.streams ? Digest{} : content,
                           .bucket_bytes = 1,
                           .arena_bytes = 1,
                           .is_complete = !command.streams,
                           .was_streamed = command.streams,
                           .is_kept = process.keeps.contains(command.request),
                           .deadline = command.deadline,
                           .parts = has_parts ? Bytes(1) : Bytes(),
                           .owners = std::move(owners)}});
}

void World::end_stream(std::size_t c, const Version& version, const std::optional<Error>& failure) {
  CoordinatorProcess& process = coordinators_[c];
  coordinator::SnapshotEnded ended{.version = version};
  if (failure) {
    ended.failure = failure->message();
    ended.cancelled = failure->code() == ErrorCode::kCancelled;
  } else {
    const auto snapshot = process.snapshots.find(version);
    if (snapshot == process.snapshots.end())
      return violate(
          fmt::format("the snapshot of {} was dropped while it was taken", version.to_string()));
    snapshot->second.complete = true;
    ended.content_digest = snapshot->second.content;
  }
  coordinator_step(c, {.now = schedule_.now(), .what = std::move(ended)});
}

// The trainer still has the snapshot: it was taken for a publish that is kept.
void World::lose_round(std::size_t c, const coordinator::RoundLost& lost) {
  CoordinatorProcess& process = coordinators_[c];
  if (process.orphans.erase(lost.request) == 1) return;
  ++statistics_.lost_rounds;
  process.lost[lost.request] = lost.version;
  const auto snapshot = process.dropped.find(lost.version);
  if (snapshot == process.dropped.end())
    return violate(fmt::format("the round of {} was lost, and its snapshot is still offered",
                               lost.version.to_string()));
  if (snapshot->second.complete) process.held[lost.request] = snapshot->second.hold;
  execute(c, process.queue->round_lost(lost.request, lost.reason));
}

void World::end_publish(std::size_t c, const publish::EndPublish& end) {
  CoordinatorProcess& process = coordinators_[c];
  process.held.erase(end.request);
  process.lost.erase(end.request);
  process.keeps.erase(end.request);
  const auto asked = process.publishes.extract(end.request);
  if (asked.empty()) return violate("a publish ended twice");
  if (process.kept.erase(end.request) == 0 &&
      schedule_.now() > asked.mapped() + process.publish_deadline + kLateness)
    violate(fmt::format("publish {} was {} after its deadline", end.request,
                        publish::job_state_name(end.end)));
  const bool was_cancelled = process.stopping.erase(end.request) > 0;
  if (was_cancelled && !end.error) violate("a publish was cancelled and is served");
  if (end.end == publish::JobState::kSuperseded) ++statistics_.superseded;
  if (!end.reply.ok) ++statistics_.reasons[end.reply.reason];
  if (end.reply.reason.find("the round went on without") != std::string::npos)
    ++statistics_.left_out;
  if (end.reply.reason.find("has not stored") != std::string::npos) ++statistics_.late_stores;
  if (end.reply.ok) last_ok_ = std::max(last_ok_, end.request);
  if (!end.had_round) return;
  const bool is_cancelled = end.end == publish::JobState::kCancelled;
  if (!is_cancelled) ++(end.reply.ok ? statistics_.rounds_ok : statistics_.rounds_failed);
  if (end.reply.ok && std::ranges::any_of(sidecars_, &SidecarProcess::stopped))
    ++statistics_.ok_beside_stopped;
}

// ---- requests of a client ----

bool World::publish(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  if (!process.machine || !process.queue) return false;
  const std::uint64_t request = ++requests_;
  process.publishes[request] = schedule_.now();
  const bool is_kept = schedule_.chance(0.3);
  if (is_kept) process.kept.insert(request);
  if (is_kept) process.keeps.insert(request);
  if (const auto added = process.queue->publish(request, 0, schedule_.now(), is_kept); !added)
    violate(added.error().message());
  execute(c, process.queue->advance(schedule_.now()));
  return true;
}

void World::give_up(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  if (!process.queue) return;
  const bool weights_read = process.snapshot && process.snapshot->weights_read;
  execute(c, process.queue->give_up(0, weights_read));
}

// Cancels the active update, or one that may be queued, finished or unknown to this coordinator.
void World::cancel(std::size_t c) {
  CoordinatorProcess& process = coordinators_[c];
  if (!process.machine || !process.queue) return;
  const std::uint64_t answered = statistics_.cancelled + statistics_.cancels_refused;
  Version version;
  if (!contents_.empty() && schedule_.chance(0.5))
    version = std::next(contents_.begin(),
                        static_cast<std::ptrdiff_t>(schedule_.pick(0, contents_.size() - 1)))
                  ->first;
  auto cancelled = process.queue->cancel(version);
  if (!cancelled) return violate(cancelled.error().message());
  if (cancelled->reply) {
    ++(cancelled->reply->ok ? statistics_.cancelled : statistics_.cancels_refused);
    for (const publish::QueueCommand& command : cancelled->commands)
      if (const auto* stop = std::get_if<publish::StopSnapshot>(&command))
        process.stopping.insert(stop->request);
    execute(c, cancelled->commands);
  } else {
    coordinator_step(
        c, {.now = schedule_.now(),
            .what = coordinator::CancelRequested{.request = ++requests_, .version = version}});
  }
  if (coordinators_[c].machine &&
      statistics_.cancelled + statistics_.cancels_refused != answered + 1)
    violate("a request to cancel was not answered in its step");
}

}  // namespace wsync::simulation
