#include "inference_side/reference_engine/generation/model_shard.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "inference_side/reference_engine/generation/attention.h"
#include "inference_side/reference_engine/generation/key_value_cache.h"
#include "inference_side/reference_engine/generation/shard_weights.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/moe/bf16.h"
#include "shared/moe/operators.h"

namespace wsync::engine::generation {
namespace {

using moe::Bf16Matrix;
using moe::ConstMatrix;
using moe::Into;
using moe::Matrix;

// Scratch memory for a matrix. It is kept between steps and grows to the largest size needed.
class Room {
 public:
  Matrix take(std::size_t rows, std::size_t columns) {
    if (values_.size() < rows * columns) values_.resize(rows * columns);
    return {std::span(values_).first(rows * columns), rows, columns};
  }

 private:
  std::vector<float> values_;
};

// Calls begin_layer() and end_layer() around the reads of a manifest layer.
class LayerVisit {
 public:
  LayerVisit(WeightView& weights, std::uint32_t layer) : weights_(weights), layer_(layer) {
    weights_.begin_layer(layer_);
  }
  LayerVisit(const LayerVisit&) = delete;
  LayerVisit& operator=(const LayerVisit&) = delete;
  ~LayerVisit() { weights_.end_layer(layer_); }

 private:
  WeightView& weights_;
  std::uint32_t layer_;
};

// The inputs of one forward step.
struct Step {
  const Batch& batch;
  WeightView& weights;
  const collective::Team& team;
  TimePoint deadline;
};

Matrix rows_of_heads(Matrix x, std::size_t head_dim) {
  return {x.values(), x.values().size() / head_dim, head_dim};
}

void add_to(ConstMatrix from, Matrix to) {
  for (std::size_t i = 0; i < from.values().size(); ++i) to.values()[i] += from.values()[i];
}

// The (token, choice) pairs of a step, ordered by expert and, within an expert, by token.
struct Choices {
  std::vector<std::size_t> first_row;  // first row of each expert, then the total
  std::vector<std::size_t> row_of;     // row of each pair
};

class Shard final : public ModelShard {
 public:
  Shard(const ShardOptions& options, const ShardSizes& sizes, ModelTensors tensors,
        const Manifest& manifest, KeyValueCache cache)
      : options_(options),
        spec_(options_.spec),
        sizes_(sizes),
        tensors_(std::move(tensors)),
        layer_count_(manifest.layer_count()),
        embedding_layer_(manifest.layer(tensors_.embedding)),
        norm_layer_(manifest.layer(tensors_.final_norm)),
        head_layer_(manifest.layer(tensors_.head)),
        cache_(std::move(cache)),
        rotary_(spec_.head_dim, positions_of(options), spec_.rope_theta) {}

  Result<std::vector<float>> forward(const Batch& batch, WeightView& weights,
                                     const collective::Team& team, TimePoint deadline) override;
  BatchLimits limits() const override {
    return {.vocabulary = spec_.vocabulary,
            .max_positions = spec_.max_positions,
            .blocks = options_.blocks,
            .block_tokens = options_.block_tokens,
            .tokens = options_.max_step_tokens};
  }
  std::uint64_t cache_bytes() const override { return cache_.bytes(); }

 private:
  // No sequence can have more positions than all blocks together.
  static std::size_t positions_of(const ShardOptions& options) {
    return std::min<std::size_t>(options.spec.max_positions,
                                 std::size_t{options.blocks} * options.block_tokens);
  }
  [[nodiscard]] std::size_t queries() const { return std::size_t{sizes_.heads} * spec_.head_dim; }
  [[nodiscard]] std::size_t keys() const {
    return std::size_t{sizes_.key_value_heads} * spec_.head_dim;
  }

  void place_tokens(const Batch& batch);
  void store(std::uint32_t layer, ConstMatrix key, ConstMatrix value);
  // y = norm of x with the weight `tensor`. y may be x.
  void norm(const Step& step, std::uint32_t tensor, ConstMatrix x, Matrix y);
  [[nodiscard]] Result<> embed(const Step& step);
  [[nodiscard]] Result<> attention(const Step& step, std::uint32_t number);
  [[nodiscard]] Result<> experts(const Step& step, const LayerTensors& layer);
  void order_by_expert(const moe::Routing& routing);
  void compute_experts(const Step& step, const LayerTensors& layer, ConstMatrix in, Matrix out);
  // Adds the sum of `partial` over all ranks to the hidden states.
  [[nodiscard]] Result<> add_all(const Step& step, Matrix partial);
  // The rows whose logits are wanted, after the final norm.
  [[nodiscard]] Matrix final_norm(const Step& step);
  [[nodiscard]] Result<std::vector<float>> logits(const Step& step, ConstMatrix normed);
  [[nodiscard]] Result<std::vector<float>> collect(const Step& step, ConstMatrix part);

