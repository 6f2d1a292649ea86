// StopScanner: finds sequences of tokens that end an output, as it grows.
#pragma once

#include <cstddef>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::generation {

// Follows each stop with the automaton of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977): the
// work of a token does not grow with the length of the stops.
class StopScanner {
 public:
  struct Outcome {
    std::size_t matched = 0;  // tokens of the stop that ends here, the longest such; 0: none does
    std::size_t held = 0;     // last tokens that are the beginning of a stop, the most such
  };

  // Copies `stops`, none of which is empty.
  explicit StopScanner(const std::vector<std::vector<Token>>& stops);
  // The output's next token; none follows one that a stop ended with.
  [[nodiscard]] Outcome push(Token token);

 private:
  struct Stop {
    std::vector<Token> tokens;
    // fallback[n]: the longest beginning of `tokens`, shorter than n, that its first n end with.
    std::vector<std::size_t> fallback;
    std::size_t have = 0;  // tokens of it that the output ends with
  };
  // The beginning of `stop` that the output ends with once `token` has followed `have` of it.
  [[nodiscard]] static std::size_t follow(const Stop& stop, std::size_t have, Token token);

  std::vector<Stop> stops_;
};

}  // namespace wsync::engine::generation
