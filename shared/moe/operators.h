// The forward operators of the reference model, in float32, each a function from matrices to
// matrices. What a backward needs again is an output too.
//
// Sums run in a fixed order, and each row is computed by itself: the same row gives the same bits
// among any others and on any thread, and on any processor but for the C library's functions
// (arithmetic.h). Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/moe/matrix.h"

namespace wsync::moe {

// y = x / sqrt(mean(x^2) + epsilon) * weight, row by row (Zhang and Sennrich 2019, arXiv
// 1910.07467). `inverse_rms`: one of each row. `y` may be x itself.
void rms_norm(ConstMatrix x, std::span<const float> weight, float epsilon, Matrix y,
              std::span<float> inverse_rms);

// Rotary position embedding (Su et al. 2021, arXiv 2104.09864) with the halves of a head as pairs,
// as transformers has it.
class RotaryTable {
 public:
  // Angles of positions [0, positions): position * theta^(-2i / head_dim).
  RotaryTable(std::size_t head_dim, std::size_t positions, double theta);
  // Turns each head of each row of x[tokens, heads * head_dim] in place by the angles of its
  // position, which is row modulo `sequence`; backwards for the gradient.
  enum class Direction : bool { kForward, kGradient };
  void turn(Matrix x, std::size_t sequence, Direction direction) const;
  // The same forwards, row i by the angles of positions[i], which the table has.
  void turn(Matrix x, std::span<const std::uint32_t> positions) const;

 private:
  void turn_row(std::span<float> row, std::size_t position, float sign) const;

  std::size_t half_;
  std::size_t positions_;
  std::vector<float> cosines_, sines_;  // [positions, half]
};

struct AttentionShape {
  std::size_t sequence = 0;  // tokens of one sequence; rows are whole sequences
  std::size_t heads = 0;
  std::size_t key_value_heads = 0;
  std::size_t head_dim = 0;
};
// Causal grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245) with softmax(q k^T /
// sqrt(head_dim)). q[tokens, heads * head_dim], k and v[tokens, key_value_heads * head_dim],
// out as q. `probabilities`: [sequences * heads * sequence, sequence], zero above the diagonal.
void attention(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v, Matrix out,
               Matrix probabilities);

// Which experts each token goes to, and with what weight.
struct Routing {
  std::size_t experts_per_token = 0;
  std::vector<std::uint32_t> experts;  // [tokens * experts_per_token], the highest weight first
  std::vector<float> weights;          // the same
  std::vector<float> probabilities;    // [tokens * experts]
};
// Softmax over all experts, then those with the highest logits; of two that are equal the lower
// number. `normalise`: a token's weights are divided by their sum.
[[nodiscard]] Routing route(ConstMatrix logits, std::size_t experts_per_token, bool normalise);

// out = silu(gate) * up (Shazeer 2020, arXiv 2002.05202). `out` may be gate itself.
void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out);

// Row i of out = row tokens[i] of table.
void embed(ConstMatrix table, std::span<const std::uint32_t> tokens, Matrix out);

// Sum over rows of -log softmax(logits)[target], in double, rows in order; dlogits (if not empty)
// becomes its gradient times `scale`.
[[nodiscard]] double cross_entropy(ConstMatrix logits, std::span<const std::uint32_t> targets,
                                   float scale, Matrix dlogits);

}  // namespace wsync::moe
