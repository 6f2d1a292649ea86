#include "trainer_side/training/gradients.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace wsync::training {

using moe::ConstMatrix;
using moe::Into;
using moe::Matrix;

void rms_norm_input_gradient(ConstMatrix dy, ConstMatrix x, std::span<const float> weight,
                             std::span<const float> inverse_rms, Matrix dx, Into into) {
  for (std::size_t i = 0; i < x.rows(); ++i) {
    const std::span<const float> from = x.row(i);
    const std::span<const float> gradient = dy.row(i);
    double sum = 0;
    for (std::size_t j = 0; j < from.size(); ++j)
      sum += static_cast<double>(gradient[j]) * static_cast<double>(weight[j]) *
             static_cast<double>(from[j]);
    // With y_j = x_j r w_j and r = (mean(x^2) + epsilon)^(-1/2):
    // dx_j = dy_j w_j r - x_j r^3 / n * sum_k(dy_k w_k x_k).
    const double r = inverse_rms[i];
    const auto along = static_cast<float>(sum * r * r * r / static_cast<double>(from.size()));
    const std::span<float> to = dx.row(i);
    for (std::size_t j = 0; j < from.size(); ++j) {
      const float value = gradient[j] * weight[j] * inverse_rms[i] - from[j] * along;
      to[j] = into == Into::kAdd ? to[j] + value : value;
    }
  }
}

void rms_norm_weight_gradient(ConstMatrix dy, ConstMatrix x, std::span<const float> inverse_rms,
                              std::span<float> dweight) {
  for (std::size_t i = 0; i < x.rows(); ++i) {
    const std::span<const float> from = x.row(i);
    const std::span<const float> gradient = dy.row(i);
    for (std::size_t j = 0; j < from.size(); ++j)
      dweight[j] += gradient[j] * from[j] * inverse_rms[i];
  }
}

void attention_gradient(const moe::AttentionShape& shape, ConstMatrix dout, ConstMatrix q,
                        ConstMatrix k, ConstMatrix v, ConstMatrix probabilities, Matrix dq,
                        Matrix dk, Matrix dv) {
  const std::size_t group = shape.heads / shape.key_value_heads;
  const std::size_t dim = shape.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  for (Matrix gradient : {dq, dk, dv})
    std::fill(gradient.values().begin(), gradient.values().end(), 0.0F);
  std::vector<float> dscore(shape.sequence);
  for (std::size_t token = 0; token < q.rows(); ++token) {
    const std::size_t sequence = token / shape.sequence;
    const std::size_t first = sequence * shape.sequence;
    const std::size_t position = token - first;
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::size_t kv = h / group * dim;
      const std::span<const float> row =
          probabilities.row((sequence * shape.heads + h) * shape.sequence + position);
      const std::span<const float> gradient = dout.row(token).subspan(h * dim, dim);
      double mean = 0;
      for (std::size_t other = 0; other <= position; ++other) {
        const std::span<const float> value = v.row(first + other).subspan(kv, dim);
        double sum = 0;
        for (std::size_t i = 0; i < dim; ++i)
          sum += static_cast<double>(gradient[i]) * static_cast<double>(value[i]);
        dscore[other] = static_cast<float>(sum);
        mean += static_cast<double>(row[other]) * sum;
      }
      const std::span<const float> query = q.row(token).subspan(h * dim, dim);
      const std::span<float> dquery = dq.row(token).subspan(h * dim, dim);
      for (std::size_t other = 0; other <= position; ++other) {
        // Gradient of the softmax p by its scores: ds_i = p_i (dp_i - sum_j(p_j dp_j)).
        const float ds = row[other] * (dscore[other] - static_cast<float>(mean)) * scale;
        const std::span<const float> key = k.row(first + other).subspan(kv, dim);
        const std::span<float> dkey = dk.row(first + other).subspan(kv, dim);
        const std::span<float> dvalue = dv.row(first + other).subspan(kv, dim);
        for (std::size_t i = 0; i < dim; ++i) {
          dquery[i] += ds * key[i];
          dkey[i] += ds * query[i];
          dvalue[i] += row[other] * gradient[i];
        }
      }
    }
  }
}

void route_gradient(const moe::Routing& routing, std::span<const float> dweights, bool normalise,
                    Matrix dlogits) {
  const std::size_t chosen = routing.experts_per_token;
  for (std::size_t token = 0; token < dlogits.rows(); ++token) {
    const std::span<const float> probabilities =
        ConstMatrix(routing.probabilities, dlogits.rows(), dlogits.columns()).row(token);
    const std::span<float> gradient = dlogits.row(token);
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    float sum = 0;       // sum of the chosen probabilities
    float weighted = 0;  // weighted sum of the gradients of the weights
    for (std::size_t i = token * chosen; i < (token + 1) * chosen; ++i) {
      sum += probabilities[routing.experts[i]];
      weighted += dweights[i] * routing.weights[i];
    }
    double mean = 0;
    for (std::size_t i = token * chosen; i < (token + 1) * chosen; ++i) {
      const std::uint32_t expert = routing.experts[i];
      // With w_i = p_i / sum over the chosen: dp_i = (dw_i - sum_j(dw_j w_j)) / sum.
      gradient[expert] = normalise ? (dweights[i] - weighted) / sum : dweights[i];
      mean += static_cast<double>(gradient[expert]) * static_cast<double>(probabilities[expert]);
    }
    for (std::size_t e = 0; e < gradient.size(); ++e)
      gradient[e] = probabilities[e] * (gradient[e] - static_cast<float>(mean));
  }
}

void swiglu_gradient(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate, Matrix dup) {
  for (std::size_t i = 0; i < gate.values().size(); ++i) {
    const float g = gate.values()[i];
    const float sigmoid = 1.0F / (1.0F + std::exp(-g));
    const float silu = g * sigmoid;
    const float d = dout.values()[i];
    dup.values()[i] = d * silu;
    dgate.values()[i] = d * up.values()[i] * (sigmoid + silu * (1.0F - sigmoid));
  }
}

void embed_gradient(ConstMatrix dout, std::span<const std::uint32_t> tokens, Matrix dtable) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const float> from = dout.row(i);
    const std::span<float> to = dtable.row(tokens[i]);
    for (std::size_t j = 0; j < from.size(); ++j) to[j] += from[j];
  }
}

}  // namespace wsync::training
