#include "trainer_side/run/rollouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/observe/http/access_token.h"
#include "shared/process_group/collectives.h"
#include "trainer_side/training/run_state.h"

namespace wsync::cli {
namespace {

using training::MicroBatch;

// Interval at which a stop request is checked.
constexpr std::chrono::milliseconds kStopLook{200};
constexpr std::chrono::milliseconds kTellAnswersWait{5'000};
// Numbers of problems with given answers begin here, so that they differ from those of the pool.
constexpr std::uint64_t kFirstGiven = std::uint64_t{1} << 48U;

rollout::BatchShape shape_of(const config::TrainConfig& config) {
  return {.micro_batches = std::size_t{config.parallel.dp} * config.schedule.microbatches,
          .sequences = config.data.micro_batch,
          .sequence = config.data.sequence};
}

rollout::PoolOptions pool_options(const config::TrainConfig& config, const rollout::Task& task) {
  const config::RolloutConfig& c = *config.rollout;
  const rollout::BatchShape shape = shape_of(config);
  return {.replicas = c.engines,
          .groups = static_cast<std::uint32_t>(shape.micro_batches * shape.sequences / c.answers),
          .answers = c.answers,
          .max_tokens = static_cast<std::uint32_t>(task.answer_bytes() + 1),
          .temperature = c.temperature,
          .seed = c.seed,
          .max_staleness = c.max_staleness,
          .versions_count = config.publish && config.publish->every == 1,
          .requests = c.requests,
          .deadline = c.deadline};
}

}  // namespace

Result<rollout::Task> task_of(const config::TrainConfig& config) {
  auto task = rollout::Task::named(config.rollout->task, config.rollout->digits);
  if (!task) return task;
  // The last byte of an answer is only a target, not an input.
  const std::size_t needed = task->prompt_bytes() + task->answer_bytes();
  if (needed > config.data.sequence)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("data.sequence: a problem of the task '{}' of {} digits and its answer "
                    "are {} bytes, expected at least as many, found {}",
                    config.rollout->task, config.rollout->digits, needed, config.data.sequence));
  return task;
}

StepRollouts::StepRollouts(const config::TrainConfig& config, training::TrainingRank& rank,
                           collective::ProcessGroup& group, TrainEvents on_event,
                           std::function<bool()> is_stopping, rollout::Task task)
    : rollout_(*config.rollout),
      loss_({.clip_low = static_cast<float>(rollout_.clip_low),
             .clip_high = static_cast<float>(rollout_.clip_high),
             .kl = static_cast<float>(rollout_.kl)}),
      shape_(shape_of(config)),
      rank_(rank),
      group_(group),
      on_event_(std::move(on_event)),
      is_stopping_(std::move(is_stopping)),
      task_(std::move(task)),
      published_(rank.options().spec, std::size_t{rollout_.max_staleness} + 1, shape_.sequence) {}

Result<std::unique_ptr<StepRollouts>> StepRollouts::create(const config::TrainConfig& config,
                                                           training::TrainingRank& rank,
                                                           collective::ProcessGroup& group,
                                                           TrainEvents on_event,
                                                           std::function<bool()> is_stopping) {
  const auto task = WSYNC_TRY(task_of(config));
  std::unique_ptr<StepRollouts> rollouts(
      new StepRollouts(config, rank, group, std::move(on_event), std::move(is_stopping), task));
  if (rank.place().rank == 0) {
    rollout::PoolOptions options = pool_options(config, task);
    if (!config.rollout->token.empty()) {
      const auto token = http::AccessToken::read(config.rollout->token);
      if (!token) return fail(token.error().with_context("rollout.token"));
      options.authorization = token->authorization();
    }
    rollouts->pool_ = WSYNC_TRY(rollout::RolloutPool::create(std::move(options), task));
  }
  return rollouts;
}

Result<std::optional<std::vector<MicroBatch>>> StepRollouts::batches(std::uint64_t step,
                                                                     std::uint32_t min_epoch) {
  if (!generates(step)) {
    auto given = WSYNC_TRY(right_answers(step));
    return own(std::move(given));
  }
  // Only rank 0 knows whether the batch is kept, and all ranks must take the same path.
  bool is_there = newest_ && newest_->step == step;
  const auto told = WSYNC_TRY(share({std::byte{is_there}}));
  if (told.front() == std::byte{0}) {
    auto weights = WSYNC_TRY(training::gather_weights(rank_, &group_));
    if (weights) {
      const auto made = WSYNC_TRY(generate(step, min_epoch, std::move(*weights)));
      is_there = made;
    }
  }
  const auto shared = WSYNC_TRY(share(is_there ? newest_->batches : Bytes()));
  if (shared.empty()) return std::optional<std::vector<MicroBatch>>();
  auto all = WSYNC_TRY(rollout::decode_batches(shared, shape_));
  return own(std::move(all));
}

std::vector<MicroBatch> StepRollouts::own(std::vector<MicroBatch> all) const {
  const std::size_t count = rank_.options().schedule.shape.microbatches;
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(rank_.place().replica * count);
  return {std::make_move_iterator(first),
          std::make_move_iterator(first + static_cast<std::ptrdiff_t>(count))};
}

Result<std::vector<MicroBatch>> StepRollouts::right_answers(std::uint64_t step) const {
  std::vector<rollout::Problem> problems;
  const std::uint64_t count = shape_.micro_batches * shape_.sequences;
  for (std::uint64_t i = 0; i < count; ++i)
    problems.push_back(task_.problem(rollout_.seed, kFirstGiven + step * count + i));
  return rollout::supervised_batches(problems, shape_);
}

// ---- rank 0 ----

Result<std::optional<rollout::RolloutBatch>> StepRollouts::collect(std::uint64_t step,
                                                                   std::uint32_t min_epoch) {
  if (next_ != Asked{step, min_epoch}) pool_->begin(step, min_epoch);
  next_ = {step, min_epoch};
  const TimePoint from = now();
  bool told = false;
  while (!is_stopping_()) {
    auto batch = pool_->collect(step, kStopLook);
    if (batch) {
      next_ = {step + 1, min_epoch};
      return std::optional(std::move(*batch));
    }
    if (batch.error().code() != ErrorCode::kDeadline || now() - from > rollout_.wait_limit)
      return fail(batch.error().with_context(fmt::format("step {}: rollouts", step)));
    WSYNC_TRY(group_.health());
    if (!told && now() - from > kTellAnswersWait) {
      told = true;
      log_warning("step {} waits for answers: {}", step, batch.error().message());
    }
  }
  return std::optional<rollout::RolloutBatch>();
}

Result<bool> StepRollouts::generate(std::uint64_t step, std::uint32_t min_epoch,
                                    training::ParameterSet weights) {
  const bool is_first = step == rollout_.warm_start_steps + 1;
  if (loss_.kl != 0 && (is_first || !reference_)) {
    if (!is_first)
      log_warning(
          "rollout.kl: the weights that this run began to generate with (step {}) no longer exist; "
          "from step {} on, the divergence is measured from the weights of step {}",
          rollout_.warm_start_steps, step, step - 1);
    reference_ = weights;
  }
  const TimePoint from = now();
  const auto batch = WSYNC_TRY(this->collect(step, min_epoch));
  if (!batch) return false;
  const double waited = seconds(now() - from);
  auto batches = WSYNC_TRY(rollout::policy_batches(batch->groups, shape_, loss_));
  if (reference_) rollout::refer_to(rank_.options().spec, *reference_, shape_.sequence, batches);
  newest_ = Newest{.step = step, .batches = rollout::encode_batches(batches)};
  published_.keep(step - 1, std::move(weights));
  notify(step, *batch, published_.compare(batch->groups, batches), waited);
  return true;
}

void StepRollouts::notify(std::uint64_t step, const rollout::RolloutBatch& batch,
                          const rollout::Agreement& agreement, double waited) const {
  double reward = 0;
  double age_sum = 0;
  std::uint64_t age_max = 0;
  std::size_t answers = 0;
  std::size_t useful = 0;  // groups with an advantage
  for (const rollout::Group& group : batch.groups) {
    const std::uint64_t age = step - 1 - std::min(step - 1, rollout::oldest_step(group));
    age_sum += static_cast<double>(age);
    age_max = std::max(age_max, age);
    for (const rollout::Rollout& rollout : group.rollouts) reward += rollout.reward;
    answers += group.rollouts.size();
    useful += static_cast<std::size_t>(
        std::any_of(group.rollouts.begin(), group.rollouts.end(),
                    [](const rollout::Rollout& rollout) { return rollout.advantage != 0; }));
  }
  on_event_({{"event", "rollouts"},
             {"step", step},
             {"reward", reward / static_cast<double>(answers)},
             {"answers", answers},
             {"groups", batch.groups.size()},
             {"groups_with_advantage", useful},
             {"staleness_mean", age_sum / static_cast<double>(batch.groups.size())},
             {"staleness_most", age_max},
             {"dropped_groups", batch.stats.dropped_stale},
             {"failed_questions", batch.stats.failed},
             {"last_failure", batch.stats.last_failure},
             {"waited_seconds", waited},
             {"tokens", agreement.all_tokens},
             {"mismatch_tokens", agreement.tokens},
             {"mismatch_most", agreement.mismatch_max},
             {"mismatch_mean", agreement.mismatch_mean},
             {"drift_most", agreement.drift_max},
             {"drift_mean", agreement.drift_mean}});
}

Result<Bytes> StepRollouts::share(Bytes bytes) const {
  std::vector<std::uint32_t> everyone(rank_.options().sizes.ranks());
  std::iota(everyone.begin(), everyone.end(), 0U);
  const collective::Team team(&group_, everyone);
  // Rank 0 may have waited for the engines before it arrives here.
  const auto deadline = now() + rollout_.wait_limit + rank_.options().deadline;
  std::uint64_t size = bytes.size();
  const auto gather = [&](std::span<std::byte> of_first) {
    std::vector<std::span<std::byte>> parts(everyone.size());
    parts.front() = of_first;
    return collective::all_gather(team, parts, deadline);
  };
  WSYNC_TRY(gather(std::as_writable_bytes(std::span(&size, 1))));
  bytes.resize(size);
  if (size > 0) WSYNC_TRY(gather(bytes));
  return bytes;
}

}  // namespace wsync::cli
