// The values of a model's parameters, or of their gradients, by layer: who owns them and where each
// one lies.
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

// Where the parameters of one expert lie.
template <class Matrix>
struct ExpertViews {
  Matrix gate, up, down;
};
// Of one decoder layer. Vectors are matrices of one row.
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

// Owns the float32 values of parameters, by the names that Hugging Face gives them: one array, in
// which they follow each other in their order. Views stay valid as long as it lives, also when it
// is moved.
class ParameterSet {
 public:
  // All zero.
  explicit ParameterSet(const std::vector<moe::Parameter>& parameters);

  [[nodiscard]] const std::vector<moe::Parameter>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool contains(const std::string& name) const { return index_.contains(name); }
  // Of all parameters.
  [[nodiscard]] std::span<float> all() noexcept { return values_; }
  [[nodiscard]] std::span<const float> all() const noexcept { return values_; }
  // Where parameter i begins in all(); for i = their number, where the last one ends.
  [[nodiscard]] std::size_t offset(std::size_t i) const { return offsets_[i]; }
  // The parameter must be there.
  [[nodiscard]] std::span<float> values(const std::string& name);
  [[nodiscard]] std::span<const float> values(const std::string& name) const;
  // As [shape[0], shape[1]], or [1, shape[0]] of a vector.
  [[nodiscard]] moe::Matrix matrix(const std::string& name);
  [[nodiscard]] moe::ConstMatrix matrix(const std::string& name) const;

 private:
  [[nodiscard]] std::size_t index_of(const std::string& name) const;
  std::vector<moe::Parameter> parameters_;
  std::vector<std::size_t> offsets_;
  std::vector<float> values_;
  std::map<std::string, std::size_t> index_;
};

// Views of one layer. `dense` has its parameters but those of experts, and `experts` those of the
// experts in `range`; both may be one set.
[[nodiscard]] LayerWeights layer_weights(std::uint32_t layer, const ParameterSet& dense,
                                         const ParameterSet& experts, ExpertRange range);
// Without experts.
[[nodiscard]] LayerGradients layer_gradients(std::uint32_t layer, ParameterSet& dense);
[[nodiscard]] ExpertGradients expert_gradients(std::uint32_t layer, ParameterSet& experts,
                                               ExpertRange range);

// Normal values of the given standard deviation for matrices, ones for norms; the same for the same
// seed, whatever other parameters there are: each parameter's come from the seed and its name.
void initialise(ParameterSet& parameters, std::uint64_t seed, double standard_deviation = 0.02);

}  // namespace wsync::training
