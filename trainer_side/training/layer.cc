#include "trainer_side/training/layer.h"

#include <algorithm>

#include "trainer_side/training/gradients.h"

namespace wsync::training {

using moe::ConstMatrix;
using moe::Into;
using moe::Matrix;

namespace {

std::span<const float> vector_of(ConstMatrix row) { return row.values(); }

// The same values with each head as a row.
Matrix by_head(Matrix x, std::size_t head_dim) {
  return {x.values(), x.values().size() / head_dim, head_dim};
}

void copy(ConstMatrix from, Matrix to) {
  std::copy(from.values().begin(), from.values().end(), to.values().begin());
}
void add(ConstMatrix from, Matrix to) {
  for (std::size_t i = 0; i < from.values().size(); ++i) to.values()[i] += from.values()[i];
}

}  // namespace

LayerRun::LayerRun(const moe::ModelSpec& spec, const LayerWeights& weights,
                   const moe::RotaryTable& rotary, std::size_t sequence)
    : spec_(spec), weights_(weights), rotary_(rotary), sequence_(sequence) {}

moe::AttentionShape LayerRun::attention_shape() const {
  return {.sequence = sequence_,
          .heads = spec_.heads,
          .key_value_heads = spec_.key_value_heads,
          .head_dim = spec_.head_dim};
}

void LayerRun::attention(ConstMatrix x) {
  tokens_ = x.rows();
  WSYNC_CHECK(tokens_ % sequence_ == 0, "a micro-batch is whole sequences");
  const std::size_t queries = std::size_t{spec_.heads} * spec_.head_dim;
  const std::size_t keys = std::size_t{spec_.key_value_heads} * spec_.head_dim;
  const auto epsilon = static_cast<float>(spec_.rms_norm_epsilon);
  x_ = Buffer(tokens_, spec_.hidden);
  copy(x, x_.matrix());
  normed_ = Buffer(tokens_, spec_.hidden);
  input_rms_.resize(tokens_);
  moe::rms_norm(x, vector_of(weights_.input_norm), epsilon, normed_.matrix(), input_rms_);
  query_ = Buffer(tokens_, queries);
  key_ = Buffer(tokens_, keys);
  value_ = Buffer(tokens_, keys);
  moe::linear(normed_.matrix(), weights_.query, query_.matrix());
  moe::linear(normed_.matrix(), weights_.key, key_.matrix());
  moe::linear(normed_.matrix(), weights_.value, value_.matrix());
  query_turned_ = Buffer(tokens_, queries);
  key_turned_ = Buffer(tokens_, keys);
  query_rms_.resize(tokens_ * spec_.heads);
  key_rms_.resize(tokens_ * spec_.key_value_heads);
  moe::rms_norm(by_head(query_.matrix(), spec_.head_dim), vector_of(weights_.query_norm), epsilon,
                by_head(query_turned_.matrix(), spec_.head_dim), query_rms_);
  moe::rms_norm(by_head(key_.matrix(), spec_.head_dim), vector_of(weights_.key_norm), epsilon,
                by_head(key_turned_.matrix(), spec_.head_dim), key_rms_);
  rotary_.turn(query_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kForward);
  rotary_.turn(key_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kForward);
  probabilities_ = Buffer(tokens_ * spec_.heads, sequence_);
  context_ = Buffer(tokens_, queries);
  moe::attention(attention_shape(), query_turned_.matrix(), key_turned_.matrix(), value_.matrix(),
                 context_.matrix(), probabilities_.matrix());
  residual_ = x_;
  moe::linear(context_.matrix(), weights_.output, residual_.matrix(), Into::kAdd);
  post_normed_ = Buffer(tokens_, spec_.hidden);
  post_rms_.resize(tokens_);
  moe::rms_norm(residual_.matrix(), vector_of(weights_.post_norm), epsilon, post_normed_.matrix(),
                post_rms_);
  Buffer logits(tokens_, spec_.experts);
  moe::linear(post_normed_.matrix(), weights_.router, logits.matrix());
  routing_ = moe::route(logits.matrix(), spec_.experts_per_token, spec_.normalise_top_k);
}

void LayerRun::dispatch() {
  const std::size_t choices = routing_.experts.size();
  rows_.assign(spec_.experts, {});
  for (const std::uint32_t expert : routing_.experts) ++rows_[expert].count;
  std::size_t first = 0;
  for (ExpertRows& rows : rows_) {
    rows.first = first;
    first += rows.count;
  }
  expert_in_ = Buffer(choices, spec_.hidden);
  row_of_.resize(choices);
  std::vector<std::size_t> next(spec_.experts);
  for (std::size_t choice = 0; choice < choices; ++choice) {
    const std::uint32_t expert = routing_.experts[choice];
    const std::size_t token = choice / spec_.experts_per_token;
    const std::size_t row = rows_[expert].first + next[expert]++;
    row_of_[choice] = row;
    copy(post_normed_.matrix().part(token, 1), expert_in_.matrix().part(row, 1));
  }
}

void LayerRun::mlp() {
  const std::size_t choices = row_of_.size();
  gate_ = Buffer(choices, spec_.expert_hidden);
  up_ = Buffer(choices, spec_.expert_hidden);
  activated_ = Buffer(choices, spec_.expert_hidden);
  expert_out_ = Buffer(choices, spec_.hidden);
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    const auto [first, count] = rows_[e];
    if (count == 0) continue;
    const ExpertViews<ConstMatrix>& expert = weights_.experts[e];
    const Matrix activated = activated_.matrix().part(first, count);
    moe::linear(expert_in_.matrix().part(first, count), expert.gate,
                gate_.matrix().part(first, count));
    moe::linear(expert_in_.matrix().part(first, count), expert.up, up_.matrix().part(first, count));
    moe::swiglu(gate_.matrix().part(first, count), up_.matrix().part(first, count), activated);
    moe::linear(activated, expert.down, expert_out_.matrix().part(first, count));
  }
}

