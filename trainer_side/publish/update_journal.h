// UpdateJournal: what a coordinator reports of its updates: how far the running one has come and
// how long it will take, how the last one ended, counts, and incidents.
//
// An update begins with its snapshot, or with the decision of a rollback, under a request number
// that is used once and ends once. A publish may end before it has begun. Any other event of a
// number that does not run is ignored.
//
// Thread: one. Pure: the clock comes with each call.
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

enum class UpdateEnd : std::uint8_t { kCommitted, kFailed, kCancelled, kSuperseded };

// What has moved in the phase that runs; total 0 = not known.
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
  // Its snapshot is complete. Its round begins when no other runs.
  void snapshot_taken(std::uint64_t request, const Version& version, std::uint64_t model_bytes);
  // Its round enters this phase.
  void entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  // `reply` holds its times, and the reason of a failure. A failure becomes an incident.
  void ended(std::uint64_t request, UpdateEnd end, const control::PushReply& reply, TimePoint at);
  void rollback_ended(std::uint64_t request, const control::RollbackReply& reply, TimePoint at);
  // One sentence for the operator. The newest limits::kIncidentCount are kept.
  void incident(std::string text, TimePoint at);

  // The request whose progress report() reports: the one in a round, else the oldest; 0 = none.
  [[nodiscard]] std::uint64_t shown() const noexcept;
  // Fills in running, last, updates and incidents. `moved`: bytes of the request shown().
  //
  // The remaining time is (total - done) / rate of the current phase, plus the time that each later
  // phase took in the newest good update, scaled by the bytes of the two models. In a phase that
  // reports no bytes it is what that update took, less the time that has passed; it is not known
  // once the phase has lasted longer than staging and switching took together. Before the first
  // good update it is known only while staging, and is the time until everything is staged.
  void report(const PhaseBytes& moved, TimePoint now, control::StatusReply& out) const;

 private:
  struct Running {
    Version version;
    control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
    bool rollback = false;
    bool in_round = false;
    std::uint64_t model_bytes = 0;  // 0 = not known yet
    TimePoint began{};
    TimePoint phase_began{};
  };
  // Times of the newest good update, in seconds for each byte of its model.
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
  std::deque<Incident> incidents_;  // the newest first
};

}  // namespace wsync::publish
