// UpdateJournal: what a coordinator reports about its updates: the progress and remaining time of
// the running one, the result of the last one, counts, and incidents.
//
// An update begins with its snapshot, or with the decision of a rollback, under a request number
// that is used once and ends once. A publish may end before it has begun. All other events with a
// number that is not running are ignored.
//
// Thread: confined to one thread. Pure: the time is an argument of each call.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::publish {

// kPartial: decided, but not every replica serves it.
enum class UpdateEnd : std::uint8_t { kCommitted, kFailed, kPartial, kCancelled, kSuperseded };

// Bytes moved in the current phase; total 0 = unknown.
struct PhaseBytes {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};

class UpdateJournal {
 public:
  // The snapshot of this version begins.
  void began(std::uint64_t request, const Version& version, TimePoint at);
  // A rollback to `to` has been decided.
  void rollback_began(std::uint64_t request, const Version& to, TimePoint at);
  // A promotion of `version`, which the canary serves, has been decided.
  void promotion_began(std::uint64_t request, const Version& version, TimePoint at);
  // The snapshot is complete. The round begins when no other round is running.
  void snapshot_taken(std::uint64_t request, const Version& version, std::uint64_t model_bytes);
  // The round enters this phase.
  void entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  // Its round is over, and it waits for another one.
  void round_lost(std::uint64_t request, TimePoint at);
  // `reply` contains its times, and the reason of a failure. A failure becomes an incident.
  void ended(std::uint64_t request, UpdateEnd end, const control::PushReply& reply, TimePoint at);
  void rollback_ended(std::uint64_t request, const control::RollbackReply& reply, TimePoint at);
  void promotion_ended(std::uint64_t request, const control::PromoteReply& reply, TimePoint at);
  // One sentence for the operator. The newest limits::kIncidentCount are kept.
  void incident(std::string text, TimePoint at);

  // The request whose progress report() reports: the one in a round, otherwise the oldest; 0 =
  // none.
  [[nodiscard]] std::uint64_t shown() const noexcept;
  // Fills in running, last, updates and incidents. `moved`: bytes of the request shown().
  //
  // The remaining time is (total - done) / rate of the current phase, plus the time that each later
  // phase took in the newest successful update, scaled by the bytes of the two models. For a phase
  // that reports no bytes, it is the time of that phase in the newest successful update minus the
  // elapsed time; it is unknown once the phase has lasted longer than staging and switching
  // together took. Before the first successful update it is known only while staging, and is the
  // time until everything is staged.
  void report(const PhaseBytes& moved, TimePoint now, control::StatusReply& out) const;

 private:
  struct Running {
    Version version;
    control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
    bool rollback = false;
    bool in_round = false;
    std::uint64_t model_bytes = 0;  // 0 = unknown
    TimePoint began{};
    TimePoint phase_began{};
  };
  // Times of the newest successful update, in seconds for each byte of its model.
  struct Pace {
    double staged = 0;
    double switched = 0;
  };
  void finish(control::UpdateOutcome outcome, UpdateEnd end, TimePoint at);
  [[nodiscard]] std::optional<double> remaining_s(const Running& running, const PhaseBytes& moved,
                                                  TimePoint now) const;

  std::map<std::uint64_t, Running> running_;
  std::optional<Pace> pace_;
  control::UpdateOutcome last_;
  TimePoint last_ended_{};
  control::UpdateCounters counters_;
  struct Incident {
    TimePoint at{};
    std::string text;
  };
  std::deque<Incident> incidents_;  // newest first
};

}  // namespace wsync::publish
