#include "trainer_side/run/rank_run.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/outcome.h"
#include "trainer_side/run/membership.h"
#include "trainer_side/run/progress.h"
#include "trainer_side/run/publish_steps.h"
#include "trainer_side/run/rollouts.h"
#include "trainer_side/run/setup.h"
#include "trainer_side/run/together.h"
#include "trainer_side/run/trace.h"
#include "trainer_side/training/recovery_run.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

// The class has more than 25 methods: each stage of a run, and each thing that a step publishes or
// saves, has its own method.
class RankRun {
 public:
  RankRun(const RankStart& start, Membership& membership)
      : config_(start.config),
        start_(start),
        on_event_(start.on_event),
        membership_(membership),
        group_(membership.group()) {}

  [[nodiscard]] Result<> run() {
    WSYNC_TRY(prepare());
    Stage stage = membership_.is_first() ? Stage::kBegin : Stage::kRecover;
    while (stage != Stage::kOver) {
      auto next = resume(stage);
      if (!next) {
        // The group was broken by a rank. If ranks are replaced, wait for the new group.
        if (!membership_.is_renewed() || group_.health()) return fail(std::move(next).error());
        if (publisher_) publisher_->wait_snapshotted();
        const auto goes_on = WSYNC_TRY(membership_.rejoin(next.error()));
        next = goes_on ? Stage::kRecover : Stage::kOver;
      }
      stage = *next;
    }
    return {};
  }

 private:
  enum class Stage : std::uint8_t {
    kBegin,    // no rank has weights
    kRecover,  // in a new group
    kStep,
    kEnd,  // no steps are left
    kOver,
  };

  [[nodiscard]] bool replaces() const { return start_.generation > 0; }

  [[nodiscard]] Result<> prepare() {
    const auto options = WSYNC_TRY(training_options(config_));
    // If ranks can be lost at any time, the first exchange must be a stage too, because only a
    // failed stage leads to a new group. kReplacement skips the exchange here; begin() does it.
    rank_ = WSYNC_TRY(training::TrainingRank::create(
        options, &group_,
        membership_.is_renewed() ? training::TrainingRank::Start::kReplacement
                                 : training::TrainingRank::Start::kTogether));
    rank_->on_phase([this](const training::Tag& tag) { come_to(tag); });
    auto begin =
        WSYNC_TRY(begin_run(config_, options, replaces() ? Outputs::kOfThisRun : Outputs::kNew));
    facts_ = begin.facts;
    first_ = facts_.step + 1;
    saved_ = facts_.step;
    traces_.emplace(config_, *rank_);
    if (config_.publish && StepPublisher::publishes(options, rank_->place())) {
      config::PublishConfig publish = *config_.publish;
      if (!config_.trace_file.empty()) publish.trainer.trace_file = config_.trace_file + "-rounds";
      publisher_ = WSYNC_TRY(
          StepPublisher::create(publish, *rank_, on_event_, asked_to_stop, start_.generation));
    }
    if (config_.rollout) {
      rollouts_ =
          WSYNC_TRY(StepRollouts::create(config_, *rank_, group_, on_event_, asked_to_stop));
    }
    json event = begin_event(config_, options, begin, false);
    event["second_holder_bytes"] = second_holder_bytes();
    notify(event);
    text_ = std::move(begin.text);
    if (membership_.is_first()) begin_ = std::move(begin);
    return {};
  }

  [[nodiscard]] Result<Stage> resume(Stage stage) {
    switch (stage) {
      case Stage::kBegin:
        return begin();
      case Stage::kRecover:
        return recover();
      case Stage::kStep:
        return step(facts_.step + 1);
      case Stage::kEnd:
        return end();
      case Stage::kOver:
        break;
    }
    return Stage::kOver;
  }

  void notify(const json& event) {
    if (rank_->place().rank == 0) on_event_(event);
  }

  // Memory that recovery costs this rank: gradient, mean and variance of the shards that it holds
  // as second holder.
  [[nodiscard]] std::uint64_t second_holder_bytes() {
    std::uint64_t bytes = 0;
    for (const training::Shard& shard : rank_->update().shards())
      if (shard.second) bytes += 3 * sizeof(float) * shard.second->gradient.size();
    return bytes;
  }

  void notify_step(const json& event) {
    notify(event);
    told_ = event.at("step");
  }

  // ---- stages ----

  [[nodiscard]] Result<Stage> begin() {
    if (membership_.is_renewed()) WSYNC_TRY(rank_->compare_options());
    (void)WSYNC_TRY(share({}));
    WSYNC_TRY(set_weights(*begin_));
    begin_.reset();
    rank_->begin_at(first_);
    return next_stage();
  }

  [[nodiscard]] Stage next_stage() const {
    return stopped_ || facts_.step >= config_.steps ? Stage::kEnd : Stage::kStep;
  }

