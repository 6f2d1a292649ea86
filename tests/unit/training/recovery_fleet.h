// Ranks as threads that die where a test says, and what a launcher does for them: those that are
// left and a replacement for each lost one go on in a new group.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/process_group/collectives.h"
#include "shared/process_group/regroupable_group.h"
#include "tests/unit/training/rank_threads.h"
#include "trainer_side/training/recovery_run.h"
#include "trainer_side/training/run_state.h"

namespace wsync::training {

// Where a rank dies, and how.
struct Death {
  enum class At {
    kTag,       // when it comes to `tag`
    kUpdate,    // in the update of step tag.step
    kRecovery,  // in recover()
  };
  At at = At::kTag;
  std::uint32_t rank = 0;
  Tag tag;
  int exchanges = 0;  // that it still makes; dies in the next one
  // In that one, whom its messages still reach, and where these have come to before it is gone.
  std::vector<std::uint32_t> reaches;
  std::optional<Tag> until;
  bool together = false;         // with all other deaths that say so
  bool only_breaks = false;      // breaks its group, and lives
  std::uint32_t generation = 0;  // 0: of the first group
};

// The first message of so many bytes that a rank sends in recover() arrives with another last byte.
struct Damage {
  std::uint32_t rank = 0;
  std::size_t at_least = 0;
  std::size_t at_most = 0;
};

inline bool has_come_to(const Tag& tag, const Tag& goal) {
  return tag.step > goal.step || (tag.step == goal.step && tag.phase >= goal.phase);
}

// A group that dies as that of a process that is killed: it leaves, and tells nobody why.
class DyingGroup final : public collective::ProcessGroup {
 public:
  using Words = std::function<void(ProcessGroup&, std::span<const collective::Send>)>;

  explicit DyingGroup(std::unique_ptr<ProcessGroup> inner)
      : rank_(inner->rank()), size_(inner->size()), inner_(std::move(inner)) {}

  // Thread: any. At once; what it waits for meanwhile, it still gets.
  void die() {
    const std::lock_guard lock(mutex_);
    is_dead_ = true;
    inner_.reset();
  }
  void die_in(int exchanges, Words last_words) {
    const std::lock_guard lock(mutex_);
    exchanges_ = exchanges;
    last_words_ = std::move(last_words);
  }
  void damage(const Damage& damage) { damage_ = damage; }
  [[nodiscard]] bool is_dead() const {
    const std::lock_guard lock(mutex_);
    return is_dead_;
  }
  [[nodiscard]] int made() const { return made_; }

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return size_; }
  [[nodiscard]] Result<> exchange(std::span<const collective::Send> sends,
                                  std::span<const collective::Receive> receives,
                                  TimePoint deadline) override {
    ++made_;
    std::shared_ptr<ProcessGroup> inner;
    Words last_words;
    {
      const std::lock_guard lock(mutex_);
      inner = inner_;
      if (inner && exchanges_ && (*exchanges_)-- == 0) last_words = last_words_;
    }
    if (last_words) {
      last_words(*inner, sends);
      inner.reset();
      die();
    }
    if (!inner) return fail(ErrorCode::kCancelled, "this rank is dead");
    if (!damage_) return inner->exchange(sends, receives, deadline);
    return damaged(*inner, {sends.begin(), sends.end()}, receives, deadline);
  }
  void abort(const Error& reason) override {
    if (const auto inner = still_there()) inner->abort(reason);
  }
  [[nodiscard]] Result<> health() const override {
    const auto inner = still_there();
    return inner ? inner->health() : fail(ErrorCode::kCancelled, "this rank is dead");
  }

