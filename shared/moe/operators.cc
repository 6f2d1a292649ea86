#include "shared/moe/operators.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace wsync::moe {
namespace {

// Sums of one row are computed in double. Rows are short, and the order of the terms is fixed, so
// the bits are the same everywhere.
double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Computes the softmax in place. The row must not be empty.
void softmax(std::span<float> row) {
  // Subtracting the maximum keeps exp() from overflowing. The factor cancels out in the quotient.
  const float highest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float& value : row) {
    value = std::exp(value - highest);
    sum += value;
  }
  const float inverse = static_cast<float>(1 / sum);
  for (float& value : row) value *= inverse;
}

std::span<const float> head(ConstMatrix x, std::size_t token, std::size_t h, std::size_t head_dim) {
  return x.row(token).subspan(h * head_dim, head_dim);
}

}  // namespace

void rms_norm(ConstMatrix x, std::span<const float> weight, float epsilon, Matrix y,
              std::span<float> inverse_rms) {
  WSYNC_CHECK(weight.size() == x.columns() && inverse_rms.size() == x.rows(),
              "the shapes of a norm fit");
  for (std::size_t i = 0; i < x.rows(); ++i) {
    const std::span<const float> from = x.row(i);
    const double mean = dot(from, from) / static_cast<double>(x.columns());
    inverse_rms[i] = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(epsilon)));
    const std::span<float> to = y.row(i);
    for (std::size_t j = 0; j < from.size(); ++j) to[j] = from[j] * inverse_rms[i] * weight[j];
  }
}

RotaryTable::RotaryTable(std::size_t head_dim, std::size_t positions, double theta)
    : half_(head_dim / 2), positions_(positions) {
  std::vector<double> frequencies;
  for (std::size_t i = 0; i < half_; ++i)
    frequencies.push_back(
        std::pow(theta, -(2 * static_cast<double>(i) / static_cast<double>(head_dim))));
  cosines_.reserve(positions * half_);
  sines_.reserve(positions * half_);
  for (std::size_t position = 0; position < positions; ++position)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
}

void RotaryTable::turn_row(std::span<float> row, std::size_t position, float sign) const {
  const std::size_t at = position * half_;
  for (std::size_t first = 0; first < row.size(); first += 2 * half_)
    for (std::size_t i = 0; i < half_; ++i) {
      const float a = row[first + i];
      const float b = row[first + half_ + i];
      const float cosine = cosines_[at + i];
      const float sine = sign * sines_[at + i];
      row[first + i] = a * cosine - b * sine;
      row[first + half_ + i] = b * cosine + a * sine;
    }
}

void RotaryTable::turn(Matrix x, std::size_t sequence, Direction direction) const {
  WSYNC_CHECK(sequence <= positions_ && x.columns() % (2 * half_) == 0,
              "the table has the positions and the heads of what it turns");
  const float sign = direction == Direction::kForward ? 1.0F : -1.0F;
  for (std::size_t token = 0; token < x.rows(); ++token)
    turn_row(x.row(token), token % sequence, sign);
}

void RotaryTable::turn(Matrix x, std::span<const std::uint32_t> positions) const {
  WSYNC_CHECK(positions.size() == x.rows() && x.columns() % (2 * half_) == 0,
              "the table has the heads of what it turns, and each row a position");
  for (std::size_t i = 0; i < x.rows(); ++i) {
    WSYNC_CHECK(positions[i] < positions_, "the table has the positions of what it turns");
    turn_row(x.row(i), positions[i], 1.0F);
  }
}

void attention(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v, Matrix out,
               Matrix probabilities) {
  const std::size_t group = shape.heads / shape.key_value_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  for (std::size_t token = 0; token < q.rows(); ++token) {
    const std::size_t sequence = token / shape.sequence;
    const std::size_t first = sequence * shape.sequence;
    const std::size_t position = token - first;
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::span<float> row =
          probabilities.row((sequence * shape.heads + h) * shape.sequence + position);
      const std::span<const float> query = head(q, token, h, shape.head_dim);
      const std::span<float> seen = row.subspan(0, position + 1);
      for (std::size_t other = 0; other <= position; ++other)
        seen[other] =
            static_cast<float>(dot(query, head(k, first + other, h / group, shape.head_dim))) *
            scale;
      softmax(seen);
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(seen.size()), row.end(), 0.0F);
      const std::span<float> to = out.row(token).subspan(h * shape.head_dim, shape.head_dim);
      std::fill(to.begin(), to.end(), 0.0F);
      for (std::size_t other = 0; other <= position; ++other) {
        const std::span<const float> value = head(v, first + other, h / group, shape.head_dim);
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += seen[other] * value[i];
      }
    }
  }
}

Routing route(ConstMatrix logits, std::size_t experts_per_token, bool normalise) {
  Routing routing{.experts_per_token = experts_per_token,
                  .experts = {},
                  .weights = {},
                  .probabilities = {logits.values().begin(), logits.values().end()}};
  std::vector<std::uint32_t> order(logits.columns());
  // Experts are selected by logits and not by probabilities. exp() may differ in the last bit
  // between C libraries, and ranks that select independently must agree.
  for (std::size_t token = 0; token < logits.rows(); ++token) {
    const std::span<float> row =
        Matrix(routing.probabilities, logits.rows(), logits.columns()).row(token);
    const std::span<const float> from = logits.row(token);
    softmax(row);
    std::iota(order.begin(), order.end(), 0U);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(experts_per_token),
                      order.end(), [&](std::uint32_t a, std::uint32_t b) {
                        return from[a] != from[b] ? from[a] > from[b] : a < b;
                      });
    float sum = 0;
    for (std::size_t i = 0; i < experts_per_token; ++i) sum += row[order[i]];
    for (std::size_t i = 0; i < experts_per_token; ++i) {
      routing.experts.push_back(order[i]);
      routing.weights.push_back(normalise ? row[order[i]] / sum : row[order[i]]);
    }
  }
  return routing;
}

void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) {
  const std::span<const float> g = gate.values();
  for (std::size_t i = 0; i < g.size(); ++i)
    out.values()[i] = g[i] / (1.0F + std::exp(-g[i])) * up.values()[i];
}

void embed(ConstMatrix table, std::span<const std::uint32_t> tokens, Matrix out) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const float> from = table.row(tokens[i]);
    std::copy(from.begin(), from.end(), out.row(i).begin());
  }
}

double cross_entropy(ConstMatrix logits, std::span<const std::uint32_t> targets, float scale,
                     Matrix dlogits) {
  double loss = 0;
  for (std::size_t i = 0; i < logits.rows(); ++i) {
    const std::span<const float> row = logits.row(i);
    const float highest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value - highest));
    loss += std::log(sum) - static_cast<double>(row[targets[i]] - highest);
    if (dlogits.values().empty()) continue;
    const std::span<float> gradient = dlogits.row(i);
    for (std::size_t j = 0; j < row.size(); ++j)
      gradient[j] =
          scale * static_cast<float>(std::exp(static_cast<double>(row[j] - highest)) / sum);
    gradient[targets[i]] -= scale;
  }
  return loss;
}

}  // namespace wsync::moe
