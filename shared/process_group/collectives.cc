#include "shared/process_group/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::collective {
namespace {

// Reports an invalid argument and breaks the group, so that the other members do not wait for this
// one.
tl::unexpected<Error> refuse(const Team& team, const std::string& why) {
  Error error(ErrorCode::kInvalidInput, why);
  if (team.group() != nullptr) team.group()->abort(error);
  return fail(std::move(error));
}

// Exchanges messages with the other members.
Result<> exchange(const Team& team, std::span<const Send> sends, std::span<const Receive> receives,
                  TimePoint deadline) {
  if (team.size() == 1) return {};
  return team.group()->exchange(sends, receives, deadline);
}

// A member cannot see the array counts of the others, so the members compare them.
using ArrayCount = std::array<std::byte, sizeof(std::uint64_t)>;
ArrayCount array_count(std::size_t count) {
  ArrayCount bytes;
  const std::uint64_t number = count;
  std::memcpy(bytes.data(), &number, bytes.size());
  return bytes;
}

Result<> check_parts(const Team& team, std::span<const std::span<const float>> arrays,
                     std::span<const std::size_t> cuts, std::size_t out) {
  if (arrays.empty()) return refuse(team, "a sum of no arrays");
  if (cuts.size() != std::size_t{team.size()} + 1)
    return refuse(team, fmt::format("{} for {}, expected {}", counted(cuts.size(), "cut"),
                                    counted(team.size(), "member"), team.size() + 1));
  if (cuts.front() != 0 || !std::is_sorted(cuts.begin(), cuts.end()))
    return refuse(team,
                  fmt::format("cuts at {}, expected to ascend from 0", fmt::join(cuts, ", ")));
  for (const auto& array : arrays)
    if (array.size() != cuts.back())
      return refuse(team, fmt::format("an array of {}, cut at {}; expected the last cut at its end",
                                      counted(array.size(), "element"), fmt::join(cuts, ", ")));
  if (const std::size_t part = cuts[team.index() + 1] - cuts[team.index()]; out != part)
    return refuse(team,
                  fmt::format("an output of {} for a part of {}", counted(out, "element"), part));
  return {};
}

// Each member sends all its values to every other member and computes the whole sum.
Result<> sum_whole(const Team& team, std::span<float> values, TimePoint deadline) {
  std::vector<float> others((team.size() - 1) * values.size());
  std::vector<std::span<const float>> summands;  // in the order of the sum
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::span<float> free = others;
  for (std::uint32_t member = 0; member < team.size(); ++member) {
    if (member == team.index()) {
      summands.emplace_back(values);
      continue;
    }
    const std::span<float> theirs = free.first(values.size());
    free = free.subspan(values.size());
    const std::uint32_t rank = team.rank_of(member);
    sends.push_back({.to = rank, .bytes = std::as_bytes(values)});
    receives.push_back({.from = rank, .bytes = std::as_writable_bytes(theirs)});
    summands.emplace_back(theirs);
  }
  WSYNC_TRY(exchange(team, sends, receives, deadline));
  if (planted("sum_own_first")) std::swap(summands.front(), summands[team.index()]);
  for (std::size_t k = 0; k < values.size(); ++k) {
    float sum = summands.front()[k];
    for (std::size_t s = 1; s < summands.size(); ++s) sum += summands[s][k];
    values[k] = sum;
  }
  return {};
}

// Each member sums one part and sends the result to the others.
Result<> sum_in_parts(const Team& team, std::span<float> values, TimePoint deadline) {
  std::vector<std::size_t> cuts;
  for (std::size_t member = 0; member <= team.size(); ++member)
    cuts.push_back(values.size() * member / team.size());
  const auto part_of = [&](std::size_t member) {
    return values.subspan(cuts[member], cuts[member + 1] - cuts[member]);
  };
  const std::span<float> own = part_of(team.index());
  std::vector<float> sum(own.size());
  WSYNC_TRY(reduce_scatter(team, std::array{std::span<const float>(values)}, cuts, sum, deadline));
  std::ranges::copy(sum, own.begin());
  std::vector<std::span<std::byte>> parts;
  for (std::size_t member = 0; member < team.size(); ++member)
    parts.push_back(std::as_writable_bytes(part_of(member)));
  return all_gather(team, parts, deadline);
}

}  // namespace

Team::Team(ProcessGroup* group, std::vector<std::uint32_t> members)
    : group_(group), members_(std::move(members)) {
  WSYNC_CHECK(!members_.empty(), "a team without members");
  WSYNC_CHECK(group_ != nullptr || members_.size() == 1, "a team of several without a group");
  if (group_ == nullptr) return;
  const auto own = std::find(members_.begin(), members_.end(), group_->rank());
  WSYNC_CHECK(own != members_.end(), fmt::format("rank {} is not a member", group_->rank()));
  index_ = static_cast<std::uint32_t>(own - members_.begin());
  std::vector<std::uint32_t> sorted = members_;
  std::sort(sorted.begin(), sorted.end());
  WSYNC_CHECK(
      std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() &&
          sorted.back() < group_->size(),
      fmt::format("members {} of a group of {}", fmt::join(members_, ", "), group_->size()));
}

std::uint32_t Team::size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }
std::uint32_t Team::index() const noexcept { return index_; }
std::uint32_t Team::rank_of(std::uint32_t member) const { return members_.at(member); }
ProcessGroup* Team::group() const noexcept { return group_; }

Result<> barrier(const Team& team, TimePoint deadline) {
  // Each member exchanges with every other one, not in rounds. A member that waits in vain can then
  // name the missing rank.
  const std::vector<std::span<const std::byte>> send(team.size());
  const std::vector<std::span<std::byte>> receive(team.size());
  return all_to_all(team, send, receive, deadline);
}

