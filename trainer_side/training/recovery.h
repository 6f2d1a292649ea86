// Which step the ranks of a trainer go on from when some of them are lost, and what each must do
// and be given for it, so that no replica is ever at another step than the rest: the rule of
// FlashRecovery (Zhang et al. 2025, arXiv 2509.03047), with shards that two ranks hold.
//
// During forward and backward all weights are those that the step begins with. Then every rank has
// the reduced gradients of the shards that it holds, all confirm that in a barrier, and each brings
// its shards to the end of the step by itself. So a step whose barrier one rank has passed can be
// ended by those that are left, and any other can be run again.
//
// Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/training/layout.h"

namespace wsync::training {

enum class Phase : std::uint32_t {
  kEmpty,     // in a lost rank's place, or before the first step: nothing here is of any step
  kForward,   // the weights and the optimizer's state are those that `step` begins with
  kBackward,  // the same; its first gradient is, or all are
  kUpdate,    // every rank has confirmed the barrier of `step`: the shards that this rank holds are
              // those that it ends with, other weights may be anything
};
[[nodiscard]] std::string_view phase_name(Phase phase) noexcept;

// What the weights and the optimizer's state in a rank's memory are. Ordered as training goes.
struct Tag {
  std::uint64_t step = 0;  // counted from 1
  Phase phase = Phase::kEmpty;
  friend bool operator==(const Tag&, const Tag&) = default;
};
// "step 7, backward".
[[nodiscard]] std::string to_string(const Tag& tag);
// A tag as a word that others read while it changes, and back; 0 is the empty one. Steps are below
// 2^60, and a word that is of no phase is read as empty.
[[nodiscard]] std::uint64_t word_of(const Tag& tag) noexcept;
[[nodiscard]] Tag tag_of_word(std::uint64_t word) noexcept;

struct RankState {
  Tag tag;  // empty: of a lost rank, or of what has its place
  // It has the reduced gradients of tag.step, of every shard that it holds.
  bool has_gradients = false;
};

// Each rank has two arrays of parameters, each cut into a shard for each rank that has them too.
enum class Array : std::uint32_t { kDense, kExperts };
inline constexpr std::size_t kArrays = 2;
[[nodiscard]] std::string_view array_name(Array array) noexcept;
// The ranks that have the same array, by member.
[[nodiscard]] std::vector<std::uint32_t> team_of(const ParallelSizes& sizes, const Place& place,
                                                 Array array);
// The member whose shard this one holds too: the one before it. Itself in a team of one.
[[nodiscard]] constexpr std::uint32_t second_held_by(std::uint32_t member,
                                                     std::uint32_t members) noexcept {
  return (member + members - 1) % members;
}
// The member that holds this one's shard too: the one after it. Itself in a team of one.
[[nodiscard]] constexpr std::uint32_t second_holder_of(std::uint32_t member,
                                                       std::uint32_t members) noexcept {
  return (member + 1) % members;
}

// One shard that goes from one rank to another of its team.
struct Transfer {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Array array = Array::kDense;
  std::uint32_t member = 0;  // whose shard it is
  bool with_state = false;   // the optimizer's too, beside the weights
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// Everything the ranks must do, the same on all of them.
struct Resume {
  std::uint64_t step = 1;  // that all run next
  // Those that bring their shards to the end of the step before, which others have begun to take;
  // then everything is of one step, and goes where it is missing.
  std::vector<std::uint32_t> commits;
  std::vector<Transfer> transfers;      // each shard from a rank that holds it
  std::vector<std::uint32_t> replaced;  // the empty ones: they are given all
};

// `ranks`: one for each rank. The step before resume.step is the last one whose barrier any of them
// has passed. kNotFound names a shard of which all holders are lost, or that nobody has anything:
// the run can go on from a checkpoint only. kInternal: states that no run comes to.
[[nodiscard]] Result<Resume> decide(const ParallelSizes& sizes,
                                    const std::vector<RankState>& ranks);

}  // namespace wsync::training