 private:
  [[nodiscard]] std::shared_ptr<ProcessGroup> still_there() const {
    const std::lock_guard lock(mutex_);
    return inner_;
  }
  Result<> damaged(ProcessGroup& inner, std::vector<collective::Send> sends,
                   std::span<const collective::Receive> receives, TimePoint deadline) {
    Bytes copy;
    for (collective::Send& send : sends) {
      const std::size_t bytes = send.bytes.size();
      if (!damage_ || bytes < damage_->at_least || bytes > damage_->at_most) continue;
      copy.assign(send.bytes.begin(), send.bytes.end());
      copy.back() ^= std::byte{1};
      send.bytes = copy;
      damage_.reset();
    }
    return inner.exchange(sends, receives, deadline);
  }

  const std::uint32_t rank_;
  const std::uint32_t size_;
  std::atomic<int> made_ = 0;
  std::optional<Damage> damage_;
  mutable std::mutex mutex_;
  // Under mutex_:
  std::shared_ptr<ProcessGroup> inner_;
  bool is_dead_ = false;
  std::optional<int> exchanges_;
  Words last_words_;
};

class Fleet {
 public:
  struct Faults {
    std::vector<Death> deaths;
    std::optional<Damage> damage;
    const RunState* checkpoint = nullptr;  // what ranks fall back to
    std::uint64_t bucket_bytes = kRecoveryBucketBytes;
  };
  // What a rank had at the end.
  struct Outcome {
    std::unique_ptr<TrainingRank> rank;
    std::map<std::uint64_t, StepResult> steps;  // of it, and that its predecessor's place was told
    std::string error;
  };
  // What a recovery came to on a rank.
  struct Resumed {
    std::uint32_t generation = 0;
    std::uint32_t rank = 0;
    Tag tag;                 // before it
    std::uint64_t step = 0;  // that was next; 0: it failed
    std::string error;
    bool fell_back = false;
    int exchanges = 0;
  };
  // Exchanges of a rank's update of step 2, without losses: the barrier's is the last of the first
  // number.
  struct Counts {
    int until_barrier = 0;
    int all = 0;
  };

  Fleet(TrainingOptions options, Faults faults)
      : options_(std::move(options)),
        faults_(std::move(faults)),
        size_(options_.sizes.ranks()),
        outcomes_(size_),
        counts_(size_),
        tags_(size_) {}

  // Until every rank has taken all steps, or cannot.
  void run() {
    {
      std::unique_lock lock(mutex_);
      for (std::uint32_t rank = 0; rank < size_; ++rank) lost_.push_back(rank);
      begin_generation();
      changed_.wait(lock, [&] { return ended_ == size_; });
    }
    threads_.clear();
  }

  [[nodiscard]] const TrainingOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<Outcome>& outcomes() const { return outcomes_; }
  [[nodiscard]] const std::vector<Resumed>& resumed() const { return resumed_; }
  [[nodiscard]] const Counts& counts(std::uint32_t rank) const { return counts_[rank]; }
  [[nodiscard]] std::uint32_t generations() const { return generation_; }
  [[nodiscard]] std::uint32_t died() const { return died_; }

 private:
  static constexpr std::uint32_t kGenerations = 8;

  // One rank's thread.
  struct Life {
    std::uint32_t number = 0;
    std::uint32_t generation = 0;
    DyingGroup* body = nullptr;
    std::unique_ptr<collective::RegroupableGroup> group;
    std::unique_ptr<TrainingRank> rank;
    int update_began = 0;
  };

  // Under mutex_: a group for all, and a thread for each rank that has none.
  void begin_generation() {
    const auto segment =
        collective::memory::HostSegment::create({.size = size_, .channel_bytes = 1U << 14U});
    groups_.clear();
    for (std::uint32_t rank = 0; rank < size_; ++rank)
      groups_.push_back(std::make_unique<DyingGroup>(std::move(segment->attach(rank).value())));
    for (const std::uint32_t rank : std::exchange(lost_, {}))
      threads_.emplace_back(
          [this, rank, generation = generation_, group = std::move(groups_[rank])]() mutable {
            begin_life(rank, generation, std::move(group));
          });
    arrived_ = 0;
    changed_.notify_all();
  }
  void begin_next_if_all_are_known() {
    if (is_over_) return changed_.notify_all();
    if (arrived_ + lost_.size() < size_) return;
    ++generation_;
    begin_generation();
  }

