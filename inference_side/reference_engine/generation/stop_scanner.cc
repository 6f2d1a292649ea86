#include "inference_side/reference_engine/generation/stop_scanner.h"

#include <algorithm>

#include "shared/base/check.h"

namespace wsync::engine::generation {

StopScanner::StopScanner(const std::vector<std::vector<Token>>& stops) {
  stops_.reserve(stops.size());
  for (const std::vector<Token>& tokens : stops) {
    WSYNC_CHECK(!tokens.empty(), "a stop has at least one token");
    Stop stop{.tokens = tokens, .fallback = std::vector<std::size_t>(tokens.size() + 1)};
    for (std::size_t n = 1; n < tokens.size(); ++n)
      stop.fallback[n + 1] = follow(stop, stop.fallback[n], tokens[n]);
    stops_.push_back(std::move(stop));
  }
}

std::size_t StopScanner::follow(const Stop& stop, std::size_t have, Token token) {
  while (have > 0 && stop.tokens[have] != token) have = stop.fallback[have];
  return stop.tokens[have] == token ? have + 1 : 0;
}

StopScanner::Outcome StopScanner::push(Token token) {
  Outcome outcome;
  for (Stop& stop : stops_) {
    stop.have = follow(stop, stop.have, token);
    if (stop.have == stop.tokens.size()) outcome.matched = std::max(outcome.matched, stop.have);
    outcome.held = std::max(outcome.held, stop.have);
  }
  return outcome;
}

}  // namespace wsync::engine::generation
