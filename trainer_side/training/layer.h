// One decoder layer, forward and backward, cut into the operations that the training schedule runs
// on its lanes: attention, dispatch, MLP, combine; and the same backwards, with the weight gradient
// apart.
//
// A micro-batch is whole sequences of one length, one row for each token. All in float32; sums in a
// fixed order. Thread: one at a time for each LayerRun.
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
  collective::Team team;                       // of one: this process has all experts
  std::chrono::milliseconds deadline{60'000};  // of one exchange
};
// The experts that a member has; their number is divisible by the members'.
[[nodiscard]] ExpertRange experts_of(const moe::ModelSpec& spec, std::uint32_t member,
                                     std::uint32_t members);

// One forward and backward of one micro-batch through one layer: call the operations in the order
// in which they stand here. What is given to the constructor is borrowed, and lives until the
// weight gradient has been taken; `weights` has the experts of this rank.
//
// A token's row goes to the rank that has its expert, and an expert computes the rows of each
// source rank apart: what it does for a micro-batch is the same bits wherever the expert lies.
// Routing tables are not activations: they stay with the host, which plans the exchange by them.
//
// dispatch, combine and their gradients fail as ProcessGroup::exchange() does.
class LayerRun {
 public:
  LayerRun(const moe::ModelSpec& spec, const LayerWeights& weights, const moe::RotaryTable& rotary,
           const ExpertParallel& experts, std::size_t sequence, Activations& activations);
  // What a run keeps, at most, in floats: of `tokens` tokens in sequences of `sequence`, with
  // experts shared by `members` ranks.
  [[nodiscard]] static std::size_t floats(const moe::ModelSpec& spec, std::size_t tokens,
                                          std::size_t sequence, std::uint32_t members);

  // Norm, attention, residual, norm, router. x[tokens, hidden].
  void attention(moe::ConstMatrix x);
  // Each token's row goes to its experts: rows by expert, in each by token.
  [[nodiscard]] Result<> dispatch();
  // Each expert's SwiGLU.
  void mlp();
  // out[tokens, hidden] = residual + each token's experts by their weights, the highest first.
  [[nodiscard]] Result<> combine(moe::Matrix out);

  // dout[tokens, hidden]: of what combine() gave.
  [[nodiscard]] Result<> combine_gradient(moe::ConstMatrix dout);
  void mlp_gradient();
  [[nodiscard]] Result<> dispatch_gradient();
  // dx[tokens, hidden] is replaced.
  void attention_gradient(moe::Matrix dx);
  // Adds to every gradient of the layer: to `layer` (its experts are not looked at), and to
  // experts[i] what rows of member i have given, this rank's experts in their order.
  void weight_gradient(const LayerGradients& layer, std::span<const ExpertGradients> experts);

 private:
  // The rows that an expert of this rank has from one member.
  struct ExpertRows {
    std::size_t member = 0;
    std::size_t expert = 0;  // of this rank's
    std::size_t first = 0;
    std::size_t count = 0;
  };
  [[nodiscard]] moe::AttentionShape attention_shape() const;
  // Rows by member: those that this rank has sent, or has from each.
  enum class Rows : bool { kOwn, kOfExperts };
  template <class Float>
  [[nodiscard]] std::vector<std::span<Float>> by_member(moe::BasicMatrix<Float> rows,
                                                        Rows which) const;
  // From this rank's choices to the experts, or back.
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
  std::vector<std::uint32_t> counts_;     // of this rank's rows, for each expert of all
  std::vector<std::size_t> row_of_;       // of each (token, choice), among this rank's rows
  std::vector<std::size_t> own_rows_;     // of each member: sent to it
  std::vector<std::size_t> expert_rows_;  // of each member: received from it
  std::vector<ExpertRows> rows_;          // those with at least one row

  // Kept from the forward.
  Kept x_, normed_, query_, key_, value_;    // before the norms of heads
  Kept query_turned_, key_turned_;           // after norm and rotation
  Kept probabilities_, context_, residual_;  // residual: x + attention
  Kept post_normed_;
  Kept input_rms_, query_rms_, key_rms_, post_rms_;
  Kept expert_in_, gate_, up_, activated_, expert_out_;  // of this rank's experts
  Kept chosen_out_;                                      // what experts gave for this rank's rows

  // Kept from the input gradient for the weight gradient.
  std::vector<float> dweights_;
  Kept dexpert_out_, dgate_, dup_, dexpert_in_;
  Kept dlogits_, dpost_normed_, dresidual_;
  Kept dquery_turned_, dkey_turned_, dquery_, dkey_, dvalue_, dnormed_;
};

}  // namespace wsync::training