  // Waits for those that are left, and gives this one its place in the next group.
  bool regroup(Life& life) {
    std::unique_lock lock(mutex_);
    if (generation_ == kGenerations) is_over_ = true;
    const std::uint32_t before = generation_;
    ++arrived_;
    begin_next_if_all_are_known();
    changed_.wait(lock, [&] { return is_over_ || generation_ != before; });
    if (generation_ == before) return false;
    life.generation = generation_;
    life.body = groups_[life.number].get();
    EXPECT_TRUE(life.group->regroup(std::move(groups_[life.number])).has_value());
    return true;
  }

  void begin_life(std::uint32_t number, std::uint32_t generation,
                  std::unique_ptr<DyingGroup> group) {
    Life life{.number = number, .generation = generation, .body = group.get()};
    life.group = std::make_unique<collective::RegroupableGroup>(std::move(group));
    const bool replaces = generation > 0;
    auto created = TrainingRank::create(
        options_, life.group.get(),
        replaces ? TrainingRank::Start::kReplacement : TrainingRank::Start::kTogether);
    std::string error = created ? "" : created.error().message();
    if (created) {
      life.rank = std::move(*created);
      life.rank->on_phase([&](const Tag& tag) { notify(life, tag); });
      error = live(life, replaces);
      life.rank->on_phase({});
    }
    const std::lock_guard lock(mutex_);
    if (life.body->is_dead()) {
      ++died_;
      lost_.push_back(number);
      tags_[number] = {};
      begin_next_if_all_are_known();
      if (is_over_) ++ended_;
      changed_.notify_all();
      return;
    }
    outcomes_[number].rank = std::move(life.rank);
    // The others cannot go on without it.
    if (!error.empty()) is_over_ = true;
    outcomes_[number].error = std::move(error);
    life_groups_.push_back(std::move(life.group));
    ++ended_;
    changed_.notify_all();
  }

  // Why it cannot go on; nothing when it is through, or dead.
  std::string live(Life& life, bool replaces) {
    std::uint64_t next = 1;
    bool recovers = replaces;
    if (!replaces) {
      if (const auto set = set_weights(*life.rank); !set) return set.error().message();
      life.rank->begin_at(1);
    }
    for (;;) {
      Result<bool> done = recovers ? take_up(life, next) : resume(life, next);
      if (done && *done) return "";
      recovers = false;
      if (done) continue;
      if (life.body->is_dead()) return "";
      if (life.group->health() || !regroup(life)) return done.error().message();
      recovers = true;
    }
  }

  // Whether that was all.
  Result<bool> resume(Life& life, std::uint64_t& next) {
    if (next > kSteps) {
      std::vector<std::uint32_t> everyone;
      for (std::uint32_t rank = 0; rank < size_; ++rank) everyone.push_back(rank);
      WSYNC_TRY(collective::barrier(collective::Team(life.group.get(), std::move(everyone)),
                                    now() + options_.deadline));
      return true;
    }
    const auto done =
        life.rank->run_step(next, batches_of(options_, next, life.rank->place().replica), [&] {
          life.update_began = life.body->made();
          look_for_death(life, Death::At::kUpdate, {next, Phase::kBackward});
          return Result<>();
        });
    if (!done) return fail(done.error());
    outcomes_[life.number].steps[next] = done->result;
    ++next;
    return false;
  }

