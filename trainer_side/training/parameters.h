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

// Owns one float32 array for each parameter, by the name that Hugging Face gives it. Views stay
// valid as long as it lives, also when it is moved.
class ParameterSet {
 public:
  // All zero.
  explicit ParameterSet(const std::vector<moe::Parameter>& parameters);

  [[nodiscard]] const std::vector<moe::Parameter>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool contains(const std::string& name) const { return values_.contains(name); }
  // The parameter must be there.
  [[nodiscard]] std::span<float> values(const std::string& name);
  [[nodiscard]] std::span<const float> values(const std::string& name) const;
  // As [shape[0], shape[1]], or [1, shape[0]] of a vector.
  [[nodiscard]] moe::Matrix matrix(const std::string& name);
  [[nodiscard]] moe::ConstMatrix matrix(const std::string& name) const;

  [[nodiscard]] LayerWeights layer(const moe::ModelSpec& spec, std::uint32_t layer) const;
  [[nodiscard]] LayerGradients layer_gradients(const moe::ModelSpec& spec, std::uint32_t layer);

 private:
  [[nodiscard]] const moe::Parameter& parameter(const std::string& name) const;
  std::vector<moe::Parameter> parameters_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::size_t> index_;
};

// Normal values of the given standard deviation for matrices, ones for norms; the same for the same
// seed, whatever other parameters there are: each parameter's come from the seed and its name.
void initialise(ParameterSet& parameters, std::uint64_t seed, double standard_deviation = 0.02);

}  // namespace wsync::training
