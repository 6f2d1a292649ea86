#include "inference_side/reference_engine/generation/attention.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "shared/moe/lanes.h"

namespace wsync::engine::generation {
namespace {

using moe::kLanes;
using moe::Lanes;

[[gnu::always_inline]] inline float dot_of_head(const float* a, const float* b, std::size_t count) {
  Lanes sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes of_a, of_b;
    moe::load_lanes(a + i, of_a);
    moe::load_lanes(b + i, of_b);
    sums += of_a * of_b;
  }
  float sum = moe::sum_of(sums);
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// to += factor * from.
[[gnu::always_inline]] inline void add_scaled(const float* from, float factor, float* to,
                                              std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes added, sum;
    moe::load_lanes(from + i, added);
    moe::load_lanes(to + i, sum);
    sum += factor * added;
    moe::store_lanes(sum, to + i);
  }
  for (; i < count; ++i) to[i] += factor * from[i];
}

// Replaces each score by exp(score - highest). Returns their sum, computed in double.
double exponentials(std::span<float> scores) {
  const float highest = *std::ranges::max_element(scores);
  double sum = 0;
  for (float& score : scores) {
    score = std::exp(score - highest);
    sum += static_cast<double>(score);
  }
  return sum;
}

// Computes one token and one head: out[head_dim] from the positions that the token sees. There is
// one score for each of these positions.
[[gnu::always_inline]] inline void attend_head(const KeyValueCache& cache, std::uint32_t layer,
                                               const SequenceSlice& slice,
                                               std::uint32_t key_value_head,
                                               std::span<const float> query, std::span<float> out,
                                               std::span<float> scores) {
  const std::size_t head_dim = query.size();
  const std::size_t block_tokens = cache.shape().block_tokens;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (std::size_t first = 0, i = 0; first < scores.size(); first += block_tokens, ++i) {
    const float* keys = cache.keys(layer, slice.blocks[i], key_value_head).data();
    const std::size_t count = std::min(block_tokens, scores.size() - first);
    for (std::size_t at = 0; at < count; ++at)
      scores[first + at] = scale * dot_of_head(query.data(), keys + at * head_dim, head_dim);
  }
  const auto inverse = static_cast<float>(1 / exponentials(scores));
  std::ranges::fill(out, 0.0F);
  for (std::size_t first = 0, i = 0; first < scores.size(); first += block_tokens, ++i) {
    const float* values = cache.values(layer, slice.blocks[i], key_value_head).data();
    const std::size_t count = std::min(block_tokens, scores.size() - first);
    for (std::size_t at = 0; at < count; ++at)
      add_scaled(values + at * head_dim, scores[first + at] * inverse, out.data(), head_dim);
  }
}

[[gnu::always_inline]] inline void attend_slice(const KeyValueCache& cache, std::uint32_t layer,
                                                const SequenceSlice& slice,
                                                const moe::ConstMatrix& query,
                                                const moe::Matrix& out, std::span<float> scores) {
  const std::size_t head_dim = cache.shape().head_dim;
  const std::size_t heads = query.columns() / head_dim;
  const std::size_t group = heads / cache.shape().key_value_heads;
  for (std::size_t token = 0; token < slice.tokens.size(); ++token)
    for (std::size_t head = 0; head < heads; ++head)
      attend_head(cache, layer, slice, static_cast<std::uint32_t>(head / group),
                  query.row(token).subspan(head * head_dim, head_dim),
                  out.row(token).subspan(head * head_dim, head_dim),
                  scores.first(slice.first_position + token + 1));
}

WSYNC_FOR_AVX2 void attend_slice_avx2(const KeyValueCache& cache, std::uint32_t layer,
                                      const SequenceSlice& slice, const moe::ConstMatrix& query,
                                      const moe::Matrix& out, std::span<float> scores) {
  attend_slice(cache, layer, slice, query, out, scores);
}

}  // namespace

void attend(const KeyValueCache& cache, std::uint32_t layer, const SequenceSlice& slice,
            moe::ConstMatrix query, moe::Matrix out, std::vector<float>& scores) {
  scores.resize(std::max(scores.size(), slice.first_position + slice.tokens.size()));
  if (moe::has_avx2())
    attend_slice_avx2(cache, layer, slice, query, out, scores);
  else
    attend_slice(cache, layer, slice, query, out, scores);
}

}  // namespace wsync::engine::generation
