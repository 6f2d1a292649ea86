#include "trainer_side/training/layer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shared/base/planted.h"
#include "trainer_side/training/gradients.h"

namespace wsync::training {

using moe::ConstMatrix;
using moe::Into;
using moe::Matrix;

namespace {

std::span<const float> vector_of(ConstMatrix row) { return row.values(); }

// Returns a view of the same values in which each head is a row.
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

ExpertRange experts_of(const moe::ModelSpec& spec, std::uint32_t member, std::uint32_t members) {
  const std::uint32_t count = spec.experts / members;
  return {.first = member * count, .count = count};
}

LayerRun::LayerRun(const moe::ModelSpec& spec, const LayerWeights& weights,
                   const moe::RotaryTable& rotary, const ExpertParallel& experts,
                   std::size_t sequence, Activations& activations)
    : spec_(spec),
      weights_(weights),
      rotary_(rotary),
      expert_parallel_(experts),
      sequence_(sequence),
      activations_(activations) {}

std::size_t LayerRun::floats(const moe::ModelSpec& spec, std::size_t tokens, std::size_t sequence,
                             std::uint32_t members) {
  const std::size_t queries = std::size_t{spec.heads} * spec.head_dim;
  const std::size_t keys = std::size_t{spec.key_value_heads} * spec.head_dim;
  const std::size_t choices = spec.experts_per_token;
  // The worst case: all tokens of all members choose experts of this rank.
  const std::size_t rows =
      members * std::min<std::size_t>(choices, experts_of(spec, 0, members).count);
  const std::size_t of_token = 7 * spec.hidden + 5 * queries + 6 * keys + spec.heads * sequence +
                               spec.experts + (2 + spec.heads + spec.key_value_heads) +
                               choices * spec.hidden +
                               rows * (4 * spec.hidden + 5 * std::size_t{spec.expert_hidden});
  return tokens * of_token;
}

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
  x_ = Kept(activations_, tokens_, spec_.hidden);
  copy(x, x_.matrix());
  normed_ = Kept(activations_, tokens_, spec_.hidden);
  input_rms_ = Kept(activations_, tokens_, 1);
  moe::rms_norm(x, vector_of(weights_.input_norm), epsilon, normed_.matrix(), input_rms_.values());
  query_ = Kept(activations_, tokens_, queries);
  key_ = Kept(activations_, tokens_, keys);
  value_ = Kept(activations_, tokens_, keys);
  moe::linear(normed_.matrix(), weights_.query, query_.matrix());
  moe::linear(normed_.matrix(), weights_.key, key_.matrix());
  moe::linear(normed_.matrix(), weights_.value, value_.matrix());
  query_turned_ = Kept(activations_, tokens_, queries);
  key_turned_ = Kept(activations_, tokens_, keys);
  query_rms_ = Kept(activations_, tokens_, spec_.heads);
  key_rms_ = Kept(activations_, tokens_, spec_.key_value_heads);
  moe::rms_norm(by_head(query_.matrix(), spec_.head_dim), vector_of(weights_.query_norm), epsilon,
                by_head(query_turned_.matrix(), spec_.head_dim), query_rms_.values());
  moe::rms_norm(by_head(key_.matrix(), spec_.head_dim), vector_of(weights_.key_norm), epsilon,
                by_head(key_turned_.matrix(), spec_.head_dim), key_rms_.values());
  rotary_.turn(query_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kForward);
  rotary_.turn(key_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kForward);
  probabilities_ = Kept(activations_, tokens_ * spec_.heads, sequence_);
  context_ = Kept(activations_, tokens_, queries);
  moe::attention(attention_shape(), query_turned_.matrix(), key_turned_.matrix(), value_.matrix(),
                 context_.matrix(), probabilities_.matrix());
  residual_ = Kept(activations_, tokens_, spec_.hidden);
  copy(x_.matrix(), residual_.matrix());
  moe::linear(context_.matrix(), weights_.output, residual_.matrix(), Into::kAdd);
  post_normed_ = Kept(activations_, tokens_, spec_.hidden);
  post_rms_ = Kept(activations_, tokens_, 1);
  moe::rms_norm(residual_.matrix(), vector_of(weights_.post_norm), epsilon, post_normed_.matrix(),
                post_rms_.values());
  Buffer logits(tokens_, spec_.experts);
  moe::linear(post_normed_.matrix(), weights_.router, logits.matrix());
  routing_ = moe::route(logits.matrix(), spec_.experts_per_token, spec_.normalise_top_k);
}

template <class Float>
std::vector<std::span<Float>> LayerRun::by_member(moe::BasicMatrix<Float> rows, Rows which) const {
  std::vector<std::span<Float>> parts;
  std::size_t first = 0;
  for (const std::size_t count : which == Rows::kOwn ? own_rows_ : expert_rows_) {
    parts.push_back(rows.part(first, count).values());
    first += count;
  }
  return parts;
}

Result<> LayerRun::exchange(ConstMatrix from, Rows which, Matrix to) const {
  std::vector<std::span<const std::byte>> send;
  for (const auto part : by_member(from, which)) send.push_back(std::as_bytes(part));
  std::vector<std::span<std::byte>> receive;
  for (const auto part : by_member(to, which == Rows::kOwn ? Rows::kOfExperts : Rows::kOwn))
    receive.push_back(std::as_writable_bytes(part));
  return collective::all_to_all(expert_parallel_.team, send, receive,
                                now() + expert_parallel_.deadline);
}

// The members exchange how many rows they send to each expert.
Result<> LayerRun::exchange_counts() {
  const std::size_t members = expert_parallel_.team.size();
  const std::size_t experts = weights_.experts.size();
  std::vector<std::uint32_t> incoming(members * experts);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (std::size_t member = 0; member < members; ++member) {
    send.push_back(std::as_bytes(std::span(counts_).subspan(member * experts, experts)));
    receive.push_back(
        std::as_writable_bytes(std::span(incoming).subspan(member * experts, experts)));
  }
  WSYNC_TRY(collective::all_to_all(expert_parallel_.team, send, receive,
                                   now() + expert_parallel_.deadline));
  own_rows_.assign(members, 0);
  expert_rows_.assign(members, 0);
  rows_.clear();
  std::size_t first = 0;
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    const std::size_t member = i / experts;
    own_rows_[member] += counts_[i];
    expert_rows_[member] += incoming[i];
    if (incoming[i] == 0) continue;
    rows_.push_back(
        {.member = member, .expert = i % experts, .first = first, .count = incoming[i]});
    first += incoming[i];
  }
  return {};
}

