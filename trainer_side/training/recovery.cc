#include "trainer_side/training/recovery.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::training {
namespace {

constexpr unsigned kPhaseBits = 4;  // bits of the phase in a word

bool is_empty(const RankState& rank) { return rank.tag.phase == Phase::kEmpty; }

// Returns the last step whose barrier the rank has passed.
std::uint64_t passed_by(const Tag& tag) {
  return tag.phase == Phase::kUpdate ? tag.step : tag.step - 1;
}

// Returns whether a rank can be in this state if `passed` is the last barrier that any rank has
// passed. The rank may have contributed to that barrier, with all its reduced gradients, without
// having passed it. If it has passed it, it may be anywhere before the next barrier.
bool can_be(const RankState& rank, std::uint64_t passed) {
  if (is_empty(rank)) return true;
  if (passed_by(rank.tag) == passed) return true;
  return rank.tag == Tag{passed, Phase::kBackward} && rank.has_gradients;
}

Result<std::uint64_t> last_passed(const std::vector<RankState>& ranks) {
  bool anybody = false;
  std::uint64_t passed = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (is_empty(ranks[rank])) continue;
    if (ranks[rank].tag.step == 0)
      return fail(ErrorCode::kInternal, fmt::format("rank {} is at {}; steps count from 1", rank,
                                                    to_string(ranks[rank].tag)));
    anybody = true;
    passed = std::max(passed, passed_by(ranks[rank].tag));
  }
  if (!anybody) return fail(ErrorCode::kNotFound, "no remaining rank has weights of any step");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (!can_be(ranks[rank], passed))
      return fail(
          ErrorCode::kInternal,
          fmt::format("rank {} is at {}{} although another rank has passed the barrier of step {}, "
                      "which needs all ranks",
                      rank, to_string(ranks[rank].tag),
                      ranks[rank].has_gradients ? "" : " without its reduced gradients", passed));
  return passed;
}

// Adds the transfers of one array that one rank needs.
class Needs {
 public:
  Needs(const ParallelSizes& sizes, const std::vector<RankState>& ranks, Resume& resume)
      : sizes_(sizes), ranks_(ranks), resume_(resume) {}

  [[nodiscard]] Result<> add(std::uint32_t rank, Array array) {
    const Place place = place_of(sizes_, rank);
    const std::vector<std::uint32_t> team = team_of(sizes_, place, array);
    const auto members = static_cast<std::uint32_t>(team.size());
    const auto own =
        static_cast<std::uint32_t>(std::find(team.begin(), team.end(), rank) - team.begin());
    const bool empty = is_empty(ranks_[rank]);
    for (std::uint32_t member = 0; member < members; ++member) {
      const bool holds = member == own || member == second_held_by(own, members);
      if (holds && !empty) continue;
      const std::uint32_t owner = team[member];
      const std::uint32_t second = team[second_holder_of(member, members)];
      const bool from_owner = !is_empty(ranks_[owner]);
      if (!from_owner && is_empty(ranks_[second])) return lost(place, array, member, team);
      resume_.transfers.push_back({.from = from_owner ? owner : second,
                                   .to = rank,
                                   .array = array,
                                   .member = member,
                                   .with_state = holds});
    }
    return {};
  }

 private:
  static Result<> lost(const Place& place, Array array, std::uint32_t member,
                       const std::vector<std::uint32_t>& team) {
    const auto members = static_cast<std::uint32_t>(team.size());
    const std::string what = fmt::format("shard {} of the {} of pipeline rank {}", member,
                                         array_name(array), place.pipeline);
    if (members == 1)
      return fail(ErrorCode::kNotFound,
                  fmt::format("rank {}, the only holder of {}, is lost", team[member], what));
    return fail(ErrorCode::kNotFound,
                fmt::format("ranks {} and {}, the only holders of {}, are lost", team[member],
                            team[second_holder_of(member, members)], what));
  }

  const ParallelSizes& sizes_;
  const std::vector<RankState>& ranks_;
  Resume& resume_;
};

}  // namespace

std::string_view phase_name(Phase phase) noexcept {
  switch (phase) {
    case Phase::kEmpty:
      return "empty";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "unknown";
}

std::string to_string(const Tag& tag) {
  if (tag.phase == Phase::kEmpty) return "no step";
  return fmt::format("step {}, {}", tag.step, phase_name(tag.phase));
}

std::uint64_t word_of(const Tag& tag) noexcept {
  return (tag.step << kPhaseBits) | static_cast<std::uint64_t>(tag.phase);
}

Tag tag_of_word(std::uint64_t word) noexcept {
  const std::uint64_t phase = word & ((std::uint64_t{1} << kPhaseBits) - 1);
  if (phase > static_cast<std::uint64_t>(Phase::kUpdate)) return {};
  return {.step = word >> kPhaseBits, .phase = static_cast<Phase>(phase)};
}

std::string_view array_name(Array array) noexcept {
  switch (array) {
    case Array::kDense:
      return "dense parameters";
    case Array::kExperts:
      return "experts";
  }
  return "unknown";
}

std::vector<std::uint32_t> team_of(const ParallelSizes& sizes, const Place& place, Array array) {
  return array == Array::kDense ? replica_team(sizes, place) : expert_copies_team(sizes, place);
}

Result<Resume> decide(const ParallelSizes& sizes, const std::vector<RankState>& ranks) {
  WSYNC_CHECK(ranks.size() == sizes.ranks(), "a state for each rank");
  const auto passed = WSYNC_TRY(last_passed(ranks));
  Resume resume{.step = passed + 1, .commits = {}, .transfers = {}, .replaced = {}};
  Needs needs(sizes, ranks, resume);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const RankState& state = ranks[rank];
    if (is_empty(state))
      resume.replaced.push_back(rank);
    else if (passed_by(state.tag) != passed)
      resume.commits.push_back(rank);
    else if (state.tag.phase != Phase::kUpdate || planted("torn_weights_kept"))
      continue;  // all its data is of this step
    for (const Array array : {Array::kDense, Array::kExperts}) WSYNC_TRY(needs.add(rank, array));
  }
  return resume;
}

}  // namespace wsync::training