void LayerRun::combine(Matrix out) {
  copy(residual_.matrix(), out);
  for (std::size_t choice = 0; choice < row_of_.size(); ++choice) {
    const std::span<const float> from = expert_out_.matrix().row(row_of_[choice]);
    const std::span<float> to = out.row(choice / spec_.experts_per_token);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += routing_.weights[choice] * from[i];
  }
}

void LayerRun::combine_gradient(ConstMatrix dout) {
  dresidual_ = Buffer(tokens_, spec_.hidden);
  copy(dout, dresidual_.matrix());
  dexpert_out_ = Buffer(row_of_.size(), spec_.hidden);
  dweights_.resize(row_of_.size());
  for (std::size_t choice = 0; choice < row_of_.size(); ++choice) {
    const std::span<const float> gradient = dout.row(choice / spec_.experts_per_token);
    const std::span<const float> out = expert_out_.matrix().row(row_of_[choice]);
    const std::span<float> to = dexpert_out_.matrix().row(row_of_[choice]);
    double sum = 0;
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = routing_.weights[choice] * gradient[i];
      sum += static_cast<double>(gradient[i]) * static_cast<double>(out[i]);
    }
    dweights_[choice] = static_cast<float>(sum);
  }
}

void LayerRun::mlp_gradient() {
  const std::size_t choices = row_of_.size();
  dgate_ = Buffer(choices, spec_.expert_hidden);
  dup_ = Buffer(choices, spec_.expert_hidden);
  dexpert_in_ = Buffer(choices, spec_.hidden);
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    const auto [first, count] = rows_[e];
    if (count == 0) continue;
    const ExpertViews<ConstMatrix>& expert = weights_.experts[e];
    Buffer dactivated(count, spec_.expert_hidden);
    moe::linear_input_gradient(dexpert_out_.matrix().part(first, count), expert.down,
                               dactivated.matrix());
    swiglu_gradient(dactivated.matrix(), gate_.matrix().part(first, count),
                    up_.matrix().part(first, count), dgate_.matrix().part(first, count),
                    dup_.matrix().part(first, count));
    const Matrix din = dexpert_in_.matrix().part(first, count);
    moe::linear_input_gradient(dgate_.matrix().part(first, count), expert.gate, din);
    moe::linear_input_gradient(dup_.matrix().part(first, count), expert.up, din, Into::kAdd);
  }
}

void LayerRun::dispatch_gradient() {
  dpost_normed_ = Buffer(tokens_, spec_.hidden);
  for (std::size_t choice = 0; choice < row_of_.size(); ++choice)
    add(dexpert_in_.matrix().part(row_of_[choice], 1),
        dpost_normed_.matrix().part(choice / spec_.experts_per_token, 1));
}

