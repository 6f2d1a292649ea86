#include "trainer_side/training/pipeline.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/training/gradients.h"
#include "trainer_side/training/loss.h"

namespace wsync::training {
namespace {

using schedule::Operation;
using schedule::OperationKind;

bool has_last_stage(const ParallelSizes& sizes, const Place& place) {
  return place.pipeline + 1 == sizes.pp;
}

// Number of floats that the last stage keeps besides its layers.
std::size_t head_floats(const moe::ModelSpec& spec, std::size_t tokens) {
  return tokens * (3 * std::size_t{spec.hidden} + spec.vocabulary + 1);
}

std::size_t slot_floats(const PipelineOptions& options) {
  const std::size_t layers =
      layers_of_stage(options.sizes, options.spec) *
      LayerRun::floats(options.spec, options.tokens, options.sequence, options.sizes.ep);
  return has_last_stage(options.sizes, options.place)
             ? layers + head_floats(options.spec, options.tokens)
             : layers;
}

// Maximum number of activations that exist when the lane runs in order: `begin` creates one, `end`
// removes one.
std::size_t max_between(const schedule::RankProgram& program, schedule::Lane lane,
                        OperationKind begin, OperationKind end) {
  std::size_t there = 0;
  std::size_t max = 0;
  for (const std::uint32_t index : program.lanes[static_cast<std::size_t>(lane)]) {
    const Operation& operation = program.operations[index];
    if (operation.kind == begin && operation.layer == 0) max = std::max(max, ++there);
    if (operation.kind == end) --there;
  }
  return max;
}

}  // namespace

RankWeights::RankWeights(const moe::ModelSpec& spec, const ParallelSizes& sizes, const Place& place)
    : dense(parameters_of(sizes, place, spec).dense),
      experts(parameters_of(sizes, place, spec).experts) {
  if (spec.tied_embeddings && has_last_stage(sizes, place) && !dense.contains(moe::kEmbedding))
    tied_head.emplace(std::vector{moe::embedding_of(spec)});
}

RankGradients::RankGradients(const moe::ModelSpec& spec, const ParallelSizes& sizes,
                             const Place& place)
    : dense(parameters_of(sizes, place, spec).dense) {
  for (std::uint32_t source = 0; source < sizes.ep; ++source)
    experts.emplace_back(parameters_of(sizes, place, spec).experts);
  if (spec.tied_embeddings && has_last_stage(sizes, place))
    tied_head.emplace(std::vector{moe::embedding_of(spec)});
}

void RankGradients::clear() {
  const auto zero = [](ParameterSet& set) { std::fill(set.all().begin(), set.all().end(), 0.0F); };
  zero(dense);
  for (ParameterSet& set : experts) zero(set);
  if (tied_head) zero(*tied_head);
}

std::size_t max_activations(const schedule::RankProgram& program) {
  return max_between(program, schedule::Lane::kComputation, OperationKind::kAttention,
                     OperationKind::kWeightGradient);
}

std::size_t max_offloaded(const schedule::RankProgram& program) {
  return max_between(program, schedule::Lane::kCopy, OperationKind::kOffload,
                     OperationKind::kOnload);
}

// The execution of one step.
class Pipeline::Work {
 public:
  Work(Pipeline& pipeline, const std::vector<MicroBatch>& batches, float scale,
       RankGradients& gradients, const std::function<void()>& on_backward)
      : pipeline_(pipeline),
        options_(pipeline.options_),
        spec_(pipeline.options_.spec),
        shape_(pipeline.options_.program->shape),
        layers_(options_.program->layers),
        batches_(batches),
        scale_(scale),
        gradients_(gradients),
        on_backward_(on_backward),
        losses_(batches.size()) {
    for (std::uint32_t i = 0; i < shape_.cells(); ++i)
      cells_.push_back(std::make_unique<CellRun>(pipeline.device_, pipeline.host_));
  }

