#include "trainer_side/training/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/training/recovery.h"

namespace wsync::training {
namespace {

constexpr std::uint64_t kFinite = ~std::uint64_t{0};
// Layout of what a rank sends to all others.
constexpr std::size_t kStep = 0;
constexpr std::size_t kLoss = 1;
constexpr std::size_t kFirstBlock = 2;

std::map<std::string, std::size_t> index_of(const std::vector<moe::Parameter>& parameters) {
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < parameters.size(); ++i) index[parameters[i].name] = i;
  return index;
}

bool is_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float one) { return std::isfinite(one); });
}

// Visits the blocks of a part, as elements of the array.
template <class Visit>
void for_each_block(const Shard& shard, const HeldPart& part, const Visit& visit) {
  for (const NormBlock& block : shard.blocks)
    if (block.first >= part.begin && block.first < part.end) visit(block);
}

std::span<const float> gradient_of(const HeldPart& part, const NormBlock& block) {
  return std::span(part.gradient).subspan(block.first - part.begin, block.count);
}

HeldPart make_part(const std::vector<std::size_t>& cuts, std::uint32_t member) {
  HeldPart part{
      .begin = cuts[member], .end = cuts[member + 1], .mean = {}, .variance = {}, .gradient = {}};
  for (std::vector<float>* values : {&part.mean, &part.variance, &part.gradient})
    values->assign(part.end - part.begin, 0.0F);
  return part;
}

Shard make_shard(ParameterSet& weights, collective::Team team, bool second_holders,
                 const std::map<std::string, std::size_t>& model) {
  Shard shard{.weights = &weights,
              .team = std::move(team),
              .blocks = norm_blocks(weights.parameters()),
              .cuts = {},
              .model_of = {},
              .own = {},
              .second = {}};
  for (const std::size_t cut : shard_cuts(shard.blocks.size(), shard.team.size()))
    shard.cuts.push_back(cut < shard.blocks.size() ? shard.blocks[cut].first
                                                   : weights.all().size());
  for (const moe::Parameter& parameter : weights.parameters())
    shard.model_of.push_back(model.at(parameter.name));
  shard.own = make_part(shard.cuts, shard.team.index());
  if (second_holders && shard.team.size() > 1)
    shard.second = make_part(shard.cuts, second_held_by(shard.team.index(), shard.team.size()));
  return shard;
}

// Returns the positions in the model of the blocks that a rank owns: dense parameters, then
// experts.
std::vector<std::size_t> blocks_of(const ParallelSizes& sizes, std::uint32_t rank,
                                   const moe::ModelSpec& spec,
                                   const std::map<std::string, std::size_t>& model,
                                   const std::vector<std::size_t>& first_block) {
  const Place place = place_of(sizes, rank);
  const RankParameters parameters = parameters_of(sizes, place, spec);
  std::vector<std::size_t> owned;
  const auto add = [&](const std::vector<moe::Parameter>& list, std::size_t member,
                       std::size_t members) {
    const std::vector<NormBlock> blocks = norm_blocks(list);
    const std::vector<std::size_t> cuts = shard_cuts(blocks.size(), members);
    std::map<std::size_t, std::size_t> begin_of;  // offset of each parameter in the array
    for (const NormBlock& block : blocks) begin_of.try_emplace(block.parameter, block.first);
    for (std::size_t i = cuts[member]; i < cuts[member + 1]; ++i) {
      const std::size_t in_model = model.at(list[blocks[i].parameter].name);
      owned.push_back(first_block[in_model] +
                      (blocks[i].first - begin_of.at(blocks[i].parameter)) / kNormBlock);
    }
  };
  add(parameters.dense, place.replica, sizes.dp);
  add(parameters.experts, place.replica / sizes.ep, sizes.dp / sizes.ep);
  return owned;
}

}  // namespace

Error not_finite(std::uint64_t step, double loss, const std::vector<moe::Parameter>& all,
                 std::optional<std::size_t> weight, std::optional<std::size_t> gradient) {
  std::string where = "all parameters and gradients are finite";
  if (weight)
    where = fmt::format("{} holds a value that is not finite", all[*weight].name);
  else if (gradient)
    where = fmt::format("the gradient of {} is not finite", all[*gradient].name);
  return Error(ErrorCode::kRefused,
               fmt::format("step {}: the loss is {}, and {}; no parameter was changed. Begin again "
                           "from a checkpoint before it, with a lower learning rate or a smaller "
                           "clip_norm",
                           step, loss, where));
}

HeldPart* Shard::held_of(std::uint32_t member) {
  if (member == team.index()) return &own;
  return second && member == second_held_by(team.index(), team.size()) ? &*second : nullptr;
}

