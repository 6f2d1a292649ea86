#include "tests/simulation/engine_group.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"

namespace wsync::simulation {

using control::RankState;
using engine::RankReport;

EngineGroup::EngineGroup(Schedule& schedule, std::string name, std::uint32_t ranks, bool adopts,
                         GroupHooks hooks)
    : schedule_(schedule),
      name_(std::move(name)),
      ranks_(ranks),
      adopts_(adopts),
      hooks_(std::move(hooks)) {}

std::size_t EngineGroup::leases() const noexcept {
  std::size_t count = 0;
  for (const Rank& rank : ranks_) {
    if (rank.lease) ++count;
    if (rank.reads) ++count;
  }
  return count;
}

// ---- processes and links ----

void EngineGroup::start(std::uint32_t index) {
  Rank& rank = ranks_[index];
  if (rank.up) return;
  rank = Rank{.up = true,
              .machine = engine::RankMachine(
                  {.replica = name_, .rank = index, .leader = index == 0, .adopts = adopts_}),
              .life = rank.life + 1,
              .link = rank.link,
              .load = rank.load + 1};
  if (hooks_.sidecar_answers()) attach(index);
  if (std::ranges::all_of(ranks_, &Rank::up))
    schedule_.after(schedule_.micros(1'000, 30'000), [this, group = group_] {
      if (group == group_) form_group();
    });
}

void EngineGroup::crash(std::uint32_t index) {
  Rank& rank = ranks_[index];
  if (!rank.up) return;
  const bool was_attached = rank.attached;
  rank.up = rank.attached = false;
  rank.taking.reset();
  rank.ordered = {};
  rank.loaded = {};
  rank.reads.reset();
  rank.lease.reset();
  rank.mapped_link = 0;
  ++rank.life;
  ++rank.link;
  break_group();
  if (was_attached && hooks_.sidecar_up()) hooks_.detached(index);
}

void EngineGroup::sidecar_lost() {
  for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = ranks_[index];
    rank.attached = false;
    ++rank.link;
    lose_sidecar(index);
  }
  pause_requested_ = false;
}

// The staged copy is gone, so the load fails. Ranks keep the bytes that they have copied so far.
void EngineGroup::lose_sidecar(std::uint32_t index) {
  Rank& rank = ranks_[index];
  ++rank.load;
  if (rank.taking) rank.reads.reset();
  rank.taking.reset();
  rank.mapped_link = 0;
  execute(index, rank.machine.handle_loss("the sidecar has ended"));
}