Result<> all_to_all(const Team& team, std::span<const std::span<const std::byte>> send,
                    std::span<const std::span<std::byte>> receive, TimePoint deadline) {
  if (send.size() != team.size() || receive.size() != team.size())
    return refuse(team, fmt::format("{} to send and {} to receive, expected {} of each",
                                    counted(send.size(), "part"), receive.size(), team.size()));
  const auto own = send[team.index()];
  if (own.size() != receive[team.index()].size())
    return refuse(
        team, fmt::format("rank {} sends {} to itself and receives {}", team.rank_of(team.index()),
                          counted(own.size(), "byte"), receive[team.index()].size()));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (std::uint32_t member = 0; member < team.size(); ++member) {
    if (member == team.index()) continue;
    sends.push_back({.to = team.rank_of(member), .bytes = send[member]});
    receives.push_back({.from = team.rank_of(member), .bytes = receive[member]});
  }
  if (!own.empty()) std::memmove(receive[team.index()].data(), own.data(), own.size());
  return exchange(team, sends, receives, deadline);
}

Result<> all_gather(const Team& team, std::span<const std::span<std::byte>> parts,
                    TimePoint deadline) {
  if (parts.size() != team.size())
    return refuse(team, fmt::format("{} for {}", counted(parts.size(), "part"),
                                    counted(team.size(), "member")));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (std::uint32_t member = 0; member < team.size(); ++member) {
    if (member == team.index()) continue;
    sends.push_back({.to = team.rank_of(member), .bytes = parts[team.index()]});
    receives.push_back({.from = team.rank_of(member), .bytes = parts[member]});
  }
  return exchange(team, sends, receives, deadline);
}

Result<> reduce_scatter(const Team& team, std::span<const std::span<const float>> arrays,
                        std::span<const std::size_t> cuts, std::span<float> out,
                        TimePoint deadline) {
  WSYNC_TRY(check_parts(team, arrays, cuts, out.size()));
  const auto part_of = [&](std::uint32_t member, std::span<const float> array) {
    return array.subspan(cuts[member], cuts[member + 1] - cuts[member]);
  };
  const ArrayCount own_count = array_count(arrays.size());
  std::vector<ArrayCount> counts(team.size(), own_count);
  std::vector<float> others((team.size() - 1) * arrays.size() * out.size());
  std::span<float> free = others;
  std::vector<std::span<const float>> summands;  // in the order of the sum
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (std::uint32_t member = 0; member < team.size(); ++member) {
    const std::uint32_t rank = team.rank_of(member);
    if (member != team.index()) {
      sends.push_back({.to = rank, .bytes = own_count});
      receives.push_back({.from = rank, .bytes = counts[member]});
    }
    for (const auto& array : arrays) {
      if (member == team.index()) {
        summands.push_back(part_of(member, array));
        continue;
      }
      sends.push_back({.to = rank, .bytes = std::as_bytes(part_of(member, array))});
      receives.push_back({.from = rank, .bytes = std::as_writable_bytes(free.first(out.size()))});
      summands.emplace_back(free.first(out.size()));
      free = free.subspan(out.size());
    }
  }
  WSYNC_TRY(exchange(team, sends, receives, deadline));
  for (std::uint32_t member = 0; member < team.size(); ++member)
    if (std::uint64_t count = 0; counts[member] != own_count) {
      std::memcpy(&count, counts[member].data(), sizeof count);
      return refuse(team,
                    fmt::format("rank {} sums {}, rank {} {}", team.rank_of(team.index()),
                                counted(arrays.size(), "array"), team.rank_of(member), count));
    }
  if (planted("sum_backwards")) std::reverse(summands.begin(), summands.end());
  std::copy(summands.front().begin(), summands.front().end(), out.begin());
  for (std::size_t s = 1; s < summands.size(); ++s)
    for (std::size_t k = 0; k < out.size(); ++k) out[k] += summands[s][k];
  return {};
}

Result<> all_reduce(const Team& team, std::span<float> values, TimePoint deadline) {
  if (team.size() == 1) return {};
  // With two members both algorithms transfer the same number of bytes.
  if (team.size() == 2 || values.size_bytes() <= kAllReduceWholeBytes)
    return sum_whole(team, values, deadline);
  return sum_in_parts(team, values, deadline);
}

Result<> gather(const Team& team, std::span<const std::byte> own,
                std::span<const std::span<std::byte>> parts, TimePoint deadline) {
  if (team.index() != 0) {
    if (!parts.empty())
      return refuse(team, fmt::format("{} to fill, expected none: rank {} is not the first member",
                                      counted(parts.size(), "part"), team.rank_of(team.index())));
    return exchange(team, std::array{Send{.to = team.rank_of(0), .bytes = own}}, {}, deadline);
  }
  if (parts.size() != team.size())
    return refuse(team, fmt::format("{} for {}", counted(parts.size(), "part"),
                                    counted(team.size(), "member")));
  if (own.size() != parts.front().size())
    return refuse(team, fmt::format("rank {} has {} for a part of {}", team.rank_of(0),
                                    counted(own.size(), "byte"), parts.front().size()));
  std::vector<Receive> receives;
  for (std::uint32_t member = 1; member < team.size(); ++member)
    receives.push_back({.from = team.rank_of(member), .bytes = parts[member]});
  if (!own.empty()) std::memmove(parts.front().data(), own.data(), own.size());
  return exchange(team, {}, receives, deadline);
}

}  // namespace wsync::collective