Result<> LayerRun::dispatch() {
  const std::size_t choices = routing_.experts.size();
  counts_.assign(spec_.experts, 0);
  for (const std::uint32_t expert : routing_.experts) ++counts_[expert];
  WSYNC_TRY(exchange_counts());
  std::vector<std::size_t> next(spec_.experts);
  std::exclusive_scan(counts_.begin(), counts_.end(), next.begin(), std::size_t{0});
  Buffer packed(choices, spec_.hidden);
  row_of_.resize(choices);
  for (std::size_t choice = 0; choice < choices; ++choice) {
    const std::size_t row = next[routing_.experts[choice]]++;
    row_of_[choice] = row;
    copy(post_normed_.matrix().part(choice / spec_.experts_per_token, 1),
         packed.matrix().part(row, 1));
  }
  const std::size_t incoming = std::accumulate(expert_rows_.begin(), expert_rows_.end(), 0UL);
  expert_in_ = Kept(activations_, incoming, spec_.hidden);
  return exchange(packed.matrix(), Rows::kOwn, expert_in_.matrix());
}

void LayerRun::mlp() {
  const std::size_t rows = expert_in_.matrix().rows();
  gate_ = Kept(activations_, rows, spec_.expert_hidden);
  up_ = Kept(activations_, rows, spec_.expert_hidden);
  activated_ = Kept(activations_, rows, spec_.expert_hidden);
  expert_out_ = Kept(activations_, rows, spec_.hidden);
  for (const auto& [member, e, first, count] : rows_) {
    const ExpertViews<ConstMatrix>& expert = weights_.experts[e];
    const Matrix activated = activated_.matrix().part(first, count);
    moe::linear(expert_in_.matrix().part(first, count), expert.gate,
                gate_.matrix().part(first, count));
    moe::linear(expert_in_.matrix().part(first, count), expert.up, up_.matrix().part(first, count));
    moe::swiglu(gate_.matrix().part(first, count), up_.matrix().part(first, count), activated);
    moe::linear(activated, expert.down, expert_out_.matrix().part(first, count));
  }
}