Update::Update(UpdateOptions options, RankWeights& weights)
    : options_(std::move(options)), all_(moe::all_parameters(options_.spec)), weights_(weights) {
  const std::map<std::string, std::size_t> model = index_of(all_);
  const auto team = [&](std::vector<std::uint32_t> members) {
    return collective::Team(options_.group, std::move(members));
  };
  for (const Array array : {Array::kDense, Array::kExperts})
    shards_.push_back(make_shard(array == Array::kDense ? weights.dense : weights.experts,
                                 team(team_of(options_.sizes, options_.place, array)),
                                 options_.second_holders, model));
  std::vector<std::size_t> first_block(all_.size());
  std::size_t last = 0;
  for (const NormBlock& block : norm_blocks(all_)) {
    const bool begins = block_count_ == 0 || block.parameter != last;
    if (begins) first_block[block.parameter] = block_count_;
    last = block.parameter;
    ++block_count_;
  }
  for (std::uint32_t rank = 0; rank < options_.sizes.ranks(); ++rank)
    blocks_of_rank_.push_back(blocks_of(options_.sizes, rank, options_.spec, model, first_block));
}

// Sums the head's gradients over replicas, and adds them on the owners of the embedding.
Result<> Update::sum_tied_head(RankGradients& gradients) {
  const ParallelSizes& sizes = options_.sizes;
  const Place& place = options_.place;
  if (gradients.tied_head) {
    ParameterSet& head = *gradients.tied_head;
    const collective::Team& team = shards_[0].team;
    const std::vector<NormBlock> blocks = norm_blocks(head.parameters());
    std::vector<std::size_t> cuts;
    for (const std::size_t cut : shard_cuts(blocks.size(), team.size()))
      cuts.push_back(cut < blocks.size() ? blocks[cut].first : head.all().size());
    std::vector<float> part(cuts[team.index() + 1] - cuts[team.index()]);
    const std::span<const float> array = head.all();
    WSYNC_TRY(collective::reduce_scatter(team, {&array, 1}, cuts, part, deadline()));
    std::copy(part.begin(), part.end(),
              head.all().begin() + static_cast<std::ptrdiff_t>(cuts[team.index()]));
    std::vector<std::span<std::byte>> parts;
    for (std::size_t i = 0; i < team.size(); ++i)
      parts.push_back(std::as_writable_bytes(head.all().subspan(cuts[i], cuts[i + 1] - cuts[i])));
    WSYNC_TRY(collective::all_gather(team, parts, deadline()));
    if (sizes.pp == 1) return add_tied_head(head);
    const collective::Send message{.to = sizes.rank_of(0, place.replica),
                                   .bytes = std::as_bytes(head.all())};
    return options_.group->exchange({&message, 1}, {}, deadline());
  }
  if (place.pipeline != 0) return {};
  ParameterSet head(std::vector{moe::embedding_of(options_.spec)});
  const collective::Receive message{.from = sizes.rank_of(sizes.pp - 1, place.replica),
                                    .bytes = std::as_writable_bytes(head.all())};
  WSYNC_TRY(options_.group->exchange({}, {&message, 1}, deadline()));
  return add_tied_head(head);
}

Result<> Update::add_tied_head(const ParameterSet& head) {
  HeldPart& own = shards_[0].own;  // the embedding is the first dense parameter
  const std::span<const float> values = head.all();
  for (std::size_t i = own.begin; i < std::min(own.end, values.size()); ++i)
    own.gradient[i - own.begin] += values[i] * (planted("tied_head_twice") ? 2.0F : 1.0F);
  return {};
}

// Sends the reduced gradient of each shard to its second holder, which then can take over the
// update.
Result<> Update::give_to_second_holders() {
  std::vector<collective::Send> sends;
  std::vector<collective::Receive> receives;
  for (Shard& shard : shards_) {
    if (!shard.second) continue;
    const std::uint32_t index = shard.team.index();
    const std::uint32_t size = shard.team.size();
    sends.push_back({.to = shard.team.rank_of(second_holder_of(index, size)),
                     .bytes = std::as_bytes(std::span(std::as_const(shard.own.gradient)))});
    receives.push_back({.from = shard.team.rank_of(second_held_by(index, size)),
                        .bytes = std::as_writable_bytes(std::span(shard.second->gradient))});
  }
  return sends.empty() ? Result<>() : options_.group->exchange(sends, receives, deadline());
}