  [[nodiscard]] Result<> run(const Operation& operation) {
    CellRun& cell = cell_at(operation.cell);
    switch (operation.kind) {
      case OperationKind::kAttention:
        return attention(operation, cell);
      case OperationKind::kDispatch:
        return cell.layers[operation.layer].dispatch();
      case OperationKind::kMlp:
        return mlp(operation, cell);
      case OperationKind::kCombine:
        return combine(operation, cell);
      case OperationKind::kHead:
        head(operation, cell);
        return {};
      case OperationKind::kCombineGradient:
        return cell.layers[operation.layer].combine_gradient(cell.gradient.matrix());
      case OperationKind::kMlpGradient:
        return mlp_gradient(operation, cell);
      case OperationKind::kDispatchGradient:
        return cell.layers[operation.layer].dispatch_gradient();
      case OperationKind::kAttentionGradient:
        attention_gradient(operation, cell);
        return {};
      case OperationKind::kWeightGradient:
        weight_gradient(operation, cell);
        return {};
      case OperationKind::kSendActivation:
        return send(operation, cell.hidden);
      case OperationKind::kSendGradient:
        return send(operation, cell.gradient);
      case OperationKind::kReceiveActivation:
        return receive(operation, cell.hidden);
      case OperationKind::kReceiveGradient:
        return receive(operation, cell.gradient);
      case OperationKind::kOffload:
        return cell.activations.offload();
      case OperationKind::kOnload:
        return cell.activations.onload();
    }
    return {};
  }

  // Sums the losses in the order of micro-batches.
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }

 private:
  // State of one micro-batch on one chunk.
  struct CellRun {
    CellRun(SlotPool& device, SlotPool& host) : activations(device, &host) {}
    Activations activations;
    std::vector<LayerRun> layers;
    Buffer hidden;    // input of a layer, then its output
    Buffer gradient;  // gradient of the loss by a layer's output, then by its input
    // Used on the last stage only.
    Kept last_hidden, normed, inverse_rms, dlogits, dnormed;
  };
  CellRun& cell_at(const schedule::Cell& cell) {
    return *cells_[std::size_t{shape_.chunk_of(cell.stage)} * shape_.microbatches +
                   cell.microbatch];
  }
  [[nodiscard]] bool is_last(std::uint32_t stage) const { return stage + 1 == shape_.stages(); }
  [[nodiscard]] bool shares_experts() const { return options_.sizes.ep > 1; }

  [[nodiscard]] Result<> attention(const Operation& operation, CellRun& cell) {
    const MicroBatch& batch = batches_[operation.cell.microbatch];
    if (operation.layer == 0) {
      WSYNC_TRY(cell.activations.begin());
      cell.layers.reserve(layers_);
      const std::size_t first = std::size_t{shape_.chunk_of(operation.cell.stage)} * layers_;
      for (std::size_t layer = 0; layer < layers_; ++layer)
        cell.layers.emplace_back(spec_, pipeline_.layers_[first + layer], pipeline_.rotary_,
                                 pipeline_.expert_parallel_, options_.sequence, cell.activations);
      if (operation.cell.stage == 0) {
        cell.hidden = Buffer(options_.tokens, spec_.hidden);
        moe::embed(pipeline_.weights_.dense.matrix(moe::kEmbedding), batch.tokens,
                   cell.hidden.matrix());
      }
    }
    if (operation.layer == 0) fail_point("forward");
    cell.layers[operation.layer].attention(std::as_const(cell.hidden).matrix());
    return {};
  }

  [[nodiscard]] Result<> mlp(const Operation& operation, CellRun& cell) {
    LayerRun& layer = cell.layers[operation.layer];
    if (!shares_experts()) WSYNC_TRY(layer.dispatch());
    layer.mlp();
    return shares_experts() ? Result<>() : combine(operation, cell);
  }

  [[nodiscard]] Result<> combine(const Operation& operation, CellRun& cell) {
    WSYNC_TRY(cell.layers[operation.layer].combine(cell.hidden.matrix()));
    // With one pipeline rank the next stage is on this rank.
    if (shape_.pp == 1 && operation.layer + 1 == layers_ && !is_last(operation.cell.stage))
      next_stage(operation, 1).hidden = std::move(cell.hidden);
    return {};
  }
  CellRun& next_stage(const Operation& operation, int by) {
    const auto stage = static_cast<std::uint32_t>(static_cast<int>(operation.cell.stage) + by);
    return cell_at({stage, operation.cell.computation, operation.cell.microbatch});
  }