Result<> LayerRun::combine(Matrix out) {
  chosen_out_ = Kept(activations_, row_of_.size(), spec_.hidden);
  WSYNC_TRY(exchange(expert_out_.matrix(), Rows::kOfExperts, chosen_out_.matrix()));
  copy(residual_.matrix(), out);
  for (std::size_t choice = 0; choice < row_of_.size(); ++choice) {
    const std::span<const float> from = chosen_out_.matrix().row(row_of_[choice]);
    const std::span<float> to = out.row(choice / spec_.experts_per_token);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += routing_.weights[choice] * from[i];
  }
  return {};
}

Result<> LayerRun::combine_gradient(ConstMatrix dout) {
  dresidual_ = Kept(activations_, tokens_, spec_.hidden);
  copy(dout, dresidual_.matrix());
  Buffer packed(row_of_.size(), spec_.hidden);
  dweights_.resize(row_of_.size());
  for (std::size_t choice = 0; choice < row_of_.size(); ++choice) {
    const std::span<const float> gradient = dout.row(choice / spec_.experts_per_token);
    const std::span<const float> out = chosen_out_.matrix().row(row_of_[choice]);
    const std::span<float> to = packed.matrix().row(row_of_[choice]);
    double sum = 0;
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = routing_.weights[choice] * gradient[i];
      sum += static_cast<double>(gradient[i]) * static_cast<double>(out[i]);
    }
    dweights_[choice] = static_cast<float>(sum);
  }
  dexpert_out_ = Kept(activations_, expert_in_.matrix().rows(), spec_.hidden);
  return exchange(packed.matrix(), Rows::kOwn, dexpert_out_.matrix());
}