Result<> Update::sum_gradients(RankGradients& gradients) {
  const std::span<const float> dense = gradients.dense.all();
  WSYNC_TRY(collective::reduce_scatter(shards_[0].team, {&dense, 1}, shards_[0].cuts,
                                       shards_[0].own.gradient, deadline()));
  std::vector<std::span<const float>> sources;
  for (const ParameterSet& source : gradients.experts) sources.push_back(source.all());
  WSYNC_TRY(collective::reduce_scatter(shards_[1].team, sources, shards_[1].cuts,
                                       shards_[1].own.gradient, deadline()));
  if (options_.spec.tied_embeddings) WSYNC_TRY(sum_tied_head(gradients));
  // Last: the gradient of a tied head was added to the owner's shard only.
  return give_to_second_holders();
}

Result<std::vector<std::vector<double>>> Update::gather_sums(std::uint64_t step, double loss) {
  const std::uint32_t ranks = options_.sizes.ranks();
  std::vector<std::vector<double>> sums;
  for (const std::vector<std::size_t>& blocks : blocks_of_rank_)
    sums.emplace_back(kFirstBlock + blocks.size());
  std::vector<double>& own = sums[options_.place.rank];
  own.assign({static_cast<double>(step), loss});
  for (const Shard& shard : shards_)
    for_each_block(shard, shard.own, [&](const NormBlock& block) {
      own.push_back(square_sum(gradient_of(shard.own, block)));
    });
  if (planted("norm_over_shards")) {
    std::fill(own.begin() + kFirstBlock, own.end(), 0.0);
    own.back() = square_sum(shards_[0].own.gradient) + square_sum(shards_[1].own.gradient);
  }
  std::vector<std::uint32_t> everyone(ranks);
  std::vector<std::span<std::byte>> parts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    everyone[rank] = rank;
    parts.push_back(std::as_writable_bytes(std::span(sums[rank])));
  }
  WSYNC_TRY(collective::all_gather(collective::Team(options_.group, std::move(everyone)), parts,
                                   deadline()));
  return sums;
}

Result<Error> Update::why_not_finite(std::uint64_t step, double loss) {
  // This rank's first weight and first gradient that are not finite, by position in the model.
  std::vector<std::array<std::uint64_t, 2>> found(options_.sizes.ranks(), {kFinite, kFinite});
  std::array<std::uint64_t, 2>& own = found[options_.place.rank];
  for (const Shard& shard : shards_) {
    const auto& parameters = shard.weights->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (!is_finite(std::as_const(*shard.weights).values(parameters[i].name)))
        own[0] = std::min<std::uint64_t>(own[0], shard.model_of[i]);
    for_each_block(shard, shard.own, [&](const NormBlock& block) {
      if (!is_finite(gradient_of(shard.own, block)))
        own[1] = std::min<std::uint64_t>(own[1], shard.model_of[block.parameter]);
    });
  }
  std::vector<std::uint32_t> everyone;
  std::vector<std::span<std::byte>> parts;
  for (std::uint32_t rank = 0; rank < options_.sizes.ranks(); ++rank) {
    everyone.push_back(rank);
    parts.push_back(std::as_writable_bytes(std::span(found[rank])));
  }
  WSYNC_TRY(collective::all_gather(collective::Team(options_.group, std::move(everyone)), parts,
                                   deadline()));
  std::array<std::optional<std::size_t>, 2> first;
  for (std::size_t kind = 0; kind < 2; ++kind)
    for (const auto& of_rank : found)
      if (of_rank[kind] != kFinite)
        first[kind] = std::min<std::size_t>(first[kind].value_or(all_.size()), of_rank[kind]);
  return not_finite(step, loss, all_, first[0], first[1]);
}

Result<StepResult> Update::agree(std::uint64_t step, double loss, std::uint64_t tokens) {
  const auto sums = WSYNC_TRY(gather_sums(step, loss));
  for (std::size_t rank = 0; rank < sums.size(); ++rank)
    if (sums[rank][kStep] != sums.front()[kStep])
      return fail(ErrorCode::kRefused,
                  fmt::format("rank {} is at step {}, rank 0 at step {}; begin all ranks from the "
                              "same checkpoint",
                              rank, sums[rank][kStep], sums.front()[kStep]));
  double total = 0;  // in the order of replicas; only ranks of the last stage have a loss
  for (std::uint32_t replica = 0; replica < options_.sizes.dp; ++replica)
    total += sums[options_.sizes.rank_of(options_.sizes.pp - 1, replica)][kLoss];
  std::vector<double> blocks(block_count_);
  for (std::size_t rank = 0; rank < sums.size(); ++rank)
    for (std::size_t i = 0; i < blocks_of_rank_[rank].size(); ++i)
      blocks[blocks_of_rank_[rank][i]] = sums[rank][kFirstBlock + i];
  const StepResult result{.loss = total / static_cast<double>(tokens),
                          .gradient_norm = norm_of(blocks),
                          .learning_rate = learning_rate_of(options_.optimizer, step)};
  if (!planted("not_finite_goes_on") &&
      (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))) {
    auto why = why_not_finite(step, result.loss);
    return fail(why ? std::move(*why) : std::move(why).error());
  }
  return result;
}

