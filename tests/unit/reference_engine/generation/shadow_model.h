// ShadowModel: stands for the model in tests of the scheduler. Its logits are a pure function of
// the version and of all tokens of a sequence, and it has the tokens before a slice from nowhere
// but the slice's blocks, where earlier steps have left them. So a wrong block, place or order
// gives another output than the same request alone.
#pragma once

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "inference_side/reference_engine/generation/scheduler.h"
#include "shared/base/format.h"

namespace wsync::engine::generation {

// What the keys and values of a token depend on: it and all tokens before it.
using History = std::uint64_t;

[[nodiscard]] inline History mixed(std::uint64_t x) {
  x ^= x >> 31U;
  x *= 0x9E3779B97F4A7C15U;
  x ^= x >> 29U;
  x *= 0xD6E8FEB86659FD93U;
  return x ^ (x >> 32U);
}
[[nodiscard]] inline History after(History before, Token token) {
  return mixed(before * 31 + token + 1);
}
[[nodiscard]] inline History history_of(std::span<const Token> tokens) {
  History history = 0;
  for (const Token token : tokens) history = after(history, token);
  return history;
}

// From -3 to 3 in quarters, so that some are equal.
[[nodiscard]] inline std::vector<float> shadow_logits(History history, const Version& version,
                                                      std::uint32_t vocabulary) {
  std::vector<float> logits(vocabulary);
  for (std::uint32_t token = 0; token < vocabulary; ++token)
    logits[token] =
        static_cast<float>(mixed(history + mixed(version.step) + token * 1000003ULL) % 25) / 4 - 3;
  return logits;
}

class ShadowModel {
 public:
  explicit ShadowModel(const SchedulerOptions& options)
      : options_(options), places_(std::size_t{options.blocks} * options.block_tokens) {}

  // Computes a step: every promise of batch.h is checked. Returns the logits that it wants.
  [[nodiscard]] std::vector<float> forward(const Batch& batch, const Version& version) {
    check_limits(batch);
    check_blocks(batch);
    std::vector<History> before;
    for (const SequenceSlice& slice : batch.slices) before.push_back(read(slice));
    std::vector<float> logits;
    for (std::size_t i = 0; i < batch.slices.size(); ++i) {
      const SequenceSlice& slice = batch.slices[i];
      const History last = write(slice, before[i], version);
      if (!slice.wants_logits) continue;
      const std::vector<float> row = shadow_logits(last, version, options_.vocabulary);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }
  // A step that broke off: some of what it was to write is there, some is not, some is half there.
  void break_off(const Batch& batch, const Version& version, std::mt19937_64& random) {
    for (const SequenceSlice& slice : batch.slices) {
      const History before = read(slice);
      if (random() % 2 == 0) static_cast<void>(write(slice, before, version));
      for (std::uint32_t i = 0; i < slice.tokens.size(); ++i)
        if (random() % 2 == 0) place(slice, slice.first_position + i) = {};
    }
  }
  // What was computed before `version` may not be read any more.
  void forbid_before(const Version& version) { oldest_ = version; }

  // Pairs of slices that shared a block.
  [[nodiscard]] std::uint64_t shared() const { return shared_; }

 private:
  struct Place {
    bool is_written = false;
    std::uint32_t position = 0;
    Token token = 0;
    History history = 0;
    Version version;
  };

  Place& place(const SequenceSlice& slice, std::uint32_t position) {
    const std::uint32_t block = slice.blocks[position / options_.block_tokens];
    return places_[std::size_t{block} * options_.block_tokens + position % options_.block_tokens];
  }

  void check_limits(const Batch& batch) const {
    std::size_t tokens = 0;
    for (const SequenceSlice& slice : batch.slices) {
      ASSERT_FALSE(slice.tokens.empty());
      tokens += slice.tokens.size();
      const std::size_t end = slice.first_position + slice.tokens.size();
      ASSERT_LE(end, options_.max_positions);
      ASSERT_EQ(slice.blocks.size(), (end + options_.block_tokens - 1) / options_.block_tokens)
          << "a slice has the blocks of its positions and no more";
      for (const Token token : slice.tokens) ASSERT_LT(token, options_.vocabulary);
    }
    ASSERT_LE(tokens, options_.max_step_tokens);
    ASSERT_LE(batch.slices.size(), options_.max_sequences);
  }

  // A block is in two slices only where both have it at the same place of their prefix and neither
  // writes to it.
  void check_blocks(const Batch& batch) {
    std::map<std::uint32_t, std::size_t> seen;  // block -> its place in a sequence
    std::set<std::uint32_t> written;
    for (const SequenceSlice& slice : batch.slices) {
      std::set<std::uint32_t> own;
      for (std::size_t i = 0; i < slice.blocks.size(); ++i) {
        const std::uint32_t block = slice.blocks[i];
        ASSERT_LT(block, options_.blocks);
        ASSERT_TRUE(own.insert(block).second) << "a sequence has block " << block << " twice";
        const auto [at, is_new] = seen.try_emplace(block, i);
        const bool writes = (i + 1) * options_.block_tokens > slice.first_position;
        ASSERT_FALSE(written.contains(block) || (writes && !is_new))
            << "block " << block << " is written by one sequence and used by another";
        ASSERT_EQ(at->second, i) << "block " << block << " is at two places";
        if (writes) written.insert(block);
        if (!is_new) ++shared_;
      }
    }
  }

  // The history of the tokens before the slice, as the blocks have them.
  [[nodiscard]] History read(const SequenceSlice& slice) {
    History history = 0;
    for (std::uint32_t position = 0; position < slice.first_position; ++position) {
      const Place& read = place(slice, position);
      EXPECT_TRUE(read.is_written) << "position " << position << " is read and was never computed";
      EXPECT_EQ(read.position, position);
      EXPECT_GE(read.version, oldest_) << "position " << position << " is of forgotten weights";
      history = after(history, read.token);
      EXPECT_EQ(read.history, history) << "position " << position << " follows another prefix";
    }
    return history;
  }
  History write(const SequenceSlice& slice, History history, const Version& version) {
    for (std::uint32_t i = 0; i < slice.tokens.size(); ++i) {
      history = after(history, slice.tokens[i]);
      place(slice, slice.first_position + i) = {.is_written = true,
                                                .position = slice.first_position + i,
                                                .token = slice.tokens[i],
                                                .history = history,
                                                .version = version};
    }
    return history;
  }

  SchedulerOptions options_;
  std::vector<Place> places_;
  Version oldest_;
  std::uint64_t shared_ = 0;
};

}  // namespace wsync::engine::generation