  [[nodiscard]] moe::ConstMatrix head_weights() const {
    const RankWeights& weights = pipeline_.weights_;
    if (!spec_.tied_embeddings) return weights.dense.matrix(moe::kHead);
    return weights.tied_head ? weights.tied_head->matrix(moe::kEmbedding)
                             : weights.dense.matrix(moe::kEmbedding);
  }

  void head(const Operation& operation, CellRun& cell) {
    const std::size_t tokens = options_.tokens;
    const std::span<const float> norm = pipeline_.weights_.dense.values(moe::kFinalNorm);
    cell.last_hidden = Kept(cell.activations, tokens, spec_.hidden);
    std::copy(cell.hidden.values().begin(), cell.hidden.values().end(),
              cell.last_hidden.values().begin());
    cell.normed = Kept(cell.activations, tokens, spec_.hidden);
    cell.inverse_rms = Kept(cell.activations, tokens, 1);
    moe::rms_norm(cell.last_hidden.matrix(), norm, static_cast<float>(spec_.rms_norm_epsilon),
                  cell.normed.matrix(), cell.inverse_rms.values());
    Buffer logits(tokens, spec_.vocabulary);
    moe::linear(cell.normed.matrix(), head_weights(), logits.matrix());
    cell.dlogits = Kept(cell.activations, tokens, spec_.vocabulary);
    losses_[operation.cell.microbatch] = loss_and_logit_gradients(
        batches_[operation.cell.microbatch], logits.matrix(), scale_, cell.dlogits.matrix());
    cell.dnormed = Kept(cell.activations, tokens, spec_.hidden);
    moe::linear_input_gradient(cell.dlogits.matrix(), head_weights(), cell.dnormed.matrix());
    cell.gradient = std::move(cell.hidden);
    rms_norm_input_gradient(cell.dnormed.matrix(), cell.last_hidden.matrix(), norm,
                            cell.inverse_rms.values(), cell.gradient.matrix(), moe::Into::kReplace);
  }

  // This is the first operation of a backward on the computation lane.
  [[nodiscard]] Result<> mlp_gradient(const Operation& operation, CellRun& cell) {
    if (!std::exchange(is_backward_, true) && on_backward_) on_backward_();
    LayerRun& layer = cell.layers[operation.layer];
    if (!shares_experts()) WSYNC_TRY(layer.combine_gradient(cell.gradient.matrix()));
    layer.mlp_gradient();
    return shares_experts() ? Result<>() : layer.dispatch_gradient();
  }

  void attention_gradient(const Operation& operation, CellRun& cell) {
    cell.layers[operation.layer].attention_gradient(cell.gradient.matrix());
    if (shape_.pp == 1 && operation.layer == 0 && operation.cell.stage > 0)
      next_stage(operation, -1).gradient = std::move(cell.gradient);
  }

  void weight_gradient(const Operation& operation, CellRun& cell) {
    const std::uint32_t stage = operation.cell.stage;
    const ExpertRange range = experts_of(spec_, options_.place.expert, options_.sizes.ep);
    if (is_last(stage)) {
      rms_norm_weight_gradient(cell.dnormed.matrix(), cell.last_hidden.matrix(),
                               cell.inverse_rms.values(), gradients_.dense.values(moe::kFinalNorm));
      moe::linear_weight_gradient(cell.dlogits.matrix(), cell.normed.matrix(),
                                  spec_.tied_embeddings
                                      ? gradients_.tied_head->matrix(moe::kEmbedding)
                                      : gradients_.dense.matrix(moe::kHead));
    }
    const bool skip = planted("last_weight_gradient_skipped") &&
                      operation.cell.microbatch + 1 == shape_.microbatches;
    for (std::uint32_t i = skip ? 0 : layers_; i-- > 0;) {
      const std::uint32_t layer = stage * layers_ + i;
      std::vector<ExpertGradients> experts;
      for (ParameterSet& source : gradients_.experts)
        experts.push_back(expert_gradients(layer, source, range));
      cell.layers[i].weight_gradient(layer_gradients(layer, gradients_.dense), experts);
    }
    if (stage == 0)
      embed_gradient(cell.gradient.matrix(), batches_[operation.cell.microbatch].tokens,
                     gradients_.dense.matrix(moe::kEmbedding));
    cell.activations.release();
    cell.layers.clear();
  }

