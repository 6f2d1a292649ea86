// What some of a process group's ranks do together. Every member calls the same functions in the
// same order. Sums are taken in the order of the members, so the result is the same bits whoever is
// late and whatever the backend.
//
// Errors as ProcessGroup::exchange(), and kInvalidInput for arguments that do not fit together;
// each breaks the group. Thread: as exchange().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/process_group/process_group.h"

namespace wsync::collective {

// Members of a group, in the order that sums keep. A team of one needs no process group.
class Team {
 public:
  // Of this process alone.
  Team() = default;
  // `group` is borrowed, and may be null for one member. `members`: ranks of the group, each once,
  // this rank among them; anything else is a defect of the caller, and aborts the process.
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

// Returns when every member has called it.
[[nodiscard]] Result<> barrier(const Team& team, TimePoint deadline);

// Part i of `send` goes to member i, part i of `receive` comes from member i; this rank's own part
// is copied. Both hold size() spans.
[[nodiscard]] Result<> all_to_all(const Team& team,
                                  std::span<const std::span<const std::byte>> send,
                                  std::span<const std::span<std::byte>> receive,
                                  TimePoint deadline);

// Each member has filled parts[index()]; afterwards all parts are filled. Parts may differ in size.
[[nodiscard]] Result<> all_gather(const Team& team, std::span<const std::span<std::byte>> parts,
                                  TimePoint deadline);

// out = the sum of this rank's part of what all members have: (((a0 + a1) + ...) + b0) + b1 with
// a0, a1, ... the arrays of member 0 and b0, b1, ... those of member 1. Every member gives the same
// number of arrays, one at least, each of all elements; member i's part are elements
// [cuts[i], cuts[i + 1]). `cuts` has size() + 1 entries, ascending from 0 to the number of
// elements. `out` is no part of an array. Needs memory for one part of every other member's arrays.
[[nodiscard]] Result<> reduce_scatter(const Team& team,
                                      std::span<const std::span<const float>> arrays,
                                      std::span<const std::size_t> cuts, std::span<float> out,
                                      TimePoint deadline);

// values = the sum of all members' values, of which each gives as many: ((a + b) + c), with a those
// of member 0. Every member gets the same bits. Needs memory for what the others have where that is
// little, and for this rank's part of it otherwise.
[[nodiscard]] Result<> all_reduce(const Team& team, std::span<float> values, TimePoint deadline);
// What all_reduce() sends to every other member whole: the number of messages then counts for more
// than their bytes.
inline constexpr std::size_t kAllReduceWholeBytes = std::size_t{64} << 10U;

// Member 0 gets what every member has: parts[i] becomes member i's `own`, its own is copied.
// `parts` is empty on the others.
[[nodiscard]] Result<> gather(const Team& team, std::span<const std::byte> own,
                              std::span<const std::span<std::byte>> parts, TimePoint deadline);

}  // namespace wsync::collective
