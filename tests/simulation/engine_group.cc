#include "tests/simulation/engine_group.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"

namespace wsync::simulation {

using control::RankState;

EngineGroup::EngineGroup(Schedule& schedule, std::string name, std::uint32_t ranks,
                         GroupHooks hooks)
    : schedule_(schedule), name_(std::move(name)), ranks_(ranks), hooks_(std::move(hooks)) {}

// ---- processes and links ----

void EngineGroup::start(std::uint32_t index) {
  Rank& rank = ranks_[index];
  if (rank.up) return;
  rank = Rank{.up = true, .life = rank.life + 1, .link = rank.link, .load = rank.load + 1};
  if (hooks_.sidecar_up()) attach(index);
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
  rank.mapped_link = 0;
  ++rank.life;
  ++rank.link;
  break_group();
  if (was_attached && hooks_.sidecar_up()) hooks_.detached(index);
}

void EngineGroup::sidecar_lost() {
  for (Rank& rank : ranks_) {
    rank.attached = false;
    ++rank.link;
    ++rank.load;  // the copy's source is gone; what was written stays as it is
    rank.taking.reset();
    rank.mapped_link = 0;
  }
  pauses_.clear();
}

void EngineGroup::attach_all() {
  for (std::uint32_t index = 0; index < ranks_.size(); ++index)
    schedule_.after(schedule_.micros(500, 40'000), [this, index, life = ranks_[index].life] {
      const Rank& rank = ranks_[index];
      if (rank.up && rank.life == life && !rank.attached && hooks_.sidecar_up()) attach(index);
    });
}

void EngineGroup::drop_link(std::uint32_t index) {
  Rank& rank = ranks_[index];
  rank.attached = false;
  ++rank.link;
  schedule_.after(schedule_.micros(100, 20'000), [this, index, life = rank.life, link = rank.link] {
    Rank& same = ranks_[index];
    if (same.life != life || same.link != link) return;
    ++same.load;
    same.taking.reset();
    same.mapped_link = 0;
    schedule_.after(schedule_.micros(500, 40'000), [this, index, life, link] {
      const Rank& later = ranks_[index];
      if (later.life == life && later.link == link && hooks_.sidecar_up()) attach(index);
    });
  });
}

void EngineGroup::attach(std::uint32_t index) {
  Rank& rank = ranks_[index];
  rank.attached = true;
  ++rank.link;
  rank.link_free = schedule_.now();
  hooks_.attached(
      index, {.rank = index, .leader = index == 0, .state = rank.state, .active = rank.active});
}

// Both directions of a link keep their order; what is on the way when it breaks is lost.
void EngineGroup::deliver(std::uint32_t index, std::function<void()> action) {
  Rank& rank = ranks_[index];
  if (!rank.attached) return;
  const TimePoint due = schedule_.now() + schedule_.micros(20, 2'000);
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
    if (rank.up && rank.state == RankState::kServing) {
      rank.state = RankState::kPaused;
      if (index != 0 || pauses_.empty()) say(index, control::Paused{}, 0);
    }
  }
  if (ranks_[0].up) pause_leader();
  leading_ = false;
}

// ---- led steps ----

void EngineGroup::lead() {
  if (leading_ || ranks_[0].state != RankState::kServing) return;
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
  if (!pauses_.empty()) {
    pause_leader();
    return;
  }
  if (leader.state != RankState::kServing) return;
  if (!formed_) {  // its header reaches nobody
    leader.state = RankState::kPaused;
    say(0, control::Paused{}, 0);
    return;
  }
  leading_ = true;
  const Version version = leader.active;
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

// PAUSE at the leader: one header `stop` to all, between two steps.
void EngineGroup::pause_leader() {
  Rank& leader = ranks_[0];
  if (leader.state == RankState::kServing) leader.state = RankState::kPaused;
  for (const std::uint64_t request : std::exchange(pauses_, {})) say(0, control::Paused{}, request);
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
    if (rank.state == RankState::kServing) rank.state = RankState::kPaused;
    say(index, control::Paused{}, 0);
    follow(index);
    return;
  }
  const bool may = rank.state == RankState::kServing || rank.state == RankState::kPaused;
  if (!may || rank.active != version) {
    refuse_step();
    return;
  }
  rank.state = RankState::kServing;
  enter(index, version);
  schedule_.after(schedule_.micros(500, 3'000), [this, index, life = rank.life, group = group_] {
    if (ranks_[index].life != life || group != group_ || !ranks_[index].in_step) return;
    leave(index);
    follow(index);
  });
}

// A rank whose version differs from the header's: the leader aborts the step and stops.
void EngineGroup::refuse_step() {
  if (!ranks_[0].in_step) return;
  leave(0);
  leading_ = false;
  ranks_[0].state = RankState::kPaused;
  if (pauses_.empty()) say(0, control::Paused{}, 0);
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
  if (rank.memory != hooks_.content_of(rank.step_version) || rank.active != rank.step_version)
    hooks_.violation(fmt::format("torn: rank {} of '{}' runs a step of {} on other bytes {} of it",
                                 index, name_, rank.step_version.to_string(), when));
}

// ---- what the sidecar asks ----

void EngineGroup::pause(std::uint32_t index, std::uint64_t request) {
  deliver(index, [this, request] {
    pauses_.push_back(request);
    if (!leading_ || !formed_) pause_leader();
  });
}

void EngineGroup::load(std::uint32_t index, const LoadOrder& order) {
  deliver(index, [this, index, order] {
    Rank& rank = ranks_[index];
    if (rank.in_step || rank.state == RankState::kServing) {
      say(index, control::Loaded{.version = order.version, .failure = "it is serving"},
          order.request);
      return;
    }
    rank.state = RankState::kTainted;  // before the first byte changes
    rank.active = {};
    rank.memory = {};
    rank.taking = order;
    rank.taken = 0;
    if (order.brings_buffers) rank.mapped_link = rank.link;
    const std::uint64_t load = ++rank.load;
    if (order.buckets > 0) return;
    schedule_.after(schedule_.micros(2'000, 40'000), [this, index, load, life = rank.life] {
      if (ranks_[index].life == life && ranks_[index].load == load) end_load(index, "");
    });
  });
}

// A bucket lies in the device's buffer: it is copied out, and then acknowledged.
void EngineGroup::bucket_ready(std::uint32_t index, std::uint64_t request, std::uint64_t bucket) {
  deliver(index, [this, index, request, bucket] {
    const Rank& rank = ranks_[index];
    if (!rank.taking || rank.taking->request != request) return;
    schedule_.after(schedule_.micros(200, 4'000),
                    [this, index, request, bucket, life = rank.life, load = rank.load] {
                      Rank& same = ranks_[index];
                      if (same.life != life || same.load != load || !same.taking) return;
                      say(index, control::BucketAck{.bucket = bucket}, request);
                      if (++same.taken == same.taking->buckets) end_load(index, "");
                    });
  });
}

// Every byte is here, or the load is given up. The rank unmaps before it answers.
void EngineGroup::end_load(std::uint32_t index, const std::string& failure) {
  Rank& rank = ranks_[index];
  const LoadOrder order = *std::exchange(rank.taking, std::nullopt);
  if (order.brings_buffers) rank.mapped_link = 0;
  if (!failure.empty() || order.spoiled) {
    say(index,
        control::Loaded{.version = order.version,
                        .failure = failure.empty() ? "checksum" : failure},
        order.request);
    return;
  }
  rank.memory = order.bytes;
  rank.loaded = order.version;
  rank.state = RankState::kLoaded;
  say(index, control::Loaded{.version = order.version, .bytes = 1}, order.request);
}

void EngineGroup::cancel_load(std::uint32_t index, const Version& version) {
  deliver(index, [this, index, version] {
    Rank& rank = ranks_[index];
    if (!rank.taking || rank.taking->version != version) return;
    ++rank.load;
    if (rank.taking->brings_buffers)
      end_load(index, "the load was cancelled");
    else
      rank.taking.reset();
  });
}

void EngineGroup::commit(std::uint32_t index, std::uint64_t request, Version version) {
  deliver(index, [this, index, request, version] {
    Rank& rank = ranks_[index];
    if (rank.state != RankState::kLoaded || rank.loaded != version) {
      say(index, control::Committed{.version = version, .failure = "it is not loaded"}, request);
      return;
    }
    rank.state = RankState::kPaused;
    rank.active = version;
    say(index, control::Committed{.version = version}, request);
  });
}

void EngineGroup::resume(std::uint32_t index, std::uint64_t request) {
  deliver(index, [this, index, request] {
    Rank& rank = ranks_[index];
    const bool whole = rank.state == RankState::kPaused || rank.state == RankState::kServing;
    if (!whole || rank.active.none()) return;
    rank.state = RankState::kServing;
    say(index, control::Resumed{}, request);
    lead();
  });
}

}  // namespace wsync::simulation
