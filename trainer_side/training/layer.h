// One decoder layer, forward and backward, cut into the operations that the training schedule runs
// on its lanes: attention, dispatch, MLP, combine; and the same backwards, with the weight gradient
// apart.
//
// A micro-batch is whole sequences of one length, one row for each token. All in float32; sums in a
// fixed order. Thread: one at a time for each LayerRun.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/moe/matrix.h"
#include "shared/moe/model_spec.h"
#include "shared/moe/operators.h"
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

// One forward and backward of one micro-batch through one layer: call the operations in the order
// in which they stand here. `spec`, `weights` and `rotary` are borrowed, and what is given in must
// stay as it is until the weight gradient has been taken.
class LayerRun {
 public:
  LayerRun(const moe::ModelSpec& spec, const LayerWeights& weights, const moe::RotaryTable& rotary,
           std::size_t sequence);

  // Norm, attention, residual, norm, router. x[tokens, hidden].
  void attention(moe::ConstMatrix x);
  // Each token's row goes to its experts: rows by expert, in each by token.
  void dispatch();
  // Each expert's SwiGLU.
  void mlp();
  // out[tokens, hidden] = residual + each token's experts by their weights, the highest first.
  void combine(moe::Matrix out);

  // dout[tokens, hidden]: of what combine() gave.
  void combine_gradient(moe::ConstMatrix dout);
  void mlp_gradient();
  void dispatch_gradient();
  // dx[tokens, hidden] is replaced.
  void attention_gradient(moe::Matrix dx);
  // Adds to every gradient of the layer.
  void weight_gradient(const LayerGradients& gradients);

 private:
  struct ExpertRows {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  [[nodiscard]] moe::AttentionShape attention_shape() const;

  const moe::ModelSpec& spec_;
  const LayerWeights& weights_;
  const moe::RotaryTable& rotary_;
  std::size_t sequence_;
  std::size_t tokens_ = 0;

  // Kept from the forward.
  Buffer x_, normed_, query_, key_, value_;    // before the norms of heads
  Buffer query_turned_, key_turned_;           // after norm and rotation
  Buffer probabilities_, context_, residual_;  // residual: x + attention
  Buffer post_normed_;
  std::vector<float> input_rms_, query_rms_, key_rms_, post_rms_;
  moe::Routing routing_;
  std::vector<ExpertRows> rows_;     // of each expert
  std::vector<std::size_t> row_of_;  // of each (token, choice)
  Buffer expert_in_, gate_, up_, activated_, expert_out_;

  // Kept from the input gradient for the weight gradient.
  std::vector<float> dweights_;
  Buffer dexpert_out_, dgate_, dup_, dexpert_in_;
  Buffer dlogits_, dpost_normed_, dresidual_;
  Buffer dquery_turned_, dkey_turned_, dquery_, dkey_, dvalue_, dnormed_;
};

}  // namespace wsync::training
