// StopScanner: finds stop sequences in an output while it grows.
#pragma once

#include <cstddef>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::generation {

// Matches each stop with the automaton of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977). The
// cost of a token therefore does not grow with the length of the stops.
class StopScanner {
 public:
  struct Outcome {
    std::size_t matched = 0;  // tokens of the longest stop that ends here; 0: no stop ends here
    std::size_t held = 0;     // maximum number of last tokens that form the beginning of a stop
  };

  // Copies `stops`. None may be empty.
  explicit StopScanner(const std::vector<std::vector<Token>>& stops);
  // Handles the next token of the output. No token may follow the one that completed a stop.
  [[nodiscard]] Outcome push(Token token);

 private:
  struct Stop {
    std::vector<Token> tokens;
    // fallback[n]: length of the longest prefix of `tokens`, shorter than n, that is also a suffix
    // of the first n tokens.
    std::vector<std::size_t> fallback;
    std::size_t have = 0;  // length of the stop's prefix that the output ends with
  };
  // Length of the longest prefix of `stop` that the output ends with, after `token` follows a
  // prefix of length `have`.
  [[nodiscard]] static std::size_t follow(const Stop& stop, std::size_t have, Token token);

  std::vector<Stop> stops_;
};

}  // namespace wsync::engine::generation
