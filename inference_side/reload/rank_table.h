// RankTable: the weights and the activity of the ranks of one replica, as known to their sidecar.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::reload {

// The weights in a rank's memory.
enum class RankMemory : std::uint8_t {
  kAbsent,    // the rank is not attached
  kUnloaded,  // no version yet
  kWhole,     // every byte belongs to one version
  kWritten,   // a load began and no commit ended it: the bytes may belong to two versions
};

[[nodiscard]] std::string_view rank_memory_name(RankMemory memory) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable rank_transitions();

// "rank 1 is not attached", "ranks 0, 2 and 4 to 7 are not attached". The ranks rise; there is at
// least one.
[[nodiscard]] std::string not_attached(std::span<const std::uint32_t> ranks);

// This class has more than 25 methods: most of them are questions of one line about the ranks.
class RankTable {
 public:
  explicit RankTable(std::uint32_t world_size) : ranks_(world_size) {}

  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(ranks_.size());
  }
  [[nodiscard]] std::uint32_t attached() const noexcept;
  // Returns false also for a rank that does not exist.
  [[nodiscard]] bool is_attached(std::uint32_t rank) const noexcept;
  [[nodiscard]] bool is_leader(std::uint32_t rank) const noexcept;
  // Whether every rank is attached.
  [[nodiscard]] bool complete() const noexcept { return attached() == ranks_.size(); }
  // The ranks that are not attached, in order.
  [[nodiscard]] std::vector<std::uint32_t> absent() const;
  // A sentence that names every rank that is not attached.
  [[nodiscard]] std::string missing() const;
  // The leader rank; 0 while it is not attached.
  [[nodiscard]] std::uint32_t leader() const;
  // Whether no attached rank can be inside a step.
  [[nodiscard]] bool quiesced() const;
  [[nodiscard]] bool leader_serves() const { return ranks_[leader()].serving; }
  // The version that every rank holds completely, as far as the ranks know; std::nullopt if a rank
  // is missing or the ranks differ.
  [[nodiscard]] std::optional<Version> uniform() const;
  // Whether the bytes of some rank may belong to two versions.
  [[nodiscard]] bool any_written() const;

  // Why a rank does not answer; std::nullopt if every attached rank does.
  [[nodiscard]] std::optional<std::string> silent() const;
  void set_silent(std::uint32_t rank, std::string why) { silent_[rank] = std::move(why); }
  void set_heard(std::uint32_t rank) { silent_.erase(rank); }

  // Why the bytes of a rank are not those of its version, although nobody has written them;
  // std::nullopt if none is known to be damaged. It is no matter of RankMemory: the rank serves,
  // and holds a version by its own account.
  [[nodiscard]] std::optional<std::string> damaged() const;
  void set_damaged(std::uint32_t rank, std::string why) { damaged_[rank] = std::move(why); }
  // Every byte of every rank was loaded and compared.
  void set_mended() { damaged_.clear(); }

  // Adds a rank with the state that its hello reports.
  void attach(const RankAttached& hello);
  void detach(std::uint32_t rank);
  // Whether the rank may be inside a step.
  void set_serving(std::uint32_t rank, bool serving) { ranks_[rank].serving = serving; }
  // While the leader serves, every rank with a complete version may be inside a step, regardless of
  // its last report.
  void assume_serving();

  // Every rank must answer the next request. Resets the answers.
  void expect_answers();
  // Whether an answer of this rank is expected.
  [[nodiscard]] bool awaits(std::uint32_t rank) const;
  void set_answered(std::uint32_t rank) { ranks_[rank].answered = true; }
  [[nodiscard]] bool all_answered() const;
  // The ranks whose answers are expected, as the subject of a sentence: "ranks 0 and 1".
  [[nodiscard]] std::string unanswered() const;
  // A load begins. Every rank is kWritten from now on, before the first byte changes, because a
  // crash may leave any mixture of old and new bytes.
  void begin_load();
  // The load could not begin. Restores every rank's state before begin_load().
  void revert_load();
  // The rank has committed: it holds `version` completely.
  void commit(std::uint32_t rank, const Version& version);

  // Returns kInternal with the first broken rule: only an attached rank serves or is silent, and
  // only a kWhole rank has a version.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Rank {
    RankMemory memory = RankMemory::kAbsent;
    bool leader = false;
    bool serving = false;   // may be inside a step
    bool answered = false;  // has answered the request in flight
    Version version;        // kWhole only
  };

  static void move(Rank& rank, RankMemory to);

  std::vector<Rank> ranks_;
  std::map<std::uint32_t, std::string> silent_;   // attached ranks that do not answer, and why
  std::map<std::uint32_t, std::string> damaged_;  // attached ranks, and what was found
  std::vector<Rank> before_load_;                 // ranks_ when the last load began
};

}  // namespace wsync::reload