void LayerRun::attention_gradient(Matrix dx) {
  const std::size_t queries = std::size_t{spec_.heads} * spec_.head_dim;
  const std::size_t keys = std::size_t{spec_.key_value_heads} * spec_.head_dim;
  dlogits_ = Buffer(tokens_, spec_.experts);
  route_gradient(routing_, dweights_, spec_.normalise_top_k, dlogits_.matrix());
  moe::linear_input_gradient(dlogits_.matrix(), weights_.router, dpost_normed_.matrix(),
                             Into::kAdd);
  rms_norm_input_gradient(dpost_normed_.matrix(), residual_.matrix(), vector_of(weights_.post_norm),
                          post_rms_, dresidual_.matrix(), Into::kAdd);
  Buffer dcontext(tokens_, queries);
  moe::linear_input_gradient(dresidual_.matrix(), weights_.output, dcontext.matrix());
  dquery_turned_ = Buffer(tokens_, queries);
  dkey_turned_ = Buffer(tokens_, keys);
  dvalue_ = Buffer(tokens_, keys);
  training::attention_gradient(attention_shape(), dcontext.matrix(), query_turned_.matrix(),
                               key_turned_.matrix(), value_.matrix(), probabilities_.matrix(),
                               dquery_turned_.matrix(), dkey_turned_.matrix(), dvalue_.matrix());
  rotary_.turn(dquery_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kGradient);
  rotary_.turn(dkey_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kGradient);
  dquery_ = Buffer(tokens_, queries);
  dkey_ = Buffer(tokens_, keys);
  rms_norm_input_gradient(by_head(dquery_turned_.matrix(), spec_.head_dim),
                          by_head(query_.matrix(), spec_.head_dim), vector_of(weights_.query_norm),
                          query_rms_, by_head(dquery_.matrix(), spec_.head_dim), Into::kReplace);
  rms_norm_input_gradient(by_head(dkey_turned_.matrix(), spec_.head_dim),
                          by_head(key_.matrix(), spec_.head_dim), vector_of(weights_.key_norm),
                          key_rms_, by_head(dkey_.matrix(), spec_.head_dim), Into::kReplace);
  dnormed_ = Buffer(tokens_, spec_.hidden);
  moe::linear_input_gradient(dquery_.matrix(), weights_.query, dnormed_.matrix());
  moe::linear_input_gradient(dkey_.matrix(), weights_.key, dnormed_.matrix(), Into::kAdd);
  moe::linear_input_gradient(dvalue_.matrix(), weights_.value, dnormed_.matrix(), Into::kAdd);
  copy(dresidual_.matrix(), dx);
  rms_norm_input_gradient(dnormed_.matrix(), x_.matrix(), vector_of(weights_.input_norm),
                          input_rms_, dx, Into::kAdd);
}

void LayerRun::weight_gradient(const LayerGradients& gradients) {
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    const auto [first, count] = rows_[e];
    if (count == 0) continue;
    const ExpertViews<Matrix>& expert = gradients.experts[e];
    const ConstMatrix in = expert_in_.matrix().part(first, count);
    moe::linear_weight_gradient(dgate_.matrix().part(first, count), in, expert.gate);
    moe::linear_weight_gradient(dup_.matrix().part(first, count), in, expert.up);
    moe::linear_weight_gradient(dexpert_out_.matrix().part(first, count),
                                activated_.matrix().part(first, count), expert.down);
  }
  moe::linear_weight_gradient(dlogits_.matrix(), post_normed_.matrix(), gradients.router);
  rms_norm_weight_gradient(dpost_normed_.matrix(), residual_.matrix(), post_rms_,
                           gradients.post_norm.values());
  moe::linear_weight_gradient(dresidual_.matrix(), context_.matrix(), gradients.output);
  rms_norm_weight_gradient(by_head(dquery_turned_.matrix(), spec_.head_dim),
                           by_head(query_.matrix(), spec_.head_dim), query_rms_,
                           gradients.query_norm.values());
  rms_norm_weight_gradient(by_head(dkey_turned_.matrix(), spec_.head_dim),
                           by_head(key_.matrix(), spec_.head_dim), key_rms_,
                           gradients.key_norm.values());
  moe::linear_weight_gradient(dquery_.matrix(), normed_.matrix(), gradients.query);
  moe::linear_weight_gradient(dkey_.matrix(), normed_.matrix(), gradients.key);
  moe::linear_weight_gradient(dvalue_.matrix(), normed_.matrix(), gradients.value);
  rms_norm_weight_gradient(dnormed_.matrix(), x_.matrix(), input_rms_,
                           gradients.input_norm.values());
}

}  // namespace wsync::training
