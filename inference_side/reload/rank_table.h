// RankTable: what the ranks of one replica hold and do, as far as their sidecar knows.
//
// Thread: one. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::reload {

// The weights in a rank's memory.
enum class RankMemory : std::uint8_t {
  kAbsent,    // the rank is not attached
  kUnloaded,  // no version yet
  kWhole,     // every byte is of one version
  kWritten,   // a load began, and no commit ended it: the bytes may be of two versions
};

[[nodiscard]] std::string_view rank_memory_name(RankMemory memory) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable rank_transitions();

class RankTable {
 public:
  explicit RankTable(std::uint32_t world_size) : ranks_(world_size) {}

  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(ranks_.size());
  }
  [[nodiscard]] std::uint32_t attached() const noexcept;
  // False also for a rank that does not exist.
  [[nodiscard]] bool is_attached(std::uint32_t rank) const noexcept;
  [[nodiscard]] bool is_leader(std::uint32_t rank) const noexcept;
  // Whether every rank is attached.
  [[nodiscard]] bool complete() const noexcept { return attached() == ranks_.size(); }
  // Which rank is not attached, as a sentence.
  [[nodiscard]] std::string missing() const;
  // The rank that paces the others; 0 while it is not attached.
  [[nodiscard]] std::uint32_t leader() const;
  // Whether no attached rank can be inside a step.
  [[nodiscard]] bool quiesced() const;
  [[nodiscard]] bool leader_serves() const { return ranks_[leader()].serving; }
  // The version that every rank holds whole; none while a rank is missing or holds another.
  [[nodiscard]] std::optional<Version> uniform() const;
  // Whether the bytes of a rank may be of two versions.
  [[nodiscard]] bool any_written() const;

  // A rank that was not attached says what it holds and does.
  void attach(const RankAttached& hello);
  void detach(std::uint32_t rank);
  // Whether the rank may be inside a step.
  void set_serving(std::uint32_t rank, bool serving) { ranks_[rank].serving = serving; }
  // While the leader serves, every rank with a whole version may be inside a step, whatever it
  // reported last.
  void assume_serving();

  // Every rank is to answer: nobody has yet.
  void expect_answers();
  // Whether an answer of this rank is due.
  [[nodiscard]] bool awaits(std::uint32_t rank) const;
  void set_answered(std::uint32_t rank) { ranks_[rank].answered = true; }
  [[nodiscard]] bool all_answered() const;
  // A load begins: every rank is written from now on, before the first byte changes, because a
  // crash may leave any part of the old and the new version.
  void begin_load();
  // The load could not begin: every rank is as it was before begin_load().
  void revert_load();
  // The rank has committed: it holds `version` whole.
  void commit(std::uint32_t rank, const Version& version);

  // kInternal with the first broken rule: only an attached rank serves, and only a rank that is
  // whole has a version.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Rank {
    RankMemory memory = RankMemory::kAbsent;
    bool leader = false;
    bool serving = false;   // may be inside a step
    bool answered = false;  // the request that is in flight
    Version version;        // kWhole only
  };

  static void move(Rank& rank, RankMemory to);

  std::vector<Rank> ranks_;
  std::vector<Rank> before_load_;  // ranks_ when the last load began
};

}  // namespace wsync::reload