Result<StepResult> Update::run(std::uint64_t step, double loss, std::uint64_t tokens,
                               RankGradients& gradients) {
  // The held gradients change below. Until they are complete, recovery must not use them.
  progress_.reduced = 0;
  WSYNC_TRY(sum_gradients(gradients));
  progress_.reduced = step;
  if (planted("flip_before_barrier") && options_.on_barrier) options_.on_barrier(step);
  fail_point("before_barrier");
  const auto result = WSYNC_TRY(agree(step, loss, tokens));
  pass_barrier(step, result);
  apply();
  WSYNC_TRY(share_weights());
  WSYNC_TRY(share_tied_head());
  return result;
}

Result<> Update::finish(std::uint64_t step, const StepResult& result) {
  if (progress_.passed == step) return {};
  if (progress_.reduced != step)
    return fail(ErrorCode::kInternal,
                fmt::format("rank {} cannot end step {}: it has the reduced gradients of step {}",
                            options_.place.rank, step, progress_.reduced));
  pass_barrier(step, result);
  apply();
  return {};
}

void Update::clear_state() noexcept {
  const auto clear = [](HeldPart& part) {
    std::fill(part.mean.begin(), part.mean.end(), 0.0F);
    std::fill(part.variance.begin(), part.variance.end(), 0.0F);
  };
  for (Shard& shard : shards_) {
    clear(shard.own);
    if (shard.second) clear(*shard.second);
  }
}

void Update::set_taken(std::uint64_t step, const std::optional<StepResult>& result) {
  progress_ = {.reduced = 0, .passed = result ? step : 0, .result = result.value_or(StepResult())};
}

void Update::pass_barrier(std::uint64_t step, const StepResult& result) {
  progress_.passed = step;
  progress_.result = result;
  if (options_.on_barrier) options_.on_barrier(step);
}

void Update::apply() {
  const float factor = clip_factor(progress_.result.gradient_norm, options_.optimizer.clip_norm);
  const auto apply_to = [&](Shard& shard, HeldPart& part) {
    for_each_block(shard, part, [&](const NormBlock& block) {
      const std::size_t at = block.first - part.begin;
      adamw_step(options_.optimizer, progress_.passed,
                 shard.weights->parameters()[block.parameter].shape.size() > 1, factor,
                 gradient_of(part, block), shard.weights->all().subspan(block.first, block.count),
                 {.mean = std::span(part.mean).subspan(at, block.count),
                  .variance = std::span(part.variance).subspan(at, block.count)});
    });
  };
  for (Shard& shard : shards_) {
    apply_to(shard, shard.own);
    if (&shard == &shards_.front()) fail_point("optimizer");
    if (shard.second && !planted("second_holder_idle")) apply_to(shard, *shard.second);
  }
}

Result<> Update::share_weights() {
  for (const Shard& shard : shards_) {
    std::vector<std::span<std::byte>> parts;
    for (std::size_t i = 0; i < shard.team.size(); ++i)
      parts.push_back(std::as_writable_bytes(
          shard.weights->all().subspan(shard.cuts[i], shard.cuts[i + 1] - shard.cuts[i])));
    WSYNC_TRY(collective::all_gather(shard.team, parts, deadline()));
  }
  return {};
}

Result<> Update::share_tied_head() {
  const ParallelSizes& sizes = options_.sizes;
  if (!options_.spec.tied_embeddings || sizes.pp == 1) return {};
  if (options_.place.pipeline == 0) {
    const collective::Send message{
        .to = sizes.rank_of(sizes.pp - 1, options_.place.replica),
        .bytes = std::as_bytes(std::as_const(weights_.dense).values(moe::kEmbedding))};
    return options_.group->exchange({&message, 1}, {}, deadline());
  }
  if (!weights_.tied_head) return {};
  const collective::Receive message{.from = sizes.rank_of(0, options_.place.replica),
                                    .bytes = std::as_writable_bytes(weights_.tied_head->all())};
  return options_.group->exchange({}, {&message, 1}, deadline());
}

}  // namespace wsync::training
