// Right schedules pass; each way to spoil one is caught, and the sentence says where.
#include "trainer_side/schedule/validate.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "trainer_side/schedule/order.h"

namespace wsync::schedule {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t end) {
  return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
}

// Any sizes that go together.
ScheduleOptions random_options(Random& random) {
  for (;;) {
    ScheduleOptions options{
        .order = static_cast<Order>(below(random, 4)),
        .shape = {.pp = static_cast<std::uint32_t>(1 + below(random, 6)),
                  .vpp = static_cast<std::uint32_t>(1 + below(random, 3)),
                  .microbatches = static_cast<std::uint32_t>(1 + below(random, 16))},
        .overlap = below(random, 2) == 0,
        .delay_wgrad = below(random, 2) == 0};
    if (below(random, 3) == 0)
      options.group = static_cast<std::uint32_t>(options.shape.pp + below(random, 4));
    if (make_schedule(options)) return options;
  }
}

std::string first_violation(const Schedule& schedule) {
  const std::vector<Violation> found = find_violations(schedule);
  return found.empty() ? "" : found.front().sentence;
}

// A place of a random action that `wanted` takes; nothing when there is none.
std::optional<Place> pick(const Schedule& schedule, Random& random,
                          const std::function<bool(const Action&)>& wanted) {
  std::vector<Place> places;
  for (std::uint32_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::uint32_t step = 0; step < schedule.ranks[rank].size(); ++step)
      if (wanted(schedule.ranks[rank][step])) places.push_back({rank, step});
  if (places.empty()) return std::nullopt;
  return places[below(random, places.size())];
}
bool any(const Action&) { return true; }
bool is_pair(const Action& action) { return action.backward.has_value(); }
std::function<bool(const Action&)> is_alone(Computation computation) {
  return [computation](const Action& action) {
    return !action.backward && action.cell.computation == computation;
  };
}

// Spoils the schedule; false when it has no place for this.
struct Mutation {
  std::string name;
  std::function<bool(Schedule&, Random&)> apply;
};

// Puts the action at `from` to where `to` stands.
void move_action(std::vector<Action>& actions, std::size_t from, std::size_t to) {
  const Action action = actions[from];
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
  actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), action);
}

std::vector<Mutation> mutations() {
  const auto at = [](Schedule& schedule, const Place& place) -> Action& {
    return schedule.ranks[place.rank][place.step];
  };
  std::vector<Mutation> all;
  all.push_back({"drop", [](Schedule& s, Random& random) {
                   const auto place = pick(s, random, any);
                   auto& actions = s.ranks[place->rank];
                   actions.erase(actions.begin() + place->step);
                   return true;
                 }});
  all.push_back({"double", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, any);
                   const Action action = at(s, *place);
                   s.ranks[place->rank].push_back(action);
                   return true;
                 }});
  all.push_back({"drop the forward of a pair", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, is_pair);
                   if (!place) return false;
                   at(s, *place) = {*at(s, *place).backward, {}};
                   return true;
                 }});
  all.push_back({"drop the backward of a pair", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, is_pair);
                   if (!place) return false;
                   at(s, *place).backward.reset();
                   return true;
                 }});
  all.push_back(
      {"swap the micro-batches of two forwards of a stage", [](Schedule& s, Random& random) {
         if (s.shape.microbatches < 2) return false;
         const auto stage = static_cast<std::uint32_t>(below(random, s.shape.stages()));
         const auto m = static_cast<std::uint32_t>(below(random, s.shape.microbatches - 1));
         for (Action& action : s.ranks[s.shape.rank_of(stage)]) {
           Cell& cell = action.cell;
           if (cell.stage != stage || cell.computation != Computation::kForward) continue;
           if (cell.microbatch == m)
             cell.microbatch = m + 1;
           else if (cell.microbatch == m + 1)
             cell.microbatch = m;
         }
         return true;
       }});
  all.push_back({"swap two stages of a rank", [](Schedule& s, Random& random) {
                   if (s.shape.vpp < 2) return false;
                   const auto rank = static_cast<std::uint32_t>(below(random, s.shape.pp));
                   for (Action& action : s.ranks[rank])
                     for (Cell* cell :
                          {&action.cell, action.backward ? &*action.backward : nullptr})
                       if (cell != nullptr && cell->stage < 2 * s.shape.pp)
                         cell->stage = cell->stage < s.shape.pp ? rank + s.shape.pp : rank;
                   return true;
                 }});
  all.push_back({"move a backward before its forward", [](Schedule& s, Random& random) {
                   const auto place = pick(s, random, [](const Action& action) {
                     return !action.backward && sends_gradient(action.cell.computation);
                   });
                   if (!place) return false;
                   move_action(s.ranks[place->rank], place->step, 0);
                   return true;
                 }});
  all.push_back({"move a forward to the end", [](Schedule& s, Random& random) {
                   const auto place = pick(s, random, is_alone(Computation::kForward));
                   if (!place) return false;
                   auto& actions = s.ranks[place->rank];
                   move_action(actions, place->step, actions.size() - 1);
                   return true;
                 }});
  all.push_back({"another stage", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, any);
                   ++at(s, *place).cell.stage;
                   return true;
                 }});
  all.push_back({"another micro-batch", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, any);
                   ++at(s, *place).cell.microbatch;
                   return true;
                 }});
  all.push_back({"another rank", [at](Schedule& s, Random& random) {
                   if (s.shape.pp < 2) return false;
                   const auto place = pick(s, random, any);
                   const Action action = at(s, *place);
                   auto& from = s.ranks[place->rank];
                   from.erase(from.begin() + place->step);
                   s.ranks[(place->rank + 1) % s.shape.pp].push_back(action);
                   return true;
                 }});
  all.push_back({"W before its I", [](Schedule& s, Random& random) {
                   const auto place = pick(s, random, is_alone(Computation::kWeightGradient));
                   if (!place) return false;
                   move_action(s.ranks[place->rank], place->step, 0);
                   return true;
                 }});
  all.push_back({"no W", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, is_alone(Computation::kInputGradient));
                   if (!place) return false;
                   at(s, *place).cell.computation = Computation::kBackward;
                   return true;
                 }});
  all.push_back({"W of a whole backward", [at](Schedule& s, Random& random) {
                   const auto place = pick(s, random, is_alone(Computation::kBackward));
                   if (!place) return false;
                   at(s, *place).cell.computation = Computation::kInputGradient;
                   return true;
                 }});
  all.push_back({"a pair with its own ancestor", [](Schedule& s, Random& random) {
                   for (const Place& place : std::vector{pick(s, random, any).value()}) {
                     auto& actions = s.ranks[place.rank];
                     const Cell forward = actions[place.step].cell;
                     if (forward.computation != Computation::kForward ||
                         actions[place.step].backward)
                       return false;
                     const auto backward =
                         std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
                           return !action.backward && sends_gradient(action.cell.computation) &&
                                  action.cell.stage == forward.stage &&
                                  action.cell.microbatch == forward.microbatch;
                         });
                     if (backward == actions.end()) return false;
                     actions[place.step].backward = backward->cell;
                     actions.erase(backward);
                   }
                   return true;
                 }});
  return all;
}

