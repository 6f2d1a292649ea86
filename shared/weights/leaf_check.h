// Reads the bytes of a version and compares the sums of their leaves.
//
// Thread: any; the functions block.
#pragma once

#include <span>
#include <stop_token>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/manifest.h"

namespace wsync {

// Returns the sums of all leaves of an arena, read by so many threads. kCancelled, after the leaf
// that each thread reads, when `stop` is requested.
[[nodiscard]] Result<std::vector<WordSum>> sum_leaves(const LeafTable& leaves,
                                                      std::span<const std::byte> arena,
                                                      unsigned threads, std::stop_token stop = {});
// kDigestMismatch, with the first tensor whose sums differ.
[[nodiscard]] Result<> compare_leaves(const Manifest& manifest, const LeafTable& leaves,
                                      std::span<const WordSum> expected,
                                      std::span<const WordSum> found);

}  // namespace wsync
