// Forward operators of the reference model in float32. Each is a function from matrices to
// matrices. Values that the backward pass needs are outputs too.
//
// Sums have a fixed order and each row is computed independently. The bits of a row do not depend
// on the other rows, the thread or the processor, except through the C library's functions
// (arithmetic.h). Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/moe/matrix.h"

namespace wsync::moe {

// y = x / sqrt(mean(x^2) + epsilon) * weight, per row (Zhang and Sennrich 2019, arXiv 1910.07467).
// `inverse_rms` receives one value per row. `y` may be x itself.
void rms_norm(ConstMatrix x, std::span<const float> weight, float epsilon, Matrix y,
              std::span<float> inverse_rms);

// Rotary position embedding (Su et al. 2021, arXiv 2104.09864). As in transformers, element i of
// the first half of a head is paired with element i of the second half.
class RotaryTable {
 public:
  // Computes the angles of positions [0, positions): position * theta^(-2i / head_dim).
  RotaryTable(std::size_t head_dim, std::size_t positions, double theta);
  // Rotates each head of each row of x[tokens, heads * head_dim] in place by the angles of its
  // position, which is row modulo `sequence`. kGradient rotates backwards.
  enum class Direction : bool { kForward, kGradient };
  void turn(Matrix x, std::size_t sequence, Direction direction) const;
  // Rotates forwards. Row i uses the angles of positions[i], which must be inside of the table.
  void turn(Matrix x, std::span<const std::uint32_t> positions) const;

 private:
  void turn_row(std::span<float> row, std::size_t position, float sign) const;

  std::size_t half_;
  std::size_t positions_;
  std::vector<float> cosines_, sines_;  // [positions, half]
};

struct AttentionShape {
  std::size_t sequence = 0;  // tokens per sequence; rows are whole sequences
  std::size_t heads = 0;
  std::size_t key_value_heads = 0;
  std::size_t head_dim = 0;
};
// Causal grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245) with softmax(q k^T /
// sqrt(head_dim)). Shapes: q and out [tokens, heads * head_dim]; k and v [tokens, key_value_heads *
// head_dim]; `probabilities` [sequences * heads * sequence, sequence], zero above the diagonal.
void attention(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v, Matrix out,
               Matrix probabilities);

// The experts of each token and their weights.
struct Routing {
  std::size_t experts_per_token = 0;
  std::vector<std::uint32_t> experts;  // [tokens * experts_per_token], highest weight first
  std::vector<float> weights;          // same shape as experts
  std::vector<float> probabilities;    // [tokens * experts]
};
// Computes the softmax over all experts and selects those with the highest logits; of equal ones
// the lower number. `normalise`: divide the weights of a token by their sum.
[[nodiscard]] Routing route(ConstMatrix logits, std::size_t experts_per_token, bool normalise);

// out = silu(gate) * up (Shazeer 2020, arXiv 2002.05202). `out` may be gate itself.
void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out);

// Row i of out = row tokens[i] of table.
void embed(ConstMatrix table, std::span<const std::uint32_t> tokens, Matrix out);

// Returns the sum over rows of -log softmax(logits)[target], computed in double in row order. If
// dlogits is not empty, it receives the gradient times `scale`.
[[nodiscard]] double cross_entropy(ConstMatrix logits, std::span<const std::uint32_t> targets,
                                   float scale, Matrix dlogits);

}  // namespace wsync::moe
