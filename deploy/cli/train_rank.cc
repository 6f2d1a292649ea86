#include "deploy/cli/train_rank.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <numeric>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include "deploy/cli/train_publish.h"
#include "deploy/cli/train_rollouts.h"
#include "deploy/cli/train_setup.h"
#include "deploy/cli/train_trace.h"
#include "shared/base/format.h"
#include "shared/collective/collectives.h"
#include "shared/collective/gloo/gloo_group.h"
#include "shared/collective/memory/memory_group.h"
#include "trainer_side/training/reference_trainer.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

using training::StepResult;

static_assert(config::kTrainRanks <= collective::gloo::kGlooRankCount);

// While rank 0 writes a state the others wait for it, however slow its disk.
constexpr std::chrono::minutes kSaveDeadline{30};

// Any thread may get a signal, and the one that runs the steps asks.
std::atomic<int> stop_signals = 0;
static_assert(std::atomic<int>::is_always_lock_free, "what a signal handler may touch");

// The signals of this process, from now on.
void stop_after_step() {
  struct sigaction action{};
  action.sa_flags = SA_RESTART;  // no file is left half written for it
  action.sa_handler = [](int) {
    if (stop_signals.fetch_add(1) > 0) ::_exit(kExitInterrupted);
  };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

double since(TimePoint begin) { return seconds(now() - begin); }

json step_event(std::uint64_t step, const StepResult& result, double taken) {
  return {{"event", "step"},
          {"step", step},
          {"loss", result.loss},
          {"gradient_norm", result.gradient_norm},
          {"learning_rate", result.learning_rate},
          {"seconds", taken}};
}

json begin_event(const config::TrainConfig& config, const training::TrainingOptions& options,
                 const RunBegin& begin, bool sequential) {
  std::uint64_t parameters = 0;
  for (const moe::Parameter& parameter : moe::all_parameters(options.spec))
    parameters += parameter.elements();
  return {{"event", "begin"},
          {"ranks", sequential ? 1 : options.sizes.ranks()},
          {"sequential", sequential},
          {"pp", options.sizes.pp},
          {"vpp", options.sizes.vpp},
          {"ep", options.sizes.ep},
          {"dp", options.sizes.dp},
          {"parameters", parameters},
          {"text_bytes", begin.text ? begin.text->bytes() : 0},
          {"tokens_of_step", options.tokens_of_step()},
          {"first_step", begin.facts.step + 1},
          {"steps", config.steps}};
}

class RankRun {
 public:
  RankRun(const RankStart& start, collective::ProcessGroup& group)
      : config_(start.config), on_event_(start.on_event), group_(group) {}

  [[nodiscard]] Result<> run() {
    const auto options = training_options(config_);
    if (!options) return fail(options.error());
    auto rank = training::TrainingRank::create(*options, &group_);
    if (!rank) return fail(std::move(rank).error());
    rank_ = std::move(*rank);
    everyone_ = std::vector<std::uint32_t>(options->sizes.ranks());
    std::iota(everyone_.begin(), everyone_.end(), 0U);
    auto begin = begin_run(config_, *options);
    if (!begin) return fail(std::move(begin).error());
    WSYNC_TRY(set_weights(*begin));
    traces_.emplace(config_, *rank_);
    if (config_.publish && StepPublisher::publishes(*options, rank_->place())) {
      config::PublishConfig publish = *config_.publish;
      if (!config_.trace_file.empty()) publish.trainer.trace_file = config_.trace_file + "-rounds";
      auto publisher =
          StepPublisher::create(publish, *rank_, on_event_, [] { return stop_signals > 0; });
      if (!publisher) return fail(std::move(publisher).error());
      publisher_ = std::move(*publisher);
    }
    if (config_.rollout) {
      auto rollouts =
          StepRollouts::create(config_, *rank_, group_, on_event_, [] { return stop_signals > 0; });
      if (!rollouts) return fail(std::move(rollouts).error());
      rollouts_ = std::move(*rollouts);
    }
    tell(begin_event(config_, *options, *begin, false));
    WSYNC_TRY(train(*begin));
    if (publisher_) publisher_->end_all();
    WSYNC_TRY(wait_for_all());  // however long rank 0 has waited for the fleet
    WSYNC_TRY(traces_->write(&group_));
    // Together: a rank that leaves while another one still exchanges looks like one that was lost.
    return wait_for_all();
  }

 private:
  void tell(const json& event) {
    if (rank_->place().rank == 0) on_event_(event);
  }

  [[nodiscard]] Result<> wait_for_all() {
    return collective::barrier(collective::Team(&group_, everyone_), now() + kSaveDeadline);
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

  [[nodiscard]] Result<> train(RunBegin& begin) {
    const TimePoint started = now();
    bool stopped = false;
    saved_ = begin.facts.step;
    for (std::uint64_t step = begin.facts.step + 1; step <= config_.steps && !stopped; ++step) {
      double waited = 0;
      const auto batches = batches_of(begin, step);
      if (!batches) return fail(batches.error());
      stopped = !batches->has_value();
      if (stopped) break;
      const auto done = rank_->run_step(step, **batches, [&]() -> Result<> {
        const TimePoint from = now();
        if (publisher_) publisher_->wait_snapshotted();
        waited = since(from);
        return {};
      });
      if (!done) return fail(done.error());
      begin.facts.step = step;
      traces_->keep(step, *done);
      json event = step_event(step, done->result, seconds(done->end - done->begin));
      event["compute_seconds"] = seconds(done->computed - done->begin);
      event["update_seconds"] = seconds(done->end - done->computed) - waited;
      event["snapshot_wait_seconds"] = waited;
      tell(event);
      if (publisher_) {
        if (publishes_after(step)) publisher_->publish(step);
        publisher_->tell_ended();
      }
      const auto stop = any_rank(stop_signals > 0);
      if (!stop) return fail(stop.error());
      stopped = *stop && step < config_.steps;
      if (saves_after(config_, step) || (stopped && !config_.save.directory.empty()))
        WSYNC_TRY(save(begin.facts));
    }
    if (stopped) tell({{"event", "stopped"}, {"step", begin.facts.step}});
    // Asked to end while it waited for answers: a step that was taken has not been saved yet.
    if (stopped && rollouts_ && !config_.save.directory.empty() && saved_ != begin.facts.step)
      WSYNC_TRY(save(begin.facts));
    tell({{"event", "end"},
          {"seconds", since(started)},
          {"device_activations_most", rank_->pipeline().device_pool().most_used()}});
    return {};
  }

  // Those of engines need the weights that a step begins with: of the first such step they are
  // published here, of the others when the step before has ended.
  [[nodiscard]] Result<std::optional<std::vector<training::MicroBatch>>> batches_of(
      const RunBegin& begin, std::uint64_t step) {
    if (!rollouts_)
      return std::optional(micro_batches(config_, *begin.text, step, rank_->place().replica));
    if (rollouts_->generates(step) && !std::exchange(generates_, true) && publisher_) {
      publisher_->publish(step - 1);
      WSYNC_TRY(publisher_->wait_served(config_.rollout->patience));
    }
    return rollouts_->batches(step);
  }

  [[nodiscard]] bool publishes_after(std::uint64_t step) const {
    if (rollouts_ && !generates_) return false;
    return step % config_.publish->every == 0;
  }

  // Whether it is so on one rank: the same answer on all.
  [[nodiscard]] Result<bool> any_rank(bool here) {
    std::vector<std::uint8_t> flags(everyone_.size());
    flags[group_.rank()] = here ? 1 : 0;
    std::vector<std::span<std::byte>> parts;
    for (std::uint8_t& flag : flags) parts.push_back(std::as_writable_bytes(std::span(&flag, 1)));
    WSYNC_TRY(collective::all_gather(collective::Team(&group_, everyone_), parts,
                                     now() + rank_->options().deadline));
    return std::any_of(flags.begin(), flags.end(), [](std::uint8_t flag) { return flag != 0; });
  }

  [[nodiscard]] Result<> save(const training::RunFacts& facts) {
    auto state = training::gather_state(*rank_, facts, &group_);
    if (!state) return fail(std::move(state).error());
    const std::string path = training::state_directory(config_.save.directory, facts.step);
    // Rank 0 that cannot save breaks the group with its reason: it is what every rank fails with.
    if (*state) WSYNC_TRY(training::save_state(path, **state));
    WSYNC_TRY(collective::barrier(collective::Team(&group_, everyone_), now() + kSaveDeadline));
    tell({{"event", "saved"}, {"step", facts.step}, {"directory", path}});
    saved_ = facts.step;
    return {};
  }

  const config::TrainConfig& config_;
  const TrainEvents& on_event_;
  collective::ProcessGroup& group_;
  std::vector<std::uint32_t> everyone_;
  std::unique_ptr<training::TrainingRank> rank_;
  std::unique_ptr<StepPublisher> publisher_;  // reads the weights of rank_
  std::unique_ptr<StepRollouts> rollouts_;
  bool generates_ = false;   // a step has trained on what was generated, or is about to
  std::uint64_t saved_ = 0;  // the newest step whose state is
  std::optional<StepTraces> traces_;
};

Result<> run_in(const RankStart& start, collective::ProcessGroup& group) {
  RankRun run(start, group);
  Result<> done = run.run();
  if (!done) group.abort(done.error());
  return done;
}

}  // namespace

Result<> run_rank(const RankStart& start) {
  stop_after_step();
  if (start.segment >= 0) {
    auto group = collective::memory::attach(start.segment, start.rank);
    if (!group) return fail(std::move(group).error());
    const collective::memory::Heartbeat heartbeat(**group, start.config.heartbeat.interval);
    return run_in(start, **group);
  }
  const std::uint32_t ranks = start.config.parallel.pp * start.config.parallel.dp;
  auto group = collective::gloo::join({.rank = start.rank,
                                       .size = ranks,
                                       .directory = start.config.ranks.rendezvous,
                                       .run = "wsync",
                                       .address = start.config.ranks.address},
                                      now() + start.config.deadline);
  if (!group) return fail(std::move(group).error());
  return run_in(start, **group);
}

Result<> run_sequential(const config::TrainConfig& config, const TrainEvents& on_event) {
  stop_after_step();
  const auto options = training_options(config);
  if (!options) return fail(options.error());
  auto begin = begin_run(config, *options);
  if (!begin) return fail(std::move(begin).error());
  training::ReferenceTrainer trainer(options->spec, options->optimizer,
                                     initial_weights(config, *options, *begin));
  if (begin->state) {
    trainer.mean() = std::move(begin->state->mean);
    trainer.variance() = std::move(begin->state->variance);
  }
  on_event(begin_event(config, *options, *begin, true));
  const TimePoint started = now();
  bool stopped = false;
  for (std::uint64_t step = begin->facts.step + 1; step <= config.steps && !stopped; ++step) {
    const TimePoint from = now();
    std::vector<std::vector<training::MicroBatch>> replicas;
    for (std::uint32_t replica = 0; replica < options->sizes.dp; ++replica)
      replicas.push_back(micro_batches(config, *begin->text, step, replica));
    const auto done = trainer.run_step(step, replicas);
    if (!done) return fail(done.error());
    begin->facts.step = step;
    json event = step_event(step, *done, since(from));
    event["snapshot_wait_seconds"] = 0;
    on_event(event);
    stopped = stop_signals > 0 && step < config.steps;
    if (!saves_after(config, step) && (!stopped || config.save.directory.empty())) continue;
    const std::string path = training::state_directory(config.save.directory, step);
    WSYNC_TRY(training::save_state(path, {.spec = options->spec,
                                          .facts = begin->facts,
                                          .weights = trainer.weights(),
                                          .mean = trainer.mean(),
                                          .variance = trainer.variance()}));
    on_event({{"event", "saved"}, {"step", step}, {"directory", path}});
  }
  if (stopped) on_event({{"event", "stopped"}, {"step", begin->facts.step}});
  on_event({{"event", "end"}, {"seconds", since(started)}});
  return {};
}

}  // namespace wsync::cli
