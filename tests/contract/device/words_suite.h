// What every device backend promises of words that are changed in place. More of the suite in
// device_suite.h, for the same instantiations.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/device/changed_word.h"
#include "tests/contract/device/device_suite.h"

namespace wsync::device {

class WordContract : public DeviceContract {
 protected:
  static constexpr std::uint64_t kBytes = 512 * limits::kKiB;
  static constexpr std::uint64_t kSeed = 3;

  void SetUp() override {
    DeviceContract::SetUp();
    if (device_ == nullptr) return;
    to_ = memory(kBytes);
    from_ = memory(kBytes);
    work_ = stream(StreamRole::kReload);
    held_ = pattern(kBytes, 21);
    ASSERT_TRUE(work_->copy_to_device(whole(*to_), held_));
    ASSERT_TRUE(drain(*work_));
  }

  // A word as a batch names it.
  struct Word {
    ChangedWord head;
    std::uint64_t value = 0;
    std::uint64_t place = 0;  // counted from the block; ignored without places
  };
  template <class T>
  std::uint64_t put(const std::vector<T>& values) {
    const std::uint64_t at = (source_.size() + 7) / 8 * 8;
    source_.resize(at + values.size() * sizeof(T));
    std::memcpy(source_.data() + at, values.data(), values.size() * sizeof(T));
    return at;
  }
  enum class Form : std::uint8_t { kDense, kNumbered, kPlaced };
  // Adds a block to the batch, and does by hand what it asks for.
  void add(std::uint64_t to_offset, std::uint64_t position, std::uint32_t sum, Form form,
           const std::vector<Word>& words) {
    std::vector<std::uint64_t> values;
    std::vector<std::uint32_t> heads;
    std::vector<std::uint32_t> places;
    if (sums_.size() < 2 * (sum + 1)) sums_.resize(std::size_t{2} * (sum + 1));
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      Word word = words[i];
      if (form == Form::kDense) word.head = {.number = static_cast<std::uint32_t>(i)};
      if (form != Form::kPlaced) word.place = std::uint64_t{word.head.number} * 8;
      values.push_back(word.value);
      heads.push_back(pack(word.head));
      places.push_back(static_cast<std::uint32_t>(word.place));
      std::uint64_t at = to_offset + word.place;
      Bytes before(8);
      Bytes after(8);
      for (std::uint32_t k = 0; k < 8; ++k) {
        if ((word.head.held >> k & 1U) == 0) continue;
        before[k] = held_[at];
        if ((word.head.changed >> k & 1U) != 0)
          held_[at] = static_cast<std::byte>(word.value >> (8 * k));
        after[k] = held_[at++];
      }
      end = std::max(end, at - to_offset);
      const SumPlace place{.seed = kSeed,
                           .position = position + std::uint64_t{word.head.number} * 8};
      auto& first = sums_[std::size_t{2} * sum];
      auto& second = sums_[std::size_t{2} * sum + 1];
      (word.head.is_edge ? first.edges : first.words) += word_sum(before, place);
      (word.head.is_edge ? second.edges : second.words) += word_sum(after, place);
    }
    WordBlock block{.to = to_.get(),
                    .to_offset = to_offset,
                    .to_bytes = end,
                    .from = from_.get(),
                    .values_offset = put(values),
                    .words = static_cast<std::uint32_t>(words.size()),
                    .sum = sum,
                    .seed = kSeed,
                    .position = position};
    if (form != Form::kDense) block.heads_offset = put(heads);
    if (form == Form::kPlaced) block.places_offset = put(places);
    batch_.push_back(block);
  }
  // Runs the batch and compares every byte of the memory and every sum with what they must be.
  void expect_changed() {
    std::vector<SplitSum> found(sums_.size(),
                                SplitSum{.words = {.product = 1, .sum = 2}, .edges = {}});
    Bytes back(kBytes);
    ASSERT_LE(source_.size(), kBytes);
    ASSERT_TRUE(work_->copy_to_device({.memory = from_.get(), .offset = 0, .bytes = source_.size()},
                                      source_));
    ASSERT_TRUE(work_->change_words(batch_, found));
    ASSERT_TRUE(work_->copy_to_host(back, whole(*to_)));
    const auto drained = drain(*work_);
    ASSERT_TRUE(drained.has_value()) << drained.error().message();
    EXPECT_TRUE(back == held_) << "first difference at byte "
                               << std::ranges::mismatch(back, held_).in1 - back.begin();
    EXPECT_EQ(found, sums_);
  }

  Bytes held_;    // what the memory must hold
  Bytes source_;  // what the batch reads
  std::vector<WordBlock> batch_;
  std::vector<SplitSum> sums_;  // as they must be
  std::unique_ptr<Memory> to_;
  std::unique_ptr<Memory> from_;
  std::unique_ptr<Stream> work_;  // last: it is closed before what its work uses goes
};

