// One decoder layer, forward and backward, divided into the operations that the training schedule
// runs on its lanes: attention, dispatch, MLP, combine; the same for the backward, with separate
// weight gradients.
//
// A micro-batch consists of whole sequences of one length, with one row for each token. All values
// are float32, and sums have a fixed order. Thread: one at a time for each LayerRun.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/moe/matrix.h"
#include "shared/moe/model_spec.h"
#include "shared/moe/operators.h"
#include "shared/process_group/collectives.h"
#include "trainer_side/training/activations.h"
#include "trainer_side/training/parameters.h"

namespace wsync::training {

// A matrix that owns its values.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t rows, std::size_t columns)
      : values_(rows * columns), rows_(rows), columns_(columns) {}
  [[nodiscard]] moe::Matrix matrix() { return {values_, rows_, columns_}; }
  [[nodiscard]] moe::ConstMatrix matrix() const { return {values_, rows_, columns_}; }
  [[nodiscard]] std::span<float> values() noexcept { return values_; }

 private:
  std::vector<float> values_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

// The ranks that share the experts of each layer: member i of n has experts [i/n, (i+1)/n) of all.
struct ExpertParallel {
  collective::Team team;                       // a team of one: this process has all experts
  std::chrono::milliseconds deadline{60'000};  // deadline of one exchange
};
// Returns the experts of a member. The number of experts is divisible by the number of members.
[[nodiscard]] ExpertRange experts_of(const moe::ModelSpec& spec, std::uint32_t member,
                                     std::uint32_t members);

// One forward and backward of one micro-batch through one layer. Call the operations in the order
// of their declarations. The constructor arguments are borrowed and must live until the weight
// gradient has been computed. `weights` has the experts of this rank.
//
// The row of a token is sent to the rank of its expert. An expert computes the rows of each source
// rank separately, so its result for a micro-batch has the same bits on every rank. Routing tables
// are not activations: they stay on the host, which uses them to plan the exchange.
//
// dispatch, combine and their gradients fail as ProcessGroup::exchange() does.
class LayerRun {
 public:
  LayerRun(const moe::ModelSpec& spec, const LayerWeights& weights, const moe::RotaryTable& rotary,
           const ExpertParallel& experts, std::size_t sequence, Activations& activations);
  // Maximum number of floats that a run keeps, for `tokens` tokens in sequences of `sequence`, with
  // experts shared by `members` ranks.
  [[nodiscard]] static std::size_t floats(const moe::ModelSpec& spec, std::size_t tokens,
                                          std::size_t sequence, std::uint32_t members);

  // Norm, attention, residual, norm, router. x[tokens, hidden].
  void attention(moe::ConstMatrix x);
  // Sends the row of each token to its experts. Rows are ordered by expert, then by token.
  [[nodiscard]] Result<> dispatch();
  // Computes the SwiGLU of each expert.
  void mlp();
  // out[tokens, hidden] = residual + the weighted results of each token's experts, highest weight
  // first.
  [[nodiscard]] Result<> combine(moe::Matrix out);

  // dout[tokens, hidden]: gradient of the output of combine().
  [[nodiscard]] Result<> combine_gradient(moe::ConstMatrix dout);
  void mlp_gradient();
  [[nodiscard]] Result<> dispatch_gradient();
  // Overwrites dx[tokens, hidden].
  void attention_gradient(moe::Matrix dx);
  // Adds to the gradients of the layer. `layer` gets all but the experts; its experts are ignored.
  // experts[i] gets the contribution of the rows of member i to this rank's experts, in their
  // order.
  void weight_gradient(const LayerGradients& layer, std::span<const ExpertGradients> experts);

 private:
  // The rows that one member has sent to one expert of this rank.
  struct ExpertRows {
    std::size_t member = 0;
    std::size_t expert = 0;  // index among this rank's experts
    std::size_t first = 0;
    std::size_t count = 0;
  };
  [[nodiscard]] moe::AttentionShape attention_shape() const;
  // Rows by member: kOwn are the rows that this rank has sent, kOfExperts those that it has
  // received.
  enum class Rows : bool { kOwn, kOfExperts };
  template <class Float>
  [[nodiscard]] std::vector<std::span<Float>> by_member(moe::BasicMatrix<Float> rows,
                                                        Rows which) const;
  // Sends rows to the experts, or their results back.
  [[nodiscard]] Result<> exchange(moe::ConstMatrix from, Rows which, moe::Matrix to) const;
  [[nodiscard]] Result<> exchange_counts();

  const moe::ModelSpec& spec_;
  const LayerWeights& weights_;
  const moe::RotaryTable& rotary_;
  const ExpertParallel& expert_parallel_;
  std::size_t sequence_;
  Activations& activations_;
  std::size_t tokens_ = 0;

  moe::Routing routing_;
  std::vector<std::uint32_t> counts_;     // number of this rank's rows for each expert of the layer
  std::vector<std::size_t> row_of_;       // row of each (token, choice) among this rank's rows
  std::vector<std::size_t> own_rows_;     // number of rows sent to each member
  std::vector<std::size_t> expert_rows_;  // number of rows received from each member
  std::vector<ExpertRows> rows_;          // entries with at least one row

  // Kept from the forward.
  Kept x_, normed_, query_, key_, value_;    // values before the norms of heads
  Kept query_turned_, key_turned_;           // values after norm and rotation
  Kept probabilities_, context_, residual_;  // residual: x + attention
  Kept post_normed_;
  Kept input_rms_, query_rms_, key_rms_, post_rms_;
  Kept expert_in_, gate_, up_, activated_, expert_out_;  // rows of this rank's experts
  Kept chosen_out_;  // results of the experts for this rank's rows

  // Kept from the input gradient for the weight gradient.
  std::vector<float> dweights_;
  Kept dexpert_out_, dgate_, dup_, dexpert_in_;
  Kept dlogits_, dpost_normed_, dresidual_;
  Kept dquery_turned_, dkey_turned_, dquery_, dkey_, dvalue_, dnormed_;
};

}  // namespace wsync::training
