#include "inference_side/reload/rank_table.h"

#include <algorithm>
#include <array>
#include <span>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::reload {
namespace {

using control::RankState;
// "rank 3", "ranks 0 and 1", "ranks 0, 2 and 4 to 7". The ranks rise; there is at least one.
std::string names_of(std::span<const std::uint32_t> ranks) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last > first + 1) {
      parts.push_back(fmt::format("{} to {}", ranks[first], ranks[last]));
      first = last + 1;
    } else {
      parts.push_back(std::to_string(ranks[first++]));
    }
  }
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    names += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return names;
}

constexpr auto kRankTransitions = [] {
  using enum RankMemory;
  return std::array<Transition<RankMemory>, 12>{{
      {kAbsent, "the rank attaches without a version", kUnloaded, ""},
      {kAbsent, "the rank attaches with a whole version", kWhole, "note the version"},
      {kAbsent, "the rank attaches after a load that did not end", kWritten, ""},
      {kUnloaded, "a load begins", kWritten, ""},
      {kWhole, "a load begins", kWritten, "forget the version"},
      {kWritten, "another load begins", kWritten, ""},
      {kWritten, "the rank has committed", kWhole, "note the version"},
      {kWritten, "the load could not begin, and the rank was whole before", kWhole, ""},
      {kWritten, "the load could not begin, and the rank had no version", kUnloaded, ""},
      {kUnloaded, "the rank is lost", kAbsent, ""},
      {kWhole, "the rank is lost", kAbsent, "forget the version"},
      {kWritten, "the rank is lost", kAbsent, ""},
  }};
}();

}  // namespace

std::string_view rank_memory_name(RankMemory memory) noexcept {
  switch (memory) {
    case RankMemory::kAbsent:
      return "absent";
    case RankMemory::kUnloaded:
      return "unloaded";
    case RankMemory::kWhole:
      return "whole";
    case RankMemory::kWritten:
      return "written";
  }
  return "unknown";
}

TransitionTable rank_transitions() {
  return describe<RankMemory>("RankTable", "The weights in one rank's memory.", kRankTransitions,
                              rank_memory_name);
}

void RankTable::move(Rank& rank, RankMemory to) {
  WSYNC_CHECK(allows<RankMemory>(kRankTransitions, rank.memory, to),
              fmt::format("a rank cannot go from {} to {}", rank_memory_name(rank.memory),
                          rank_memory_name(to)));
  rank.memory = to;
}

std::uint32_t RankTable::attached() const noexcept {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      ranks_, [](const Rank& rank) { return rank.memory != RankMemory::kAbsent; }));
}

bool RankTable::is_attached(std::uint32_t rank) const noexcept {
  return rank < ranks_.size() && ranks_[rank].memory != RankMemory::kAbsent;
}

bool RankTable::is_leader(std::uint32_t rank) const noexcept {
  return rank < ranks_.size() && ranks_[rank].leader;
}

std::string not_attached(std::span<const std::uint32_t> ranks) {
  return fmt::format("{} {} not attached", names_of(ranks), ranks.size() == 1 ? "is" : "are");
}

std::vector<std::uint32_t> RankTable::absent() const {
  std::vector<std::uint32_t> absent;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (!is_attached(rank)) absent.push_back(rank);
  return absent;
}

std::string RankTable::missing() const {
  const std::vector<std::uint32_t> ranks = absent();
  return ranks.empty() ? "every rank is attached" : not_attached(ranks);
}

std::string RankTable::unanswered() const {
  std::vector<std::uint32_t> awaited;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (awaits(rank)) awaited.push_back(rank);
  return awaited.empty() ? "no rank" : names_of(awaited);
}

std::uint32_t RankTable::leader() const {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (is_attached(rank) && ranks_[rank].leader) return rank;
  return 0;
}

bool RankTable::quiesced() const {
  return std::ranges::none_of(
      ranks_, [](const Rank& rank) { return rank.memory != RankMemory::kAbsent && rank.serving; });
}

std::optional<Version> RankTable::uniform() const {
  for (const Rank& rank : ranks_)
    if (rank.memory != RankMemory::kWhole || rank.version != ranks_[0].version) return std::nullopt;
  return ranks_[0].version;
}

bool RankTable::any_written() const {
  return std::ranges::any_of(ranks_,
                             [](const Rank& rank) { return rank.memory == RankMemory::kWritten; });
}

void RankTable::attach(const RankAttached& hello) {
  Rank& rank = ranks_[hello.rank];
  rank.leader = hello.leader;
  rank.serving = hello.state == RankState::kServing;
  const bool written = hello.state == RankState::kTainted || hello.state == RankState::kLoaded;
  const bool whole = rank.serving || (hello.state == RankState::kPaused && !hello.active.none());
  move(rank, whole ? RankMemory::kWhole : written ? RankMemory::kWritten : RankMemory::kUnloaded);
  if (whole) rank.version = hello.active;
}

void RankTable::detach(std::uint32_t rank) {
  move(ranks_[rank], RankMemory::kAbsent);
  ranks_[rank] = Rank{};
  silent_.erase(rank);
  damaged_.erase(rank);
}

std::optional<std::string> RankTable::damaged() const {
  if (damaged_.empty()) return std::nullopt;
  return damaged_.begin()->second;
}

std::optional<std::string> RankTable::silent() const {
  if (silent_.empty()) return std::nullopt;
  const auto& [rank, why] = *silent_.begin();
  return fmt::format("rank {} {}", rank, why);
}

void RankTable::assume_serving() {
  for (Rank& rank : ranks_) rank.serving = rank.memory == RankMemory::kWhole;
}

void RankTable::expect_answers() {
  for (Rank& rank : ranks_) rank.answered = false;
}

bool RankTable::awaits(std::uint32_t rank) const {
  return is_attached(rank) && !ranks_[rank].answered;
}

bool RankTable::all_answered() const {
  return std::ranges::all_of(
      ranks_, [](const Rank& rank) { return rank.memory != RankMemory::kAbsent && rank.answered; });
}

void RankTable::begin_load() {
  before_load_ = ranks_;
  expect_answers();
  for (Rank& rank : ranks_) {
    move(rank, RankMemory::kWritten);
    rank.version = {};
  }
}

void RankTable::revert_load() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    move(ranks_[rank], before_load_[rank].memory);
    ranks_[rank] = before_load_[rank];
  }
}

void RankTable::commit(std::uint32_t rank, const Version& version) {
  move(ranks_[rank], RankMemory::kWhole);
  ranks_[rank].answered = true;
  ranks_[rank].version = version;
}

Result<> RankTable::invariants() const {
  for (const auto& [rank, why] : silent_)
    if (!is_attached(rank))
      return fail(ErrorCode::kInternal, "a rank that is not attached is silent");
  for (const auto& [rank, why] : damaged_)
    if (!is_attached(rank))
      return fail(ErrorCode::kInternal, "a rank that is not attached is damaged");
  for (const Rank& rank : ranks_) {
    if (rank.serving && rank.memory == RankMemory::kAbsent)
      return fail(ErrorCode::kInternal, "a rank that is not attached serves");
    if (rank.memory != RankMemory::kWhole && !rank.version.none())
      return fail(ErrorCode::kInternal, "a rank names a version that it does not hold");
  }
  return {};
}

}  // namespace wsync::reload