TEST_P(WordContract, WordsAreWrittenInPlaceAndSummedBeforeAndAfter) {
  std::mt19937_64 random(4);
  // One warp's unit and a little more, several units, and one word.
  for (const auto& [count, step] :
       {std::pair(260U, 3U), std::pair(2000U, 16U), std::pair(1U, 1U)}) {
    std::vector<Word> words;
    for (std::uint32_t i = 0; i < count; ++i)
      words.push_back(
          {.head = {.number = i * step, .changed = static_cast<std::uint32_t>(random() % 256)},
           .value = random()});
    add(0, 256 * limits::kKiB, count % 2, Form::kNumbered, words);
    expect_changed();
    batch_.clear();
    sums_.clear();
    source_.clear();
  }
}

TEST_P(WordContract, OneBatchHasBlocksOfEveryForm) {
  std::mt19937_64 random(5);
  std::vector<Word> words(3000);
  for (Word& word : words) word.value = random();
  add(64, 0, 0, Form::kDense, words);
  add(32'003, 512 * limits::kKiB + 4088, 2, Form::kDense, words);  // at an odd address
  std::vector<Word> cut;
  for (std::uint32_t i = 0; i < 700; ++i) {
    ChangedWord head{.number = i * 40, .changed = 0, .held = 0};
    if (i % 3 == 0) head = {.number = i * 40, .changed = 0x3c, .held = 0xfc, .is_edge = true};
    if (i % 3 == 1) head = {.number = i * 40, .changed = 0x0f, .held = 0x0f, .is_edge = false};
    if (i % 3 == 2) head = {.number = i * 40, .changed = 0x00, .held = 0xff, .is_edge = false};
    cut.push_back({.head = head, .value = random(), .place = std::uint64_t{i} * 9});
  }
  add(100'000, 8, 2, Form::kPlaced, cut);
  batch_.push_back({});  // without a word
  add(200'000, 0, 3, Form::kNumbered, {{.head = {.number = 32'767}, .value = 5}});
  expect_changed();
}

// Values are absolute.
TEST_P(WordContract, ABatchCanBeExecutedAgain) {
  add(8, 80, 0, Form::kNumbered,
      {{.head = {.number = 5, .changed = 0x18}, .value = 0x1122334455667788}});
  expect_changed();
  sums_[0] = sums_[1];
  expect_changed();
}

TEST_P(WordContract, BatchesWithoutWordsAreDoneAndTheirSumsZero) {
  sums_.resize(4);
  expect_changed();
  sums_.clear();
  expect_changed();
}

TEST_P(WordContract, WordsOutsideTheirMemoryAreRefused) {
  std::vector<SplitSum> sums(2);
  const WordBlock good{.to = to_.get(),
                       .to_offset = 16,
                       .to_bytes = 800,
                       .from = from_.get(),
                       .words = 100,
                       .position = 8};
  const auto refused = [&](auto&& edit) {
    WordBlock bad = good;
    edit(bad);
    const auto result = work_->change_words(std::span(&bad, 1), sums);
    return !result && result.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused([](auto& b) { b.to_offset = kBytes - 799; }));
  EXPECT_TRUE(refused([](auto& b) { b.to_offset = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](auto& b) { b.to_bytes = 799; })) << "dense words lie in their bytes";
  EXPECT_TRUE(refused([](auto& b) { b.to = nullptr; }));
  EXPECT_TRUE(refused([](auto& b) { b.from = nullptr; }));
  EXPECT_TRUE(refused([](auto& b) { b.values_offset = kBytes - 792; }));
  EXPECT_TRUE(refused([](auto& b) { b.values_offset = 4; }));
  EXPECT_TRUE(refused([](auto& b) { b.heads_offset = 2; }));
  EXPECT_TRUE(refused([](auto& b) { b.heads_offset = kBytes - 396; }));
  EXPECT_TRUE(refused([](auto& b) { b.places_offset = 800; })) << "without heads";
  EXPECT_TRUE(refused([](auto& b) {
    b.heads_offset = 800;
    b.places_offset = kBytes;
  }));
  EXPECT_TRUE(refused([](auto& b) { b.position = 4; }));
  EXPECT_TRUE(refused([](auto& b) { b.sum = 1; }));
  EXPECT_TRUE(refused([](auto& b) { b.words = kWordNumbers + 1; }));
  auto imported = device_->import_memory(std::move(*to_->export_handle()));
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  EXPECT_TRUE(refused([&](auto& b) { b.to = imported->get(); }));
  EXPECT_TRUE(work_->status().has_value()) << "a refused call must not break the stream";
  EXPECT_TRUE(work_->change_words(std::span(&good, 1), sums));
  EXPECT_TRUE(drain(*work_));
}

}  // namespace wsync::device