  const ShardOptions options_;
  const moe::ModelSpec& spec_;
  const ShardSizes sizes_;
  const ModelTensors tensors_;
  const std::uint32_t layer_count_, embedding_layer_, norm_layer_, head_layer_;
  KeyValueCache cache_;
  moe::RotaryTable rotary_;

  // State of the current step. The rows are the tokens of all slices, in the order of the slices.
  std::vector<std::uint32_t> positions_, blocks_;  // by row
  Matrix hidden_;
  Choices choices_;
  Room hidden_room_, normed_, query_, key_, value_, context_, partial_, router_, chosen_in_,
      chosen_out_, gate_, up_, norm_weight_, inverse_rms_, logits_;
  std::vector<float> scores_;
};

void Shard::place_tokens(const Batch& batch) {
  positions_.clear();
  blocks_.clear();
  for (const SequenceSlice& slice : batch.slices)
    for (std::uint32_t i = 0; i < slice.tokens.size(); ++i) {
      const std::uint32_t position = slice.first_position + i;
      positions_.push_back(planted("piece_placed_at_zero") ? i : position);
      blocks_.push_back(slice.blocks[position / options_.block_tokens]);
    }
}

void Shard::store(std::uint32_t layer, ConstMatrix key, ConstMatrix value) {
  for (std::size_t row = 0; row < positions_.size(); ++row)
    cache_.put(layer, blocks_[row], positions_[row] % options_.block_tokens, key.row(row),
               value.row(row));
}

void Shard::norm(const Step& step, std::uint32_t tensor, ConstMatrix x, Matrix y) {
  const std::span<float> weight = norm_weight_.take(1, x.columns()).values();
  moe::widen(step.weights.tensor(tensor), weight);
  moe::rms_norm(x, weight, static_cast<float>(spec_.rms_norm_epsilon), y,
                inverse_rms_.take(x.rows(), 1).values());
}

Result<> Shard::embed(const Step& step) {
  hidden_ = hidden_room_.take(positions_.size(), spec_.hidden);
  {
    const LayerVisit visit(step.weights, embedding_layer_);
    const Bf16Matrix table(step.weights.tensor(tensors_.embedding), sizes_.vocabulary,
                           spec_.hidden);
    const std::uint32_t first = sizes_.rank * sizes_.vocabulary;
    std::size_t row = 0;
    for (const SequenceSlice& slice : step.batch.slices)
      for (const Token token : slice.tokens) {
        const std::span<float> to = hidden_.row(row++);
        if (token >= first && token - first < sizes_.vocabulary)
          moe::widen(table.part(token - first, 1).bytes(), to);
        else  // another rank holds this token
          std::ranges::fill(to, 0.0F);
      }
  }
  return collective::all_reduce(step.team, hidden_.values(), step.deadline);
}

Result<> Shard::add_all(const Step& step, Matrix partial) {
  WSYNC_TRY(collective::all_reduce(step.team, partial.values(), step.deadline));
  add_to(partial, hidden_);
  return {};
}

Result<> Shard::attention(const Step& step, std::uint32_t number) {
  const LayerTensors& layer = tensors_.layers[number];
  const std::size_t rows = hidden_.rows();
  const auto weight = [&](std::uint32_t tensor, std::size_t outputs, std::size_t inputs) {
    return Bf16Matrix(step.weights.tensor(tensor), outputs, inputs);
  };
  const Matrix normed = normed_.take(rows, spec_.hidden);
  norm(step, layer.input_norm, hidden_, normed);
  const Matrix query = query_.take(rows, queries());
  const Matrix key = key_.take(rows, keys());
  const Matrix value = value_.take(rows, keys());
  moe::linear_bf16(normed, weight(layer.query, queries(), spec_.hidden), query);
  moe::linear_bf16(normed, weight(layer.key, keys(), spec_.hidden), key);
  moe::linear_bf16(normed, weight(layer.value, keys(), spec_.hidden), value);
  const Matrix query_heads = rows_of_heads(query, spec_.head_dim);
  const Matrix key_heads = rows_of_heads(key, spec_.head_dim);
  norm(step, layer.query_norm, query_heads, query_heads);
  norm(step, layer.key_norm, key_heads, key_heads);
  rotary_.turn(query, positions_);
  rotary_.turn(key, positions_);
  store(number, key, value);
  const Matrix context = context_.take(rows, queries());
  std::size_t first = 0;
  for (const SequenceSlice& slice : step.batch.slices) {
    const std::size_t count = slice.tokens.size();
    attend(cache_, number, slice, query.part(first, count), context.part(first, count), scores_);
    first += count;
  }
  const Matrix partial = partial_.take(rows, spec_.hidden);
  moe::linear_bf16(context, weight(layer.output, spec_.hidden, queries()), partial);
  return add_all(step, partial);
}

void Shard::order_by_expert(const moe::Routing& routing) {
  choices_.first_row.assign(std::size_t{spec_.experts} + 1, 0);
  for (const std::uint32_t expert : routing.experts) ++choices_.first_row[expert + 1];
  std::partial_sum(choices_.first_row.begin(), choices_.first_row.end(),
                   choices_.first_row.begin());
  choices_.row_of.resize(routing.experts.size());
  // After this loop, the entry of each expert has moved from its first row to its end, which is the
  // first row of the next expert.
  for (std::size_t choice = 0; choice < routing.experts.size(); ++choice)
    choices_.row_of[choice] = choices_.first_row[routing.experts[choice]]++;
  std::shift_right(choices_.first_row.begin(), choices_.first_row.end(), 1);
  choices_.first_row.front() = 0;
}

void Shard::compute_experts(const Step& step, const LayerTensors& layer, ConstMatrix in,
                            Matrix out) {
  for (std::size_t e = 0; e < layer.experts.size(); ++e) {
    const auto first_row = choices_.first_row.begin() + sizes_.first_expert;
    const std::size_t first = first_row[static_cast<std::ptrdiff_t>(e)];
    const std::size_t count = first_row[static_cast<std::ptrdiff_t>(e) + 1] - first;
    if (count == 0) continue;
    const ExpertTensors& expert = layer.experts[e];
    const Matrix gate = gate_.take(count, sizes_.expert_hidden);
    const Matrix up = up_.take(count, sizes_.expert_hidden);
    const auto matrix = [&](const ExpertMatrix& of, std::size_t rows, std::size_t columns) {
      const std::size_t bytes = rows * columns * dtype_bits(DType::kBF16) / 8;
      return Bf16Matrix(step.weights.tensor(of.tensor).subspan(of.begin, bytes), rows, columns);
    };
    const auto inner = [&](const ExpertMatrix& of) {
      return matrix(of, sizes_.expert_hidden, spec_.hidden);
    };
    moe::linear_bf16(in.part(first, count), inner(expert.gate), gate);
    moe::linear_bf16(in.part(first, count), inner(expert.up), up);
    moe::swiglu(gate, up, gate);
    moe::linear_bf16(gate, matrix(expert.down, spec_.hidden, sizes_.expert_hidden),
                     out.part(first, count));
  }
}

Result<> Shard::experts(const Step& step, const LayerTensors& layer) {
  const std::size_t rows = hidden_.rows();
  const Matrix normed = normed_.take(rows, spec_.hidden);
  norm(step, layer.post_norm, hidden_, normed);
  const Matrix router = router_.take(rows, spec_.experts);
  moe::linear_bf16(
      normed, Bf16Matrix(step.weights.tensor(layer.router), spec_.experts, spec_.hidden), router);
  const moe::Routing routing = moe::route(router, spec_.experts_per_token, spec_.normalise_top_k);
  order_by_expert(routing);
  const std::size_t count = choices_.row_of.size();
  const Matrix in = chosen_in_.take(count, spec_.hidden);
  for (std::size_t choice = 0; choice < count; ++choice)
    std::ranges::copy(normed.row(choice / spec_.experts_per_token),
                      in.row(choices_.row_of[choice]).begin());
  const Matrix out = chosen_out_.take(count, spec_.hidden);
  compute_experts(step, layer, in, out);
  const Matrix partial = partial_.take(rows, spec_.hidden);
  std::ranges::fill(partial.values(), 0.0F);
  for (std::size_t choice = 0; choice < count; ++choice) {
    // An expert before the first one is a large number here.
    if (routing.experts[choice] - sizes_.first_expert >= sizes_.experts) continue;
    const std::span<const float> from = out.row(choices_.row_of[choice]);
    const std::span<float> to = partial.row(choice / spec_.experts_per_token);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += routing.weights[choice] * from[i];
  }
  if (planted("experts_of_one_rank")) {
    add_to(partial, hidden_);
    return {};
  }
  return add_all(step, partial);
}

Matrix Shard::final_norm(const Step& step) {
  const LayerVisit visit(step.weights, norm_layer_);
  const Matrix last = normed_.take(step.batch.logits(), spec_.hidden);
  std::size_t end = 0;
  std::size_t row = 0;
  for (const SequenceSlice& slice : step.batch.slices) {
    end += slice.tokens.size();
    if (slice.wants_logits) std::ranges::copy(hidden_.row(end - 1), last.row(row++).begin());
  }
  norm(step, tensors_.final_norm, last, last);
  return last;
}

Result<std::vector<float>> Shard::collect(const Step& step, ConstMatrix part) {
  const auto own = std::as_bytes(part.values());
  if (sizes_.rank != 0) {
    WSYNC_TRY(collective::gather(step.team, own, {}, step.deadline));
    return {};
  }
  const std::size_t members = sizes_.world_size;
  std::vector<float> gathered(members * part.values().size());
  std::vector<std::span<std::byte>> parts;
  const Matrix by_member(gathered, members, part.values().size());
  for (std::size_t member = 0; member < members; ++member)
    parts.push_back(std::as_writable_bytes(by_member.row(member)));
  WSYNC_TRY(collective::gather(step.team, own, parts, step.deadline));
  std::vector<float> logits(gathered.size());
  for (std::size_t member = 0; member < members; ++member) {
    const ConstMatrix theirs(by_member.row(member), part.rows(), part.columns());
    const Matrix all(logits, part.rows(), spec_.vocabulary);
    for (std::size_t row = 0; row < part.rows(); ++row)
      std::ranges::copy(theirs.row(row),
                        all.row(row).subspan(member * part.columns(), part.columns()).begin());
  }
  return logits;
}

Result<std::vector<float>> Shard::logits(const Step& step, ConstMatrix normed) {
  const LayerVisit visit(step.weights, head_layer_);
  if (normed.rows() == 0) return {};
  const Bf16Matrix head(step.weights.tensor(tensors_.head), sizes_.vocabulary, spec_.hidden);
  if (sizes_.world_size == 1) {
    std::vector<float> all(normed.rows() * spec_.vocabulary);
    moe::linear_bf16(normed, head, {all, normed.rows(), spec_.vocabulary});
    return all;
  }
  const Matrix part = logits_.take(normed.rows(), sizes_.vocabulary);
  moe::linear_bf16(normed, head, part);
  return collect(step, part);
}

Result<std::vector<float>> Shard::forward(const Batch& batch, WeightView& weights,
                                          const collective::Team& team, TimePoint deadline) {
  WSYNC_CHECK(team.size() == sizes_.world_size && team.index() == sizes_.rank,
              "the team has the ranks of the replica in their order");
  if (const Result<> fits = check_batch(batch, limits()); !fits)
    WSYNC_CHECK(fits.has_value(), fits.error().message());
  const Step step{.batch = batch, .weights = weights, .team = team, .deadline = deadline};
  if (batch.slices.empty()) {
    for (std::uint32_t layer = 0; layer < layer_count_; ++layer)
      const LayerVisit visit(weights, layer);
    return {};
  }
  place_tokens(batch);
  WSYNC_TRY(embed(step));
  for (std::uint32_t number = 0; number < spec_.layers; ++number) {
    const LayerVisit visit(weights, tensors_.layers[number].layer);
    WSYNC_TRY(attention(step, number));
    WSYNC_TRY(experts(step, tensors_.layers[number]));
  }
  const Matrix normed = final_norm(step);
  // A separate head beside tied embeddings is not read. The version of its layer is compared all
  // the same.
  if (spec_.tied_embeddings && layer_count_ > norm_layer_ + 1)
    const LayerVisit visit(weights, norm_layer_ + 1);
  return logits(step, normed);
}

Result<> check_options(const ShardOptions& options) {
  for (const auto& [what, value, max] :
       {std::tuple{"blocks", options.blocks, kMaxBlocks},
        std::tuple{"block_tokens", options.block_tokens, kBlockTokensMax},
        std::tuple{"max_step_tokens", options.max_step_tokens, kStepTokensMax}})
    if (value < 1 || value > max)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("'{}' is {}; expected 1 to {}", what, value, max));
  return moe::check_spec(options.spec);
}

CacheShape cache_shape(const ShardOptions& options) {
  return {.layers = options.spec.layers,
          .key_value_heads = options.spec.key_value_heads / options.world_size,
          .head_dim = options.spec.head_dim,
          .blocks = options.blocks,
          .block_tokens = options.block_tokens};
}

}  // namespace

Result<std::unique_ptr<ModelShard>> ModelShard::create(const ShardOptions& options,
                                                       const Manifest& manifest) {
  WSYNC_TRY(check_options(options));
  const auto sizes =
      WSYNC_TRY(share_of(options.spec, options.rank, options.world_size, expert_form_of(manifest)));
  auto tensors = WSYNC_TRY(find_tensors(options.spec, sizes, manifest));
  auto cache = WSYNC_TRY(KeyValueCache::create(cache_shape(options)));
  return std::make_unique<Shard>(options, sizes, std::move(tensors), manifest, std::move(cache));
}

Result<std::uint64_t> block_bytes(const ShardOptions& options, const Manifest& manifest) {
  (void)WSYNC_TRY(
      share_of(options.spec, options.rank, options.world_size, expert_form_of(manifest)));
  return cache_shape(options).block_bytes();
}

}  // namespace wsync::engine::generation
