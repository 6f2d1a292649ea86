#include "shared/weights/leaf_check.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "shared/base/format.h"
#include "shared/base/stream_copy.h"

namespace wsync {

Result<std::vector<WordSum>> sum_leaves(const LeafTable& leaves, std::span<const std::byte> arena,
                                        unsigned threads, std::stop_token stop) {
  std::vector<WordSum> sums(leaves.all().size());
  std::atomic<std::size_t> next = 0;
  const auto sum = [&] {
    for (std::size_t i = next++; i < sums.size() && !stop.stop_requested(); i = next++) {
      const LeafPlace& leaf = leaves.all()[i];
      sums[i] = word_sum(arena.subspan(leaf.arena_offset, leaf.bytes), leaf.place);
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(sum);
    sum();
  }
  if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "the check was stopped");
  return sums;
}

Result<> compare_leaves(const Manifest& manifest, const LeafTable& leaves,
                        std::span<const WordSum> expected, std::span<const WordSum> found) {
  const auto [first, other] = std::ranges::mismatch(expected, found);
  if (first == expected.end() && other == found.end()) return {};
  const auto index = static_cast<std::size_t>(first - expected.begin());
  if (index >= leaves.all().size())
    return fail(ErrorCode::kDigestMismatch, fmt::format("there are sums of {} leaves, expected {}",
                                                        found.size(), expected.size()));
  const LeafPlace& leaf = leaves.all()[index];
  return fail(ErrorCode::kDigestMismatch,
              fmt::format("tensor '{}': bytes {} to {} are not those that were published",
                          manifest.tensor(leaf.tensor).name, leaf.place.position,
                          leaf.place.position + leaf.bytes));
}

}  // namespace wsync
