// The values of a model's parameters, or of their gradients, by layer: their owner and their
// layout.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/matrix.h"
#include "shared/moe/model_spec.h"

namespace wsync::training {

// Views of the parameters of one expert.
template <class Matrix>
struct ExpertViews {
  Matrix gate, up, down;
};
// Views of one decoder layer. Vectors are matrices of one row.
template <class Matrix>
struct LayerViews {
  Matrix input_norm, query, key, value, output, query_norm, key_norm, post_norm, router;
  std::vector<ExpertViews<Matrix>> experts;
};
using LayerWeights = LayerViews<moe::ConstMatrix>;
using LayerGradients = LayerViews<moe::Matrix>;
using ExpertGradients = std::vector<ExpertViews<moe::Matrix>>;

// Experts [first, first + count).
struct ExpertRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Owns the float32 values of parameters, which have their Hugging Face names. The values are in one
// array, in the order of the parameters. Views stay valid as long as the set lives, also after it
// was moved.
class ParameterSet {
 public:
  // All values are zero.
  explicit ParameterSet(const std::vector<moe::Parameter>& parameters);

  [[nodiscard]] const std::vector<moe::Parameter>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool contains(const std::string& name) const { return index_.contains(name); }
  // The values of all parameters.
  [[nodiscard]] std::span<float> all() noexcept { return values_; }
  [[nodiscard]] std::span<const float> all() const noexcept { return values_; }
  // Offset of parameter i in all(). If i is the number of parameters, the end of the last one.
  [[nodiscard]] std::size_t offset(std::size_t i) const { return offsets_[i]; }
  // The parameter must exist.
  [[nodiscard]] std::span<float> values(const std::string& name);
  [[nodiscard]] std::span<const float> values(const std::string& name) const;
  // A matrix [shape[0], shape[1]], or [1, shape[0]] for a vector.
  [[nodiscard]] moe::Matrix matrix(const std::string& name);
  [[nodiscard]] moe::ConstMatrix matrix(const std::string& name) const;

 private:
  [[nodiscard]] std::size_t index_of(const std::string& name) const;
  std::vector<moe::Parameter> parameters_;
  std::vector<std::size_t> offsets_;
  std::vector<float> values_;
  std::map<std::string, std::size_t> index_;
};

// Returns the views of one layer. `dense` has all its parameters except the experts; `experts` has
// the experts in `range`. Both may be the same set.
[[nodiscard]] LayerWeights layer_weights(std::uint32_t layer, const ParameterSet& dense,
                                         const ParameterSet& experts, ExpertRange range);
// Returns the views of one layer without its experts.
[[nodiscard]] LayerGradients layer_gradients(std::uint32_t layer, ParameterSet& dense);
[[nodiscard]] ExpertGradients expert_gradients(std::uint32_t layer, ParameterSet& experts,
                                               ExpertRange range);

// Sets matrices to normal values of the given standard deviation, and norms to 1. The values of a
// parameter depend only on the seed and its name, not on which other parameters exist.
void initialise(ParameterSet& parameters, std::uint64_t seed, double standard_deviation = 0.02);

}  // namespace wsync::training
