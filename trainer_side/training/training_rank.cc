#include "trainer_side/training/training_rank.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/moe/arithmetic.h"

namespace wsync::training {
namespace {

// What ranks must have in common to compute the same bits.
struct Identity {
  std::array<char, 96> arithmetic{};
  Digest options;
};

std::string text_of(const TrainingOptions& options) {
  const ParallelSizes& sizes = options.sizes;
  const schedule::ScheduleOptions& order = options.schedule;
  const OptimizerOptions& optimizer = options.optimizer;
  return fmt::format(
      "{}\n{} {} {} {}\n{} {} {} {} {} {} {}\n{} {} {} {} {} {} {} {} {}\n{} {} {}\n{}",
      moe::write_config(options.spec), sizes.pp, sizes.vpp, sizes.ep, sizes.dp,
      schedule::order_name(order.order), order.shape.microbatches, order.group.value_or(0),
      order.overlap, order.extra_warmup.value_or(2), order.delay_wgrad, options.offload,
      optimizer.learning_rate, optimizer.final_learning_rate, optimizer.warmup_steps,
      optimizer.total_steps, optimizer.beta1, optimizer.beta2, optimizer.epsilon,
      optimizer.weight_decay, optimizer.clip_norm, options.sequences, options.sequence,
      options.second_holders, options.run);
}

Result<> check_identity(const TrainingOptions& options, std::uint32_t rank,
                        collective::ProcessGroup* group) {
  std::vector<Identity> identities(options.sizes.ranks());
  const std::string arithmetic = moe::arithmetic();
  const std::string text = text_of(options);
  std::strncpy(identities[rank].arithmetic.data(), arithmetic.c_str(),
               identities[rank].arithmetic.size() - 1);
  identities[rank].options = digest_of(std::as_bytes(std::span(text)));
  std::vector<std::uint32_t> everyone;
  std::vector<std::span<std::byte>> parts;
  for (std::uint32_t other = 0; other < identities.size(); ++other) {
    everyone.push_back(other);
    parts.push_back(std::as_writable_bytes(std::span(&identities[other], 1)));
  }
  WSYNC_TRY(collective::all_gather(collective::Team(group, std::move(everyone)), parts,
                                   now() + options.deadline));
  for (std::uint32_t other = 0; other < identities.size(); ++other) {
    if (identities[other].arithmetic != identities[0].arithmetic)
      return fail(
          ErrorCode::kRefused,
          fmt::format("rank {} computes with {}, rank 0 with {}; their exp, log, sin, cos and pow "
                      "would not agree bit by bit. Start all ranks with one C library, on "
                      "processors of which all or none have fused multiply-add (glibc takes this "
                      "one from a process with GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2)",
                      other, identities[other].arithmetic.data(), identities[0].arithmetic.data()));
    if (identities[other].options != identities[0].options)
      return fail(ErrorCode::kRefused,
                  fmt::format("rank {} and rank 0 were given different configurations; start all "
                              "ranks with one",
                              other));
  }
  return {};
}

}  // namespace

std::uint64_t TrainingOptions::tokens_of_step() const noexcept {
  return std::uint64_t{sequences} * sequence * schedule.shape.microbatches * sizes.dp;
}

Result<> check_training(const TrainingOptions& options) {
  const auto planned = plan_training(options);
  return planned ? Result<>() : fail(planned.error());
}

Result<schedule::Program> plan_training(const TrainingOptions& options) {
  WSYNC_TRY(moe::check_spec(options.spec));
  WSYNC_TRY(check_parallel(options.sizes, options.spec));
  WSYNC_TRY(check_optimizer(options.optimizer));
  if (options.schedule.overlap && options.sizes.ep == 1)
    return fail(ErrorCode::kInvalidInput,
                "schedule: overlap with ep 1: what is overlapped is the expert-parallel "
                "communication, and without expert parallelism there is none; set parallel.ep to "
                "2 or more, or overlap to false");
  if (options.sequence == 0 || options.sequences == 0)
    return fail(ErrorCode::kInvalidInput,
                "data: a micro-batch has at least one sequence of at least one token");
  if (options.sequence > options.spec.max_positions)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("data: sequences of {} tokens; the model has {} positions",
                            options.sequence, options.spec.max_positions));
  const schedule::Shape& shape = options.schedule.shape;
  if (shape.pp != options.sizes.pp || shape.vpp != options.sizes.vpp)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("schedule: planned for pp {} and vpp {}, the ranks are cut into pp {} "
                            "and vpp {}; give both the same sizes",
                            shape.pp, shape.vpp, options.sizes.pp, options.sizes.vpp));
  const auto planned = WSYNC_TRY(schedule::make_schedule(options.schedule));
  return schedule::lower(planned, {.expert_parallel = options.sizes.ep > 1,
                                   .offload = options.offload,
                                   .layers = layers_of_stage(options.sizes, options.spec),
                                   .head = true});
}

