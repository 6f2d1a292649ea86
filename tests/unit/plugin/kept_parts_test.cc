// Which parts ranks on other hosts are told to keep.
#include "trainer_side/plugin/kept_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::plugin {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// What was sent to ranks, in order.
struct Sent {
  std::vector<std::pair<std::uint32_t, control::Message>> messages;
  KeptParts parts{[this](std::uint32_t rank, control::Message message) {
    messages.emplace_back(rank, std::move(message));
  }};
  // The steps that the rank has been told to keep last, with their versions.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, Version>> kept(std::uint32_t rank) const {
    std::vector<std::pair<std::uint64_t, Version>> steps;
    for (const auto& [to, message] : messages)
      if (const auto* kept = std::get_if<control::PartsKept>(&message); kept && to == rank) {
        steps.clear();
        for (const control::KeptPart& part : kept->parts)
          steps.emplace_back(part.step, part.version);
      }
    return steps;
  }
};

std::map<std::uint32_t, control::PartWanted> orders(std::uint64_t step,
                                                    std::initializer_list<std::uint32_t> ranks) {
  std::map<std::uint32_t, control::PartWanted> orders;
  for (const std::uint32_t rank : ranks) orders[rank].step = step;
  return orders;
}

const Version kUnnamed{};
const Version kOne{.epoch = 1, .step = 5};

TEST(KeptParts, ARankKeepsAStepFromTheQuestionToItsRelease) {
  Sent sent;
  sent.parts.ask(1, orders(5, {1, 3}));
  EXPECT_THAT(sent.kept(1), ElementsAre(std::pair(5, kUnnamed)));
  // Before the question, because what is not kept is given up.
  ASSERT_EQ(sent.messages.size(), 4U);
  EXPECT_TRUE(std::holds_alternative<control::PartsKept>(sent.messages[0].second));
  EXPECT_TRUE(std::holds_alternative<control::PartWanted>(sent.messages[1].second));
  sent.parts.serve({.step = 5, .version = kOne, .fence = {}, .layout = {}});
  EXPECT_THAT(sent.kept(1), ElementsAre(std::pair(5, kOne)));
  EXPECT_THAT(sent.kept(3), ElementsAre(std::pair(5, kOne)));
  sent.parts.ask(2, orders(6, {1}));
  EXPECT_THAT(sent.kept(1), ElementsAre(std::pair(5, kOne), std::pair(6, kUnnamed)));
  sent.parts.release(1);
  EXPECT_THAT(sent.kept(1), ElementsAre(std::pair(6, kUnnamed)));
  EXPECT_THAT(sent.kept(3), IsEmpty());
  sent.parts.release(1);  // again: nothing is told
  sent.parts.release(2);
  EXPECT_THAT(sent.kept(1), IsEmpty());
}

TEST(KeptParts, AStepThatIsAskedForAgainOutlivesItsFirstQuestion) {
  Sent sent;
  sent.parts.ask(1, orders(5, {1}));
  sent.parts.ask(2, orders(5, {1}));
  sent.parts.release(1);
  EXPECT_THAT(sent.kept(1), ElementsAre(std::pair(5, kUnnamed)));
  sent.parts.serve({.step = 5, .version = kOne, .fence = {}, .layout = {}});
  EXPECT_THAT(sent.kept(1), ElementsAre(std::pair(5, kOne)));
}

TEST(KeptParts, ARankThatConnectsHearsAllAgain) {
  Sent sent;
  sent.parts.connected(2);
  EXPECT_THAT(sent.kept(2), IsEmpty());
  EXPECT_EQ(sent.messages.size(), 1U);  // it gives up what it has kept for another rank 0
  sent.parts.ask(1, orders(5, {2}));
  sent.messages.clear();
  sent.parts.connected(2);
  EXPECT_THAT(sent.kept(2), ElementsAre(std::pair(5, kUnnamed)));
}

TEST(KeptParts, NobodyIsAskedForNothing) {
  Sent sent;
  sent.parts.ask(1, {});
  sent.parts.release(1);
  EXPECT_TRUE(sent.messages.empty());
}

}  // namespace
}  // namespace wsync::plugin