void LayerRun::mlp_gradient() {
  const std::size_t rows = expert_in_.matrix().rows();
  dgate_ = Kept(activations_, rows, spec_.expert_hidden);
  dup_ = Kept(activations_, rows, spec_.expert_hidden);
  dexpert_in_ = Kept(activations_, rows, spec_.hidden);
  for (const auto& [member, e, first, count] : rows_) {
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

Result<> LayerRun::dispatch_gradient() {
  Buffer returned(row_of_.size(), spec_.hidden);
  WSYNC_TRY(exchange(dexpert_in_.matrix(), Rows::kOfExperts, returned.matrix()));
  dpost_normed_ = Kept(activations_, tokens_, spec_.hidden);
  for (std::size_t choice = 0; choice < row_of_.size(); ++choice)
    add(returned.matrix().part(row_of_[choice], 1),
        dpost_normed_.matrix().part(choice / spec_.experts_per_token, 1));
  return {};
}

void LayerRun::attention_gradient(Matrix dx) {
  const std::size_t queries = std::size_t{spec_.heads} * spec_.head_dim;
  const std::size_t keys = std::size_t{spec_.key_value_heads} * spec_.head_dim;
  dlogits_ = Kept(activations_, tokens_, spec_.experts);
  route_gradient(routing_, dweights_, spec_.normalise_top_k, dlogits_.matrix());
  moe::linear_input_gradient(dlogits_.matrix(), weights_.router, dpost_normed_.matrix(),
                             Into::kAdd);
  rms_norm_input_gradient(dpost_normed_.matrix(), residual_.matrix(), vector_of(weights_.post_norm),
                          post_rms_.values(), dresidual_.matrix(), Into::kAdd);
  Buffer dcontext(tokens_, queries);
  moe::linear_input_gradient(dresidual_.matrix(), weights_.output, dcontext.matrix());
  dquery_turned_ = Kept(activations_, tokens_, queries);
  dkey_turned_ = Kept(activations_, tokens_, keys);
  dvalue_ = Kept(activations_, tokens_, keys);
  training::attention_gradient(attention_shape(), dcontext.matrix(), query_turned_.matrix(),
                               key_turned_.matrix(), value_.matrix(), probabilities_.matrix(),
                               dquery_turned_.matrix(), dkey_turned_.matrix(), dvalue_.matrix());
  rotary_.turn(dquery_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kGradient);
  rotary_.turn(dkey_turned_.matrix(), sequence_, moe::RotaryTable::Direction::kGradient);
  dquery_ = Kept(activations_, tokens_, queries);
  dkey_ = Kept(activations_, tokens_, keys);
  rms_norm_input_gradient(by_head(dquery_turned_.matrix(), spec_.head_dim),
                          by_head(query_.matrix(), spec_.head_dim), vector_of(weights_.query_norm),
                          query_rms_.values(), by_head(dquery_.matrix(), spec_.head_dim),
                          Into::kReplace);
  rms_norm_input_gradient(by_head(dkey_turned_.matrix(), spec_.head_dim),
                          by_head(key_.matrix(), spec_.head_dim), vector_of(weights_.key_norm),
                          key_rms_.values(), by_head(dkey_.matrix(), spec_.head_dim),
                          Into::kReplace);
  dnormed_ = Kept(activations_, tokens_, spec_.hidden);
  moe::linear_input_gradient(dquery_.matrix(), weights_.query, dnormed_.matrix());
  moe::linear_input_gradient(dkey_.matrix(), weights_.key, dnormed_.matrix(), Into::kAdd);
  moe::linear_input_gradient(dvalue_.matrix(), weights_.value, dnormed_.matrix(), Into::kAdd);
  copy(dresidual_.matrix(), dx);
  rms_norm_input_gradient(dnormed_.matrix(), x_.matrix(), vector_of(weights_.input_norm),
                          input_rms_.values(), dx, Into::kAdd);
}

void LayerRun::weight_gradient(const LayerGradients& gradients,
                               std::span<const ExpertGradients> experts) {
  for (const auto& [member, e, first, count] : rows_) {
    const ExpertViews<Matrix>& expert = experts[planted("expert_joins_sources") ? 0 : member][e];
    const ConstMatrix in = expert_in_.matrix().part(first, count);
    moe::linear_weight_gradient(dgate_.matrix().part(first, count), in, expert.gate);
    moe::linear_weight_gradient(dup_.matrix().part(first, count), in, expert.up);
    moe::linear_weight_gradient(dexpert_out_.matrix().part(first, count),
                                activated_.matrix().part(first, count), expert.down);
  }
  moe::linear_weight_gradient(dlogits_.matrix(), post_normed_.matrix(), gradients.router);
  rms_norm_weight_gradient(dpost_normed_.matrix(), residual_.matrix(), post_rms_.values(),
                           gradients.post_norm.values());
  moe::linear_weight_gradient(dresidual_.matrix(), context_.matrix(), gradients.output);
  rms_norm_weight_gradient(by_head(dquery_turned_.matrix(), spec_.head_dim),
                           by_head(query_.matrix(), spec_.head_dim), query_rms_.values(),
                           gradients.query_norm.values());
  rms_norm_weight_gradient(by_head(dkey_turned_.matrix(), spec_.head_dim),
                           by_head(key_.matrix(), spec_.head_dim), key_rms_.values(),
                           gradients.key_norm.values());
  moe::linear_weight_gradient(dquery_.matrix(), normed_.matrix(), gradients.query);
  moe::linear_weight_gradient(dkey_.matrix(), normed_.matrix(), gradients.key);
  moe::linear_weight_gradient(dvalue_.matrix(), normed_.matrix(), gradients.value);
  rms_norm_weight_gradient(dnormed_.matrix(), x_.matrix(), input_rms_.values(),
                           gradients.input_norm.values());
}

}  // namespace wsync::training