void EngineGroup::attach_all() {
  for (std::uint32_t index = 0; index < ranks_.size(); ++index)
    attach_later(index, schedule_.micros(500, 40'000));
}

void EngineGroup::attach_later(std::uint32_t index, std::chrono::nanoseconds delay) {
  schedule_.after(delay, [this, index, life = ranks_[index].life] {
    const Rank& rank = ranks_[index];
    if (rank.up && rank.life == life && !rank.attached && hooks_.sidecar_answers()) attach(index);
  });
}

void EngineGroup::stand_still(TimePoint until) {
  stalled_until_ = std::max(stalled_until_, until);
  for (Rank& rank : ranks_)
    if (rank.up) rank.still_until = std::max(rank.still_until, until);
}

void EngineGroup::drop_link(std::uint32_t index) {
  Rank& rank = ranks_[index];
  if (!rank.up) return;  // the sidecar, which stood still, has not seen yet that it has ended
  rank.attached = false;
  ++rank.link;
  schedule_.after(schedule_.micros(100, 20'000), [this, index, life = rank.life, link = rank.link] {
    if (ranks_[index].life != life || ranks_[index].link != link) return;
    lose_sidecar(index);
    schedule_.after(schedule_.micros(500, 40'000), [this, index, life, link] {
      const Rank& later = ranks_[index];
      if (later.life == life && later.link == link && hooks_.sidecar_answers()) attach(index);
    });
  });
}

void EngineGroup::attach(std::uint32_t index) {
  Rank& rank = ranks_[index];
  // Another process has its name and its place. It tries again.
  if (const auto refusal = hooks_.refusal(index)) {
    handle(index, control::Refuse{.reason = *refusal}, 0);
    execute(index, rank.machine.handle_loss("the sidecar has closed the connection"));
    return attach_later(index, schedule_.micros(50'000, 300'000));
  }
  rank.attached = true;
  ++rank.link;
  rank.link_free = schedule_.now();
  handle(index, control::EngineWelcome{}, 0);
  hooks_.attached(
      index, {.rank = index, .leader = index == 0, .state = rank.state(), .active = rank.active()});
}

// Messages keep their order in both directions of a link. If the link breaks, messages in transit
// are lost.
void EngineGroup::deliver(std::uint32_t index, std::function<void()> action) {
  Rank& rank = ranks_[index];
  if (!rank.attached) return;
  const TimePoint due = std::max(schedule_.now(), rank.still_until) + schedule_.micros(20, 2'000);
  rank.link_free = std::max(rank.link_free + std::chrono::nanoseconds(1), due);
  schedule_.at(rank.link_free, [this, index, link = rank.link, action = std::move(action)] {
    if (ranks_[index].link == link) action();
  });
}

void EngineGroup::say(std::uint32_t index, control::Message message, std::uint64_t request) {
  deliver(index, [this, index, message = std::move(message), request] {
    hooks_.say(index, message, request);
  });
}

// ---- the group ----

void EngineGroup::form_group() {
  formed_ = std::ranges::all_of(ranks_, &Rank::up);
  if (formed_) lead();
}

void EngineGroup::break_group() {
  formed_ = false;
  ++group_;
  for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = ranks_[index];
    rank.headers.clear();
    if (rank.in_step) leave(index);
    if (rank.up && rank.state() == RankState::kServing && (index != 0 || !pause_requested_))
      report(index, RankReport::What::kStopped);
  }
  if (ranks_[0].up) pause_leader();
  leading_ = false;
}

// ---- steps of the leader ----

void EngineGroup::lead() {
  if (leading_ || ranks_[0].state() != RankState::kServing) return;
  leading_ = true;
  TimePoint begin = schedule_.now() + schedule_.micros(200, 4'000);
  if (stalled_until_ > begin) begin = stalled_until_;
  schedule_.at(begin, [this, group = group_, life = ranks_[0].life] {
    if (group != group_ || life != ranks_[0].life) return;
    open_step();
  });
}

void EngineGroup::open_step() {
  leading_ = false;
  Rank& leader = ranks_[0];
  if (pause_requested_) {
    pause_leader();
    return;
  }
  if (leader.state() != RankState::kServing) return;
  if (!formed_) {  // no rank receives this header
    report(0, RankReport::What::kStopped);
    return;
  }
  leading_ = true;
  const Version version = leader.active();
  enter(0, version);
  for (std::uint32_t index = 1; index < ranks_.size(); ++index)
    schedule_.after(schedule_.micros(10, 800), [this, index, version, group = group_] {
      if (group != group_) return;
      ranks_[index].headers.push_back(version);
      follow(index);
    });
  schedule_.after(schedule_.micros(2'000, 5'000), [this, group = group_] {
    if (group != group_ || !ranks_[0].in_step) return;
    leave(0);
    ++steps_;
    leading_ = false;
    lead();
  });
}

// PAUSE at the leader: it sends one header `stop` to all ranks between two steps.
void EngineGroup::pause_leader() {
  if (std::exchange(pause_requested_, false)) report(0, RankReport::What::kPaused);
  if (!formed_) return;
  for (std::uint32_t index = 1; index < ranks_.size(); ++index)
    schedule_.after(schedule_.micros(800, 1'500), [this, index, group = group_] {
      if (group != group_) return;
      ranks_[index].headers.emplace_back();
      follow(index);
    });
}

void EngineGroup::follow(std::uint32_t index) {
  Rank& rank = ranks_[index];
  if (!rank.up || rank.in_step || rank.headers.empty()) return;
  const Version version = rank.headers.front();
  rank.headers.pop_front();
  if (version.none()) {
    report(index, RankReport::What::kPaused);
    follow(index);
    return;
  }
  const bool may = rank.state() == RankState::kServing || rank.state() == RankState::kPaused;
  if (!may || rank.active() != version) {
    refuse_step();
    return;
  }
  report(index, RankReport::What::kRunning);
  enter(index, version);
  schedule_.after(schedule_.micros(500, 3'000), [this, index, life = rank.life, group = group_] {
    if (ranks_[index].life != life || group != group_ || !ranks_[index].in_step) return;
    leave(index);
    follow(index);
  });
}

// A rank's version differs from the version in the header: the leader aborts the step and stops.
void EngineGroup::refuse_step() {
  if (!ranks_[0].in_step) return;
  leave(0);
  leading_ = false;
  if (!pause_requested_) report(0, RankReport::What::kStopped);
  pause_leader();
}

void EngineGroup::enter(std::uint32_t index, const Version& version) {
  ranks_[index].in_step = true;
  ranks_[index].step_version = version;
  check(index, "at the beginning");
}

void EngineGroup::leave(std::uint32_t index) {
  check(index, "at the end");
  ranks_[index].in_step = false;
}

void EngineGroup::check(std::uint32_t index, const char* when) {
  const Rank& rank = ranks_[index];
  if (rank.memory != hooks_.content_of(rank.step_version) || rank.active() != rank.step_version)
    hooks_.violation(fmt::format("torn: rank {} of '{}' runs a step of {} on other bytes {} of it",
                                 index, name_, rank.step_version.to_string(), when));
}

// ---- requests of the sidecar ----

void EngineGroup::handle(std::uint32_t index, const control::Message& message,
                         std::uint64_t request) {
  execute(index, ranks_[index].machine.handle({.request = request, .replica = name_, .rank = index},
                                              message));
}

void EngineGroup::report(std::uint32_t index, RankReport::What what) {
  execute(index, ranks_[index].machine.handle_report({.what = what, .step = steps_}));
}

// Does what EngineLink does with an engine and mapped memory. Versions are always prepared.
void EngineGroup::execute(std::uint32_t index, const engine::RankActions& actions) {
  Rank& rank = ranks_[index];
  engine::RankMachine& machine = rank.machine;
  if (auto holds = machine.invariants(); !holds) hooks_.violation(holds.error().message());
  for (const engine::RankAction& action : actions) {
    if (const auto* reply = std::get_if<engine::SendReply>(&action)) {
      if (!std::holds_alternative<control::Prepared>(reply->message))
        say(index, reply->message, reply->request.request);
    } else if (std::holds_alternative<engine::AcceptWelcome>(action)) {
      machine.handle_welcomed();
    } else if (const auto* prepare = std::get_if<engine::PrepareVersion>(&action)) {
      execute(index, machine.handle_prepared(prepare->request, prepare->message->version, {}));
    } else if (std::holds_alternative<engine::PauseEngine>(action)) {
      pause_requested_ = true;
      if (!leading_ || !formed_) pause_leader();
    } else if (const auto* map = std::get_if<engine::MapBuffers>(&action)) {
      execute(index,
              machine.handle_buffers_mapped(map->request, *map->message, {}, schedule_.now()));
    } else if (std::holds_alternative<engine::StartLoad>(action)) {
      copy(index);
    } else if (const auto* take = std::get_if<engine::TakeBucket>(&action)) {
      take_bucket(index, *take);
    } else if (std::holds_alternative<engine::CancelLoad>(action)) {
      ++rank.load;
      if (rank.taking) end_load(index, "the load was cancelled");
    } else if (const auto* commit = std::get_if<engine::CommitEngine>(&action)) {
      if (adopts_) adopt(index);
      execute(index, machine.handle_committed(commit->request, commit->version, {}));
    } else if (const auto* resume = std::get_if<engine::ResumeEngine>(&action)) {
      pause_requested_ = false;
      execute(index, machine.handle_resumed(resume->request, {}, {}));
      lead();
    }
  }
}

void EngineGroup::copy(std::uint32_t index) {
  Rank& rank = ranks_[index];
  if (!adopts_) rank.memory = {};
  rank.loaded = {};
  rank.taking = std::exchange(rank.ordered, {});
  rank.reads = rank.taking->lease.lock();
  // Its memory belongs to another version by now, which the rank sees when it maps it.
  const std::weak_ptr<const int> none;
  const bool had_lease =
      none.owner_before(rank.taking->lease) || rank.taking->lease.owner_before(none);
  if (had_lease && !rank.reads) rank.taking->spoiled = true;
  rank.taken = 0;
  if (rank.taking->brings_buffers) rank.mapped_link = rank.link;
  const std::uint64_t load = ++rank.load;
  if (rank.taking->buckets > 0) return;
  if (adopts_) return end_load(index, "");  // it has only to be mapped
  const TimePoint end =
      std::max(schedule_.now(), rank.still_until) + schedule_.micros(2'000, 40'000);
  schedule_.at(end, [this, index, load, life = rank.life] {
    if (ranks_[index].life == life && ranks_[index].load == load) end_load(index, "");
  });
}

// The engine serves from the mapped version from now on, and lets go of the one before.
void EngineGroup::adopt(std::uint32_t index) {
  Rank& rank = ranks_[index];
  rank.memory = rank.loaded;
  rank.lease = std::exchange(rank.reads, {});
  rank.loaded = {};
  hooks_.adopted();
}

// The bucket lies in the device buffer. The rank copies it out and then acknowledges it.
void EngineGroup::take_bucket(std::uint32_t index, const engine::TakeBucket& take) {
  if (!ranks_[index].taking) return;
  schedule_.after(schedule_.micros(200, 4'000), [this, index, take, life = ranks_[index].life,
                                                 load = ranks_[index].load] {
    Rank& rank = ranks_[index];
    if (rank.life != life || rank.load != load || !rank.taking) return;
    execute(index, engine::RankMachine::handle_bucket_taken(take.request, take.bucket, {}));
    if (++rank.taken == rank.taking->buckets) end_load(index, "");
  });
}

// The load ends here: either every byte has arrived or the load has failed. The rank unmaps before
// it answers.
void EngineGroup::end_load(std::uint32_t index, const std::string& failure) {
  Rank& rank = ranks_[index];
  const LoadOrder order = *std::exchange(rank.taking, std::nullopt);
  if (order.brings_buffers) rank.mapped_link = 0;
  engine::LoadOutcome outcome{.bytes = 1};
  if (!adopts_ || !failure.empty() || order.spoiled) rank.reads.reset();
  if (!failure.empty())
    outcome.result = fail(ErrorCode::kCancelled, failure);
  else if (order.spoiled)
    outcome.result = fail(ErrorCode::kDigestMismatch, "checksum");
  else if (adopts_)
    rank.loaded = order.bytes;
  else
    rank.memory = order.bytes;
  execute(index, rank.machine.handle_load_ended(outcome));
}

void EngineGroup::pause(std::uint32_t index, std::uint64_t request) {
  deliver(index, [this, index, request] {
    const bool serving = ranks_[index].state() == RankState::kServing;
    handle(index, control::Pause{}, request);
    // replica_switch.h expects a leader that has already stopped to send the header `stop` as well.
    // (EngineLink answers for such a leader and does not ask the engine.)
    if (!serving) pause_leader();
  });
}

void EngineGroup::load(std::uint32_t index, const LoadOrder& order) {
  deliver(index, [this, index, order] {
    ranks_[index].ordered = order;
    handle(index, control::Prepare{.version = order.version}, 0);
    control::Load message{.version = order.version};
    if (order.brings_buffers) message.buffers.resize(1);
    handle(index, message, order.request);
  });
}

void EngineGroup::bucket_ready(std::uint32_t index, std::uint64_t request, std::uint64_t bucket) {
  deliver(index, [this, index, request, bucket] {
    handle(index, control::BucketReady{.bucket = bucket}, request);
  });
}

void EngineGroup::cancel_load(std::uint32_t index, const Version& version) {
  deliver(index, [this, index, version] { handle(index, control::Abort{.version = version}, 0); });
}

void EngineGroup::commit(std::uint32_t index, std::uint64_t request, Version version) {
  deliver(index, [this, index, request, version] {
    handle(index, control::Commit{.version = version}, request);
  });
}

void EngineGroup::resume(std::uint32_t index, std::uint64_t request) {
  deliver(index, [this, index, request] { handle(index, control::Resume{}, request); });
}

}  // namespace wsync::simulation