  [[nodiscard]] Result<Stage> step(std::uint64_t step) {
    began_ = now();
    double waited = 0;
    const auto batches = WSYNC_TRY(batches_of(step));
    if (!batches.has_value()) {
      stopped_ = true;
      return Stage::kEnd;
    }
    const auto done = WSYNC_TRY(rank_->run_step(step, *batches, [&]() -> Result<> {
      const TimePoint from = now();
      if (publisher_) publisher_->wait_snapshotted();
      waited = since(from);
      return {};
    }));
    facts_.step = step;
    traces_->keep(step, done);
    json event = step_event(step, done.result, seconds(done.end - done.begin));
    event["compute_seconds"] = seconds(done.computed - done.begin);
    event["update_seconds"] = seconds(done.end - done.computed) - waited;
    event["snapshot_wait_seconds"] = waited;
    notify_step(event);
    const auto flags = WSYNC_TRY(share({}));
    take_stop(flags);
    if (publisher_) {
      if (publishes_after(step)) publish(step);
      publisher_->notify_ended();
    }
    if (saves_after(config_, step)) WSYNC_TRY(save());
    return next_stage();
  }

  [[nodiscard]] Result<Stage> end() {
    fail_point("end");
    if (stopped_ && !config_.save.directory.empty() && saved_ != facts_.step) WSYNC_TRY(save());
    if (publisher_) publisher_->end_all();
    // Long deadline: rank 0 may have waited for the fleet.
    WSYNC_TRY(wait_for_all(group_, kSaveDeadline));
    WSYNC_TRY(traces_->write(&group_));
    if (!std::exchange(told_end_, true)) {
      if (stopped_) notify({{"event", "stopped"}, {"step", facts_.step}});
      notify({{"event", "end"},
              {"device_activations_most", rank_->pipeline().device_pool().max_used()}});
    }
    fail_point("last_barrier");
    // All ranks leave together. A rank that leaves during an exchange of others would look lost.
    WSYNC_TRY(wait_for_all(group_, kSaveDeadline));
    return Stage::kOver;
  }

  // ---- recovery ----

  [[nodiscard]] Result<Stage> recover() {
    const TimePoint from = now();
    const training::Tag before = rank_->tag();
    const auto recovered = training::recover(*rank_, group_);
    if (!recovered) {
      // All ranks get the same error then, so all of them fall back.
      const bool is_lost =
          recovered.error().code() == ErrorCode::kNotFound && group_.health().has_value();
      return is_lost ? fall_back(before, recovered.error(), from) : fail(recovered.error());
    }
    facts_.step = recovered->step - 1;
    if (recovered->before && told_ < facts_.step) {
      const double taken = since(began_);
      json event = step_event(facts_.step, *recovered->before, taken);
      event["compute_seconds"] = event["snapshot_wait_seconds"] = 0;
      event["update_seconds"] = taken;
      notify_step(event);
    }
    return take_up({{"event", "recovered"},
                    {"step", recovered->step},
                    {"replaced", recovered->replaced},
                    {"from", "peers"},
                    {"seconds", since(from)}},
                   recovered->bytes);
  }

  // No rank has the lost data: all ranks resume from the newest saved state, or from the beginning.
  [[nodiscard]] Result<Stage> fall_back(const training::Tag& before, const Error& lost,
                                        TimePoint from) {
    const bool has_begun = told_ >= first_ || facts_.step >= first_ || before.step > first_;
    const auto shared = WSYNC_TRY(share({.is_new = is_new_,
                                         .has_begun = has_begun,
                                         .saved = newest_saved(config_, first_),
                                         .published = published_}));
    // Steps that engines may have are not published again.
    for (const Flags& one : shared) publishes_above_ = std::max(publishes_above_, one.published);
    auto state = WSYNC_TRY(newest_state(shared.front().saved));
    const std::uint64_t step = state ? state->facts.step : 0;
    std::vector<std::uint32_t> replaced;
    for (std::uint32_t rank = 0; rank < shared.size(); ++rank)
      if (shared[rank].is_new != 0) replaced.push_back(rank);
    if (step == 0 && config_.resume.empty() && any(shared, &Flags::has_begun))
      return fail(
          ErrorCode::kPeerLost,
          fmt::format("{}, and the run has no saved state to continue from{}", lost.message(),
                      config_.save.directory.empty() ? "; set save.directory and save.every"
                                                     : "; it saves one every save.every steps"));
    RunBegin found{.text = {}, .facts = facts_, .weights = {}, .state = {}};
    if (step > 0) {
      found.facts = state->facts;
      found.state = std::move(*state);
    } else {
      found = WSYNC_TRY(begin_run(config_, rank_->options(), Outputs::kOfThisRun));
    }
    if (rank_->place().rank == 0)
      log_warning("continues from {}: {}",
                  step > 0 ? training::state_directory(config_.save.directory, step)
                           : std::string("where the run began"),
                  lost.message());
    WSYNC_TRY(set_weights(found));
    facts_.step = found.facts.step;
    saved_ = facts_.step;
    rank_->begin_at(facts_.step + 1);
    return take_up({{"event", "recovered"},
                    {"step", facts_.step + 1},
                    {"replaced", replaced},
                    {"from", step > 0 ? "checkpoint" : "start"},
                    {"seconds", since(from)}},
                   0);
  }

