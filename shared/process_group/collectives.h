// Collective operations on some of a process group's ranks. Every member must call the same
// functions in the same order. Sums are computed in the order of the members, so the result is
// bitwise identical for every timing and backend.
//
// Errors as ProcessGroup::exchange(); kInvalidInput for inconsistent arguments. Each error breaks
// the group. Thread: as exchange().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/process_group/process_group.h"

namespace wsync::collective {

// Members of a group, in the order used for sums. A team of one needs no process group.
class Team {
 public:
  // A team of this process alone.
  Team() = default;
  // `group` is borrowed and may be null if there is one member. `members` lists distinct ranks of
  // the group, including this rank. Any other list is a defect of the caller and aborts the
  // process.
  Team(ProcessGroup* group, std::vector<std::uint32_t> members);
  [[nodiscard]] std::uint32_t size() const noexcept;
  [[nodiscard]] std::uint32_t index() const noexcept;  // of this rank among the members
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t member) const;
  [[nodiscard]] ProcessGroup* group() const noexcept;

 private:
  ProcessGroup* group_ = nullptr;
  std::vector<std::uint32_t> members_ = {0};
  std::uint32_t index_ = 0;
};

// Returns after every member has called it.
[[nodiscard]] Result<> barrier(const Team& team, TimePoint deadline);

// Sends part i of `send` to member i and receives part i of `receive` from member i. This rank's
// own part is copied. Both hold size() spans.
[[nodiscard]] Result<> all_to_all(const Team& team,
                                  std::span<const std::span<const std::byte>> send,
                                  std::span<const std::span<std::byte>> receive,
                                  TimePoint deadline);

// Each member provides parts[index()]; on return all parts are filled. Parts may differ in size.
[[nodiscard]] Result<> all_gather(const Team& team, std::span<const std::span<std::byte>> parts,
                                  TimePoint deadline);

// Computes this rank's part of the sum over all members: (((a0 + a1) + ...) + b0) + b1, where a0,
// a1, ... are the arrays of member 0 and b0, b1, ... those of member 1. Every member provides the
// same number of arrays (at least one) with all elements. Member i's part is elements [cuts[i],
// cuts[i + 1]). `cuts` has size() + 1 entries, ascending from 0 to the number of elements. `out`
// must not overlap an array. Needs memory for one part of every other member's arrays.
[[nodiscard]] Result<> reduce_scatter(const Team& team,
                                      std::span<const std::span<const float>> arrays,
                                      std::span<const std::size_t> cuts, std::span<float> out,
                                      TimePoint deadline);

// Replaces `values` with the sum over all members: ((a + b) + c), where a are those of member 0.
// All members provide the same number of values and get bitwise identical results. Needs memory for
// the values of the other members if they are small, otherwise for this rank's part of them.
[[nodiscard]] Result<> all_reduce(const Team& team, std::span<float> values, TimePoint deadline);
// all_reduce() sends up to this many bytes whole to every other member, because for small messages
// their number costs more than their size.
inline constexpr std::size_t kAllReduceWholeBytes = std::size_t{64} << 10U;

// Collects on member 0: parts[i] becomes the `own` of member i; its own part is copied. `parts` is
// empty on the other members.
[[nodiscard]] Result<> gather(const Team& team, std::span<const std::byte> own,
                              std::span<const std::span<std::byte>> parts, TimePoint deadline);

}  // namespace wsync::collective