  Result<bool> take_up(Life& life, std::uint64_t& next) {
    look_for_death(life, Death::At::kRecovery, {});
    if (faults_.damage && faults_.damage->rank == life.number && life.generation == 1)
      life.body->damage(*faults_.damage);
    Resumed resumed{
        .generation = life.generation, .rank = life.number, .tag = life.rank->tag(), .error = {}};
    const int began = life.body->made();
    const auto recovered = recover(*life.rank, *life.group, faults_.bucket_bytes);
    resumed.exchanges = life.body->made() - began;
    if (recovered) {
      resumed.step = next = recovered->step;
      if (recovered->before) outcomes_[life.number].steps[next - 1] = *recovered->before;
    } else {
      resumed.error = recovered.error().message();
      resumed.fell_back = life.group->health() && !life.body->is_dead() && faults_.checkpoint;
    }
    {
      const std::lock_guard lock(mutex_);
      resumed_.push_back(resumed);
    }
    if (recovered) return false;
    if (!resumed.fell_back) return fail(recovered.error());
    adopt_state(*life.rank, *faults_.checkpoint);
    WSYNC_TRY(life.rank->update().share_tied_head());
    next = faults_.checkpoint->facts.step + 1;
    life.rank->begin_at(next);
    return false;
  }

  void notify(Life& life, const Tag& tag) {
    {
      const std::lock_guard lock(mutex_);
      tags_[life.number] = tag;
      const int made = life.body->made() - life.update_began;
      if (tag == Tag{2, Phase::kUpdate}) counts_[life.number].until_barrier = made;
      if (tag == Tag{3, Phase::kForward}) counts_[life.number].all = made;
      changed_.notify_all();
    }
    look_for_death(life, Death::At::kTag, tag);
  }

  void look_for_death(Life& life, Death::At at, const Tag& tag) {
    for (const Death& death : faults_.deaths) {
      if (death.at != at || death.rank != life.number || death.generation != life.generation)
        continue;
      if (at == Death::At::kTag && death.tag != tag) continue;
      if (at == Death::At::kUpdate && death.tag.step != tag.step) continue;
      if (death.together) meet();
      if (death.only_breaks) {
        life.body->abort({ErrorCode::kDeadline, "a rank was too late"});
        continue;
      }
      // Beside a lane that exchanges, it dies in its next exchange.
      if (at == Death::At::kTag && tag.phase != Phase::kBackward && death.exchanges == 0)
        life.body->die();
      else
        life.body->die_in(death.exchanges, last_words(death));
    }
  }

  void meet() {
    const auto others = std::count_if(faults_.deaths.begin(), faults_.deaths.end(),
                                      [](const Death& one) { return one.together; });
    std::unique_lock lock(mutex_);
    ++met_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return met_ == others; });
  }

  DyingGroup::Words last_words(const Death& death) {
    return [this, death](collective::ProcessGroup& inner, std::span<const collective::Send> sends) {
      std::vector<collective::Send> still;
      for (const collective::Send& send : sends)
        if (std::ranges::find(death.reaches, send.to) != death.reaches.end()) still.push_back(send);
      if (!still.empty()) (void)inner.exchange(still, {}, now() + options_.deadline);
      if (!death.until) return;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return std::ranges::all_of(death.reaches, [&](std::uint32_t rank) {
          return has_come_to(tags_[rank], *death.until);
        });
      });
    };
  }

  const TrainingOptions options_;
  const Faults faults_;
  const std::uint32_t size_;
  std::vector<Outcome> outcomes_;  // each by its rank's thread, until that has ended
  std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  std::uint32_t generation_ = 0;
  std::vector<std::unique_ptr<DyingGroup>> groups_;
  std::vector<std::unique_ptr<collective::RegroupableGroup>> life_groups_;  // of ranks that ended
  std::vector<std::uint32_t> lost_;
  std::size_t arrived_ = 0;
  std::uint32_t ended_ = 0;
  std::uint32_t died_ = 0;
  bool is_over_ = false;
  std::ptrdiff_t met_ = 0;
  std::vector<Resumed> resumed_;
  std::vector<Counts> counts_;
  std::vector<Tag> tags_;
  std::vector<std::jthread> threads_;  // end first
};

}  // namespace wsync::training
