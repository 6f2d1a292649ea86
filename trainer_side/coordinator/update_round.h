// UpdateRound: one attempt to bring the fleet to a version. A publish is announced, staged, decided
// and switched; a rollback begins when it has been decided. The round knows its members and its
// deadline and says what comes next; RoundScheduler does it.
//
// Thread: one. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/transitions.h"
#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

enum class RoundState : std::uint8_t {
  kAnnouncing,  // waits for Accept or Refuse
  kStaging,     // bytes are moving
  kDeciding,    // the decision is being stored: the round can no longer be cancelled
  kSwitching,   // decided; waits for the sidecars' outcomes
  kFinished,
};
[[nodiscard]] std::string_view round_state_name(RoundState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable round_transitions();

// What a round needs next.
enum class RoundStep : std::uint8_t { kWait, kStage, kDecide, kFinish, kAbort };

// Bytes that have moved in a round, and how many will have.
struct MovedBytes {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};

// It has more than 25 methods: half of them are views of one field for the coordinator, its tests
// and its pages.
class UpdateRound {
 public:
  // A round of all sidecars that have joined. Tells the phase that it enters.
  [[nodiscard]] static UpdateRound begin_publish(CoordinatorContext& context,
                                                 const PublishRequested& publish);
  // A rollback that has just been decided. `from`: the target before, `to`: the target now.
  [[nodiscard]] static UpdateRound begin_rollback(CoordinatorContext& context,
                                                  std::uint64_t request, const Version& from,
                                                  const Version& to);

  [[nodiscard]] RoundState state() const noexcept { return state_; }
  [[nodiscard]] bool is_rollback() const noexcept { return is_rollback_; }
  // That the fleet is brought to.
  [[nodiscard]] const Version& version() const noexcept { return publish_.version; }
  // Names, in the order of the chain.
  [[nodiscard]] const std::vector<std::string>& members() const noexcept { return members_; }
  [[nodiscard]] bool has(const Member& member) const;
  // Of the present state; never after that of the whole publish.
  [[nodiscard]] TimePoint deadline() const noexcept { return deadline_; }
  // What it does, for sentences: "announcing", "staging", "switching".
  [[nodiscard]] std::string_view activity() const noexcept;

  // ---- progress ----

  void leave(const Member& member);
  void add_problems(const std::vector<control::Problem>& problems);
  // What comes next, now that something has changed. `number`: of the newest decision. May begin to
  // wait for more whole replicas, with a deadline of its own.
  [[nodiscard]] RoundStep advance(const CoordinatorContext& context, std::uint64_t number);
  void begin_staging(CoordinatorContext& context);
  void begin_deciding();
  void begin_switching(CoordinatorContext& context);

  // ---- its end ----

  // Why the round must end at its deadline; nothing when only those of its members fail that
  // is_late() names, or when it is switching.
  [[nodiscard]] std::optional<std::string> why_over(const CoordinatorContext& context) const;
  [[nodiscard]] bool is_late(const Member& member) const;
  // kRefused, with the reason, when it is too late to cancel the round. `waiting`: the version that
  // waits for its end, null for none.
  [[nodiscard]] Result<> check_cancel(const Version* waiting) const;
  // The round ends before its decision.
  [[nodiscard]] RoundDone abort(const std::string& why, bool cancelled);
  // The round ends after its decision; only of a publish, or only of a rollback.
  [[nodiscard]] RoundDone finish_publish(const CoordinatorContext& context, std::uint64_t number);
  [[nodiscard]] RollbackDone finish_rollback(const CoordinatorContext& context,
                                             const CoordinatorRecord& record);

  // ---- views ----

  // The address by which `member` reads the version over TCP: that of the nearest member before it
  // that relays, else the trainer's. Empty when there is none.
  [[nodiscard]] std::string chain_source(const CoordinatorContext& context,
                                         const Member& member) const;
  // Summed over the members while it stages, over their replicas once it is decided. Both are 0
  // before it stages. What a rollback loads is not known here: its total is 0.
  [[nodiscard]] MovedBytes moved(const CoordinatorContext& context) const;
  // kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  UpdateRound(const CoordinatorContext& context, RoundState state, bool is_rollback);
  void move(RoundState to);
  [[nodiscard]] TimePoint in_time(const CoordinatorContext& context,
                                  std::chrono::milliseconds phase) const;
  [[nodiscard]] std::uint32_t staged_replicas(const CoordinatorContext& context) const;
  [[nodiscard]] bool enough_staged(const CoordinatorContext& context) const;

  RoundState state_;
  bool is_rollback_;
  PublishRequested publish_;  // of a rollback: request and version alone
  std::vector<std::string> members_;
  TimePoint deadline_{};
  TimePoint started_{};
  TimePoint decided_{};
  Version from_;  // of a rollback
  std::vector<control::Problem> problems_;
  bool lacks_replicas_ = false;  // all have staged; the deadline is that of `attach`
};

}  // namespace wsync::coordinator
