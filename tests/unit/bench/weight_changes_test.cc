#include "bench/publishers/weight_changes.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/bytes.h"

namespace wsync::bench {
namespace {

class WeightChangesTest : public testing::Test {
 protected:
  WeightChangesTest() : before_(memory_) {
    const std::span all(memory_);
    tensors_ = {
        {.name = "a.weight", .element_bytes = 2, .bytes = all.first(200'000)},
        {.name = "b.experts.0.weight", .element_bytes = 4, .bytes = all.subspan(200'000, 40'000)},
        {.name = "b.experts.1.weight", .element_bytes = 1, .bytes = all.subspan(240'000)}};
  }
  // The elements of each tensor whose bits are not those of before.
  [[nodiscard]] std::vector<std::uint64_t> changed() const {
    std::vector<std::uint64_t> counts;
    std::size_t begin = 0;
    for (const ChangedTensor& tensor : tensors_) {
      counts.push_back(0);
      for (std::size_t at = 0; at < tensor.bytes.size(); at += tensor.element_bytes)
        if (!std::ranges::equal(tensor.bytes.subspan(at, tensor.element_bytes),
                                std::span(before_).subspan(begin + at, tensor.element_bytes)))
          ++counts.back();
      begin += tensor.bytes.size();
    }
    return counts;
  }
  [[nodiscard]] std::uint64_t all_changed() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : changed()) sum += count;
    return sum;
  }

  Bytes memory_ = Bytes(250'000, std::byte{7});
  Bytes before_;
  std::vector<ChangedTensor> tensors_;
};

TEST_F(WeightChangesTest, ChangesTheShareOfElementsThatWasAskedFor) {
  constexpr double kElements = 100'000 + 10'000 + 10'000;
  for (const double share : {0.001, 0.01, 0.04, 0.05, 0.2, 0.7}) {
    memory_ = before_;
    const WeightChanges done = change_elements(tensors_, share, 3);
    EXPECT_EQ(done.elements, all_changed());
    // Five standard deviations of a binomial distribution.
    const double deviation = std::sqrt(kElements * share * (1 - share));
    EXPECT_NEAR(static_cast<double>(done.elements), kElements * share, 5 * deviation) << share;
  }
}

TEST_F(WeightChangesTest, ChangesNothingOrEverything) {
  EXPECT_EQ(change_elements(tensors_, 0, 1).elements, 0U);
  EXPECT_EQ(memory_, before_);
  const WeightChanges all = change_elements(tensors_, 1, 1);
  EXPECT_THAT(changed(), testing::ElementsAre(100'000, 10'000, 10'000));
  EXPECT_EQ(all.bytes, memory_.size());
}

TEST_F(WeightChangesTest, TheSeedSaysWhich) {
  (void)change_elements(tensors_, 0.01, 5);
  const Bytes first = memory_;
  memory_ = before_;
  (void)change_elements(tensors_, 0.01, 5);
  EXPECT_EQ(memory_, first);
  memory_ = before_;
  (void)change_elements(tensors_, 0.01, 6);
  EXPECT_NE(memory_, first);
}

TEST_F(WeightChangesTest, WholeTensorsAreThoseOfExperts) {
  const WeightChanges one = change_tensors(tensors_, 0.01, 2);
  EXPECT_THAT(changed(), testing::AnyOf(testing::ElementsAre(0, 10'000, 0),
                                        testing::ElementsAre(0, 0, 10'000)));
  EXPECT_EQ(one.elements, 10'000U);
  memory_ = before_;
  (void)change_tensors(tensors_, 0.9, 2);
  EXPECT_THAT(changed(), testing::ElementsAre(0, 10'000, 10'000));
  memory_ = before_;
  for (ChangedTensor& tensor : tensors_) tensor.name = "dense";
  (void)change_tensors(tensors_, 1, 2);
  EXPECT_THAT(changed(), testing::ElementsAre(100'000, 10'000, 10'000));
}

}  // namespace
}  // namespace wsync::bench
