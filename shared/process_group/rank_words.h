// Names of ranks in error messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wsync::collective {

// Returns "rank 3" or "ranks 1, 2 and 3".
[[nodiscard]] inline std::string ranks_in_words(const std::vector<std::uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

// Describes a wait that timed out on `rank`: it waited for messages from some ranks, and for others
// to receive its messages.
[[nodiscard]] inline std::string late_in_words(std::uint32_t rank,
                                               const std::vector<std::uint32_t>& silent,
                                               const std::vector<std::uint32_t>& full) {
  std::string text = "rank " + std::to_string(rank) + " has waited until its deadline";
  if (!silent.empty()) text += "; some messages have not arrived from " + ranks_in_words(silent);
  if (!full.empty()) text += "; some messages were not received by " + ranks_in_words(full);
  return text;
}

}  // namespace wsync::collective