TEST(Validate, RandomSchedulesPassAndEachMutationIsCaught) {
  const std::vector<Mutation> all = mutations();
  std::vector<int> applied(all.size());
  Random random(20260101);
  for (int run = 0; run < 400; ++run) {
    const Schedule schedule = make_schedule(random_options(random)).value();
    ASSERT_EQ(first_violation(schedule), "") << write_actions(schedule);
    for (std::size_t i = 0; i < all.size(); ++i) {
      Schedule spoiled = schedule;
      if (!all[i].apply(spoiled, random)) continue;
      ++applied[i];
      ASSERT_NE(first_violation(spoiled), "") << all[i].name << " of\n"
                                              << write_actions(schedule) << "gives\n"
                                              << write_actions(spoiled);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_GT(applied[i], 10) << all[i].name;
}

TEST(Validate, WithoutExtraWarmupTheLastRankIsACycle) {
  for (const std::uint32_t p : {1U, 2U, 4U, 8U})
    for (const std::uint32_t v : {2U, 3U})
      for (const std::uint32_t m : {2 * p, 3 * p}) {
        const Schedule schedule = make_schedule({.shape = {.pp = p, .vpp = v, .microbatches = m},
                                                 .overlap = true,
                                                 .extra_warmup = 0})
                                      .value();
        const std::string why = validate(schedule).error().message();
        EXPECT_NE(why.find(fmt::format("PP{}, step", p - 1)), std::string::npos) << why;
        EXPECT_NE(why.find("is a cycle on the last rank"), std::string::npos) << why;
      }
  const Schedule figure =
      make_schedule(
          {.shape = {.pp = 4, .vpp = 2, .microbatches = 8}, .overlap = true, .extra_warmup = 0})
          .value();
  EXPECT_EQ(
      find_violations(figure).front().sentence,
      "PP3, step 4: the pair (7F0;7B0) is a cycle on the last rank: 7B0 needs 7F0, which is over "
      "only when the pair is; one extra micro-batch of warm-up (--extra-warmup 1) separates them");
}

TEST(Validate, SentencesSayWhereAndWhatIsMissing) {
  const auto why = [](std::string_view text) {
    const Result<Schedule> schedule = read_actions(text);
    return schedule ? first_violation(*schedule) : schedule.error().message();
  };
  EXPECT_EQ(why("PP0: 0F0,0B0\nPP1: 1F0,1B0\n"), "");
  EXPECT_EQ(why("PP0: 0F0\nPP1: 1F0,1B0\n"), "PP0: 0B0 is missing; the list ends after step 0");
  EXPECT_EQ(why("PP0: 0B0,0F0\nPP1: 1F0,1B0\n"), "PP0, step 0: 0B0 comes before its input 0F0");
  EXPECT_EQ(why("PP0: 0F0,0W0,0I0\n"), "PP0, step 1: 0W0 comes before its input 0I0");
  EXPECT_EQ(why("PP0: 0F0,0F0,0B0\n"), "PP0, step 1: 0F0 occurs a second time, first at step 0");
  EXPECT_EQ(why("PP0: 0F0,0B0,0W0\n"), "PP0, step 2: 0W0 is part of 0B0 of step 1");
  EXPECT_EQ(why("PP0: 0F0,1F0,0B0\nPP1: 1F0,1B0\n"),
            "PP0, step 1: 1F0 is of stage 1, which PP1 owns");
  EXPECT_EQ(why("PP0: 0F1,0F0,0B0,0B1\n"),
            "PP0, step 1: 0F0 comes after 0F1: the micro-batches of a stage ascend");
  // Each rank's own list is right; together they wait for each other.
  EXPECT_EQ(why("PP0: 0F0,0B0,0F1,0B1\nPP1: 1F0,1F1,1B0,1B1\n"),
            "a cycle: PP0 at step 1, 0B0, waits for 1B0 of PP1; PP1 at step 1, 1F1, waits for 0F1 "
            "of PP0");
}

}  // namespace
}  // namespace wsync::schedule