TrainingRank::TrainingRank(const TrainingOptions& options, const Place& place,
                           std::shared_ptr<const schedule::Program> program,
                           collective::ProcessGroup* group)
    : options_(options),
      place_(place),
      program_(std::move(program)),
      group_(group),
      weights_(options.spec, options.sizes, place),
      gradients_(options.spec, options.sizes, place) {
  const schedule::RankProgram& lowered = program_->ranks[place.pipeline];
  // A rank that offloads has four activations on the device: that of the running forward, of the
  // previous forward (being offloaded), of the running backward, and of the next backward (being
  // loaded) (Kimi K2 report, section 2.4.2).
  constexpr std::size_t kDeviceActivations = 4;
  pipeline_ = std::make_unique<Pipeline>(
      PipelineOptions{
          .spec = options.spec,
          .sizes = options.sizes,
          .place = place,
          .program = program_,
          .tokens = options.sequences * options.sequence,
          .sequence = options.sequence,
          .device_slots = options.offload ? kDeviceActivations : max_activations(lowered),
          .host_slots = max_offloaded(lowered),
          .group = group,
          .deadline = options.deadline},
      weights_);
  update_ = std::make_unique<Update>(
      UpdateOptions{.spec = options.spec,
                    .sizes = options.sizes,
                    .place = place,
                    .optimizer = options.optimizer,
                    .group = group,
                    .deadline = options.deadline,
                    .second_holders = options.second_holders,
                    .on_barrier = [this](std::uint64_t step) { set_tag({step, Phase::kUpdate}); }},
      weights_);
}

Result<std::unique_ptr<TrainingRank>> TrainingRank::create(const TrainingOptions& options,
                                                           collective::ProcessGroup* group,
                                                           Start start) {
  auto program = WSYNC_TRY(plan_training(options));
  const std::uint32_t rank = group == nullptr ? 0 : group->rank();
  const std::uint32_t ranks = group == nullptr ? 1 : group->size();
  if (ranks != options.sizes.ranks())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} ranks have been started; pp {} times dp {} is {}", ranks,
                            options.sizes.pp, options.sizes.dp, options.sizes.ranks()));
  if (start == Start::kTogether) WSYNC_TRY(check_identity(options, rank, group));
  try {
    return std::unique_ptr<TrainingRank>(
        new TrainingRank(options, place_of(options.sizes, rank),
                         std::make_shared<const schedule::Program>(std::move(program)), group));
  } catch (const std::exception& error) {  // of the standard library: no memory, or too long
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("rank {}: no memory for its weights, gradients and activations ({}); "
                            "take a smaller model or micro-batch, more ranks, or offload",
                            rank, error.what()));
  }
}

Result<> TrainingRank::compare_options() { return check_identity(options_, place_.rank, group_); }

void TrainingRank::set_tag(const Tag& tag) {
  if (tag == tag_) return;
  tag_ = tag;
  if (on_phase_) on_phase_(tag_);
}

void TrainingRank::begin_at(std::uint64_t step, const std::optional<StepResult>& before) {
  update_->set_taken(step - 1, before);
  set_tag({step, Phase::kForward});
}

void TrainingRank::set_empty() {
  if (!planted("empty_rank_keeps_state")) update_->clear_state();
  update_->set_taken(0, {});
  set_tag({});
}

Result<TrainingRank::Step> TrainingRank::run_step(std::uint64_t step,
                                                  const std::vector<MicroBatch>& batches,
                                                  const std::function<Result<>()>& before_update) {
  Step measured{.result = {}, .begin = now(), .operations = {}, .computed = {}, .end = {}};
  set_tag({step, Phase::kForward});
  gradients_.clear();
  const std::uint64_t tokens = options_.tokens_of_step();
  auto run = WSYNC_TRY(pipeline_->run_step(batches, 1.0F / static_cast<float>(tokens), gradients_,
                                           [&] { set_tag({step, Phase::kBackward}); }));
  measured.computed = now();
  if (before_update)
    if (auto ready = before_update(); !ready) {
      const Error why = ready.error().with_context(fmt::format("rank {}", place_.rank));
      if (group_ != nullptr) group_->abort(why);  // the other ranks wait for this rank's gradients
      return fail(why);
    }
  const auto updated = WSYNC_TRY(update_->run(step, run.loss, tokens, gradients_));
  set_tag({step + 1, Phase::kForward});
  measured.result = updated;
  measured.operations = std::move(run.times);
  measured.end = now();
  return measured;
}

}  // namespace wsync::training
