// Decides which step the ranks of a trainer resume from after some of them were lost, and what each
// rank must do and receive, so that all replicas are at the same step. The rule is that of
// FlashRecovery (Zhang et al. 2025, arXiv 2509.03047), with shards that are held by two ranks.
//
// During forward and backward all weights are those of the beginning of the step. Afterwards every
// rank has the reduced gradients of the shards that it holds, and all ranks confirm this in a
// barrier. Then each rank completes its shards without communication. If one rank has passed the
// barrier of a step, the remaining ranks can therefore complete this step. Any other step can be
// run again.
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
  kEmpty,     // replaces a lost rank, or is before the first step: its data belongs to no step
  kForward,   // weights and optimizer's state are those of the beginning of `step`
  kBackward,  // the same; some or all gradients have been computed
  // Every rank has confirmed the barrier of `step`. The shards that this rank holds are those of
  // the end of the step; its other weights are undefined.
  kUpdate,
};
[[nodiscard]] std::string_view phase_name(Phase phase) noexcept;

// The state of the weights and the optimizer's state in a rank's memory. The values are in the
// order of training.
struct Tag {
  std::uint64_t step = 0;  // counted from 1
  Phase phase = Phase::kEmpty;
  friend bool operator==(const Tag&, const Tag&) = default;
};
// For example "step 7, backward".
[[nodiscard]] std::string to_string(const Tag& tag);
// Converts a tag to a word, which others can read while it changes, and back. 0 is the empty tag.
// Steps are below 2^60. A word with an unknown phase is read as empty.
[[nodiscard]] std::uint64_t word_of(const Tag& tag) noexcept;
[[nodiscard]] Tag tag_of_word(std::uint64_t word) noexcept;

struct RankState {
  Tag tag;  // empty for a lost rank and for its replacement
  // The rank has the reduced gradients of tag.step for every shard that it holds.
  bool has_gradients = false;
};

// Each rank has two arrays of parameters. Each array is cut into one shard for each rank that has
// it.
enum class Array : std::uint32_t { kDense, kExperts };
inline constexpr std::size_t kArrays = 2;
[[nodiscard]] std::string_view array_name(Array array) noexcept;
// Returns the ranks that have the same array, by member.
[[nodiscard]] std::vector<std::uint32_t> team_of(const ParallelSizes& sizes, const Place& place,
                                                 Array array);
// Returns the member whose shard `member` holds as second holder: the previous one. In a team of
// one, the member itself.
[[nodiscard]] constexpr std::uint32_t second_held_by(std::uint32_t member,
                                                     std::uint32_t members) noexcept {
  return (member + members - 1) % members;
}
// Returns the member that is second holder of the shard of `member`: the next one. In a team of
// one, the member itself.
[[nodiscard]] constexpr std::uint32_t second_holder_of(std::uint32_t member,
                                                       std::uint32_t members) noexcept {
  return (member + 1) % members;
}

// One shard to be sent from one rank to another of its team.
struct Transfer {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Array array = Array::kDense;
  std::uint32_t member = 0;  // owner of the shard
  bool with_state = false;   // with the optimizer's state
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// Everything that the ranks must do. It is the same on all of them.
struct Resume {
  std::uint64_t step = 1;  // the step that all ranks run next
  // Ranks that must complete their shards of the previous step, because other ranks have already
  // begun to. Afterwards all data is of one step, and the transfers can begin.
  std::vector<std::uint32_t> commits;
  std::vector<Transfer> transfers;      // each shard comes from a rank that holds it
  std::vector<std::uint32_t> replaced;  // the empty ranks, which receive everything
};

// `ranks` has one entry for each rank. The step before resume.step is the last one whose barrier
// any of them has passed. Returns kNotFound if all holders of a shard are lost (it is named), or if
// no rank has any data: the run can then resume only from a checkpoint. Returns kInternal for
// states that cannot occur in a run.
[[nodiscard]] Result<Resume> decide(const ParallelSizes& sizes,
                                    const std::vector<RankState>& ranks);

}  // namespace wsync::training