  // Returns the newest state of the run that all ranks can read. `step` is the newest one on disk,
  // or 0. A state that cannot be read is renamed, so that its step can be saved again.
  [[nodiscard]] Result<std::optional<training::RunState>> newest_state(std::uint64_t step) {
    while (step > 0) {
      const std::string path = training::state_directory(config_.save.directory, step);
      auto state = training::load_state(path);
      const bool is_damaged = !state && (state.error().code() == ErrorCode::kInvalidInput ||
                                         state.error().code() == ErrorCode::kNotFound ||
                                         state.error().code() == ErrorCode::kDigestMismatch);
      if (!state && !is_damaged) return fail(std::move(state).error());
      const auto read = WSYNC_TRY(share({.save_failed = is_damaged}, kSaveDeadline));
      if (!any(read, &Flags::save_failed)) return std::optional(std::move(*state));
      if (rank_->place().rank == 0)
        put_aside(path, state ? "another rank" : state.error().message());
      const auto next = WSYNC_TRY(share({.saved = newest_saved(config_, first_)}));
      if (next.front().saved >= step)
        return fail(
            ErrorCode::kPeerLost,
            fmt::format("{} can neither be read nor moved aside; remove it and resume", path));
      step = next.front().saved;
    }
    return std::optional<training::RunState>();
  }

  // Completes what follows a step (publish, save, events): only some ranks may have done it, or a
  // rank 0 that was lost.
  [[nodiscard]] Result<Stage> take_up(json recovered, std::uint64_t bytes) {
    traces_->clear();
    const std::uint64_t step = facts_.step;
    const bool leads = rank_->place().rank == 0;
    if (leads && is_new_) remove_unfinished(config_);
    const std::uint64_t saved = newest_saved(config_, first_);
    generates_ = rollouts_ && rollouts_->generates(step + 1);
    const bool publishes =
        config_.publish && (generates_ || (step >= first_ && publishes_after(step)));
    const bool saves = step >= first_ && saves_after(config_, step);
    const auto flags = WSYNC_TRY(
        share({.publish_again = static_cast<std::uint8_t>(leads && publishes && publisher_ &&
                                                          publisher_->must_publish_again(step)),
               .save_again = leads && saves && saved < step,
               .saved = saved,
               .published = publishes_above_,
               .given = bytes}));
    take_stop(flags);
    for (const Flags& one : flags) publishes_above_ = std::max(publishes_above_, one.published);
    saved_ = std::max(first_ - 1, flags.front().saved);
    if (leads && saved >= first_ && saved == step) notify_saved();
    std::uint64_t given = 0;
    for (const Flags& one : flags) given += one.given;
    recovered["bytes"] = given;
    notify(recovered);
    is_new_ = false;
    begin_.reset();
    if (flags.front().save_again != 0) WSYNC_TRY(save());
    if (flags.front().publish_again != 0 && publisher_) {
      publish(step);
      if (generates_) WSYNC_TRY(publisher_->wait_served(config_.rollout->wait_limit));
    }
    return next_stage();
  }

  // Makes the tag visible to other processes. Tests can kill the rank here.
  void come_to(const training::Tag& tag) {
    const training::Tag last = std::exchange(tag_, tag);
    membership_.notify(training::word_of(tag));
    if (tag.phase == training::Phase::kBackward) fail_point("backward");
    if (tag.phase == training::Phase::kUpdate) {
      // Wait until another rank has passed the barrier too, so that recovery must complete this
      // step.
      if (group_.size() > 1 &&
          (fail_point_is_next("after_barrier") || fail_point_is_next("optimizer")))
        while (group_.health() && !another_has_passed(tag)) std::this_thread::yield();
      fail_point("after_barrier");
    }
    if (tag.phase == training::Phase::kForward && last.phase == training::Phase::kUpdate)
      fail_point("after_commit");
  }
  [[nodiscard]] bool another_has_passed(const training::Tag& tag) const {
    for (std::uint32_t rank = 0; rank < group_.size(); ++rank)
      if (rank != group_.rank() && membership_.told(rank) >= training::word_of(tag)) return true;
    return false;
  }

  // ---- exchanges with all ranks ----