  [[nodiscard]] std::uint32_t rank_of(std::uint32_t pipeline) const {
    return options_.sizes.rank_of(pipeline, options_.place.replica);
  }
  [[nodiscard]] Result<> send(const Operation& operation, Buffer& buffer) {
    const collective::Send message{.to = rank_of(operation.peer),
                                   .bytes = std::as_bytes(buffer.values())};
    WSYNC_TRY(options_.group->exchange({&message, 1}, {}, now() + options_.deadline));
    buffer = Buffer();
    return {};
  }
  [[nodiscard]] Result<> receive(const Operation& operation, Buffer& buffer) {
    buffer = Buffer(options_.tokens, spec_.hidden);
    const collective::Receive message{.from = rank_of(operation.peer),
                                      .bytes = std::as_writable_bytes(buffer.values())};
    return options_.group->exchange({}, {&message, 1}, now() + options_.deadline);
  }

  Pipeline& pipeline_;
  const PipelineOptions& options_;
  const moe::ModelSpec& spec_;
  const schedule::Shape shape_;
  const std::uint32_t layers_;
  const std::vector<MicroBatch>& batches_;
  const float scale_;
  RankGradients& gradients_;
  std::vector<std::unique_ptr<CellRun>> cells_;
  const std::function<void()>& on_backward_;
  bool is_backward_ = false;    // used by the computation lane only
  std::vector<double> losses_;  // of each micro-batch, on the last stage
};

Pipeline::Pipeline(PipelineOptions options, const RankWeights& weights)
    : options_(std::move(options)),
      weights_(weights),
      rotary_(options_.spec.head_dim, options_.sequence, options_.spec.rope_theta),
      expert_parallel_{
          .team = collective::Team(options_.group, expert_team(options_.sizes, options_.place)),
          .deadline = options_.deadline},
      device_("activations on the device", options_.device_slots, slot_floats(options_)),
      host_("offloaded activations", options_.host_slots, slot_floats(options_)) {
  const ExpertRange range = experts_of(options_.spec, options_.place.expert, options_.sizes.ep);
  const std::uint32_t layers = options_.program->layers;
  for (std::uint32_t chunk = 0; chunk < options_.sizes.vpp; ++chunk) {
    const std::uint32_t first = (chunk * options_.sizes.pp + options_.place.pipeline) * layers;
    for (std::uint32_t layer = first; layer < first + layers; ++layer)
      layers_.push_back(layer_weights(layer, weights.dense, weights.experts, range));
  }
}

Pipeline::~Pipeline() = default;

void Pipeline::check_batches(const std::vector<MicroBatch>& batches) const {
  WSYNC_CHECK(batches.size() == options_.program->shape.microbatches,
              "a step has the micro-batches of its schedule");
  const auto is_known = [&](std::uint32_t token) { return token < options_.spec.vocabulary; };
  for (const MicroBatch& batch : batches) {
    WSYNC_CHECK(batch.sequence == options_.sequence && batch.tokens.size() == options_.tokens &&
                    batch.targets.size() == options_.tokens,
                "micro-batches are of the sizes that memory was made for");
    WSYNC_CHECK(has_loss_of_each_target(batch),
                "a micro-batch has a weight for each target or none, and so with its policy");
    WSYNC_CHECK(std::all_of(batch.tokens.begin(), batch.tokens.end(), is_known) &&
                    std::all_of(batch.targets.begin(), batch.targets.end(), is_known),
                "a token is one of the vocabulary");
  }
}

void Pipeline::abort(const Error& error) const {
  if (options_.group != nullptr && !planted("lane_failure_not_told"))
    options_.group->abort(error.with_context(fmt::format("rank {}", options_.place.rank)));
}

Result<Pipeline::Step> Pipeline::run_step(const std::vector<MicroBatch>& batches, float scale,
                                          RankGradients& gradients,
                                          const std::function<void()>& on_backward) {
  const schedule::RankProgram& program = options_.program->ranks[options_.place.pipeline];
  check_batches(batches);
  Work work(*this, batches, scale, gradients, on_backward);
  auto times =
      WSYNC_TRY(run_lanes(program, {.work = [&](const Operation& one) { return work.run(one); },
                                    .on_failure = [this](const Error& why) { abort(why); }}));
  return Step{.loss = work.loss(), .times = std::move(times)};
}

}  // namespace wsync::training