  // Returns the values of every rank, on all ranks.
  [[nodiscard]] Result<std::vector<Flags>> share(
      Flags own, std::chrono::milliseconds deadline = std::chrono::milliseconds(0)) {
    own.stop = asked_to_stop() || stopped_ ? 1 : 0;
    own.text = facts_.text;
    return share_flags(group_, own, std::max(deadline, rank_->options().deadline));
  }
  // If one rank was asked to stop, all ranks stop.
  void take_stop(const std::vector<Flags>& flags) {
    if (any(flags, &Flags::stop) && facts_.step < config_.steps) stopped_ = true;
  }

  [[nodiscard]] Result<> set_weights(const RunBegin& begin) {
    if (begin.state) {
      training::adopt_state(*rank_, *begin.state);
    } else if (begin.weights) {
      training::adopt_weights(*rank_, *begin.weights);
    } else {
      training::initialise(rank_->weights().dense, config_.model.seed);
      training::initialise(rank_->weights().experts, config_.model.seed);
    }
    return rank_->update().share_tied_head();
  }

  // Engines need the weights that a step begins with. For the first generated step they are
  // published here; for later steps they were published at the end of the previous step.
  [[nodiscard]] Result<std::optional<std::vector<training::MicroBatch>>> batches_of(
      std::uint64_t step) {
    if (!rollouts_)
      return std::optional(micro_batches(config_, *text_, step, rank_->place().replica));
    if (rollouts_->generates(step) && !std::exchange(generates_, true) && publisher_ &&
        (step == 1 || step - 1 > publishes_above_)) {
      publish(step - 1);
      WSYNC_TRY(publisher_->wait_served(config_.rollout->wait_limit));
    }
    return rollouts_->batches(step, publisher_ ? publisher_->epoch() : 0);
  }

  [[nodiscard]] bool publishes_after(std::uint64_t step) const {
    if ((rollouts_ && !generates_) || step <= publishes_above_) return false;
    return step % config_.publish->every == 0;
  }
  void publish(std::uint64_t step) {
    publisher_->publish(step);
    published_ = step;
  }

  // The last save of a run must succeed. If another save fails, the run continues.
  [[nodiscard]] Result<> save() {
    const bool is_last = stopped_ || facts_.step == config_.steps;
    auto state = WSYNC_TRY(training::gather_state(*rank_, facts_, &group_));
    const std::string path = training::state_directory(config_.save.directory, facts_.step);
    const Result<> done = state ? training::save_state(path, *state) : Result<>();
    // If rank 0 fails, its reason breaks the group, and every rank fails with this reason.
    if (!done && is_last) return done;
    const auto flags = WSYNC_TRY(share({.save_failed = !done}, kSaveDeadline));
    if (flags.front().save_failed != 0) {
      if (!done)
        notify(
            {{"event", "save_failed"}, {"step", facts_.step}, {"reason", done.error().message()}});
      return {};
    }
    notify_saved();
    saved_ = facts_.step;
    return {};
  }
  void notify_saved() {
    notify({{"event", "saved"},
            {"step", facts_.step},
            {"directory", training::state_directory(config_.save.directory, facts_.step)}});
  }

  const config::TrainConfig& config_;
  const RankStart& start_;
  const TrainEvents& on_event_;
  Membership& membership_;
  collective::ProcessGroup& group_;
  std::optional<RunBegin> begin_;  // until the weights are set
  std::optional<training::Corpus> text_;
  training::RunFacts facts_;  // facts_.step is the last completed step
  std::uint64_t first_ = 1;   // first step of this run
  std::unique_ptr<training::TrainingRank> rank_;
  training::Tag tag_;
  std::unique_ptr<StepPublisher> publisher_;  // reads the weights of rank_
  std::unique_ptr<StepRollouts> rollouts_;
  bool generates_ = false;            // a step has trained on generated data, or is about to
  std::uint64_t saved_ = 0;           // newest step whose state was saved
  std::uint64_t told_ = start_.told;  // newest step whose end rank 0 has reported
  bool is_new_ = replaces();          // a replacement that has not received anything yet
  TimePoint began_ = now();           // start of the current step or of this process
  std::uint64_t published_ = 0;       // newest step that this rank has begun to publish
  // Steps up to this one are not published again: engines have them.
  std::uint64_t publishes_above_ = 0;
  bool stopped_ = false;
  bool told_end_ = false;
  std::optional<StepTraces> traces_;
};

}  // namespace

Result<> run_rank(const RankStart& start) {
  stop_after_step();
  const auto point = WSYNC_TRY(fail_point_of(start.config.parallel.pp * start.config.parallel.dp));
  if (point && point->rank == start.rank && start.generation == 0)
    arm_fail_point(point->name, point->hits);
  auto membership = WSYNC_TRY(Membership::join(start));
  RankRun run(start, *membership);
  Result<> done = run.run();
  if (!done) membership->group().abort(done.error());
  return done;
}

}  // namespace wsync::cli
