// UpdateRecorder: receives all events of an update, and keeps four records of it: the journal
// (progress and outcome, for the status), the trace, the history of the web page, and the metrics.
// An update is a publish or a rollback; its request number is used once.
//
// Thread: the loop's. The time is an argument of each call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/page/round_history.h"
#include "trainer_side/coordinator/round_metrics.h"
#include "trainer_side/publish/round_trace.h"
#include "trainer_side/publish/served_versions.h"
#include "trainer_side/publish/update_journal.h"

namespace wsync::publish {

// This class has more than 25 methods: each event of an update has its own.
class UpdateRecorder {
 public:
  // As RoundTrace: write_trace() writes the trace to `trace_file`; it has at most `trace_spans`
  // spans.
  UpdateRecorder(std::string trace_file, std::uint64_t trace_spans)
      : trace_(std::move(trace_file), trace_spans) {}

  // The number of the next update. Publishes and rollbacks share one sequence of numbers.
  [[nodiscard]] std::uint64_t next_request() noexcept { return next_request_++; }

  // ---- a publish ----

  void snapshot_began(std::uint64_t request, const Version& version, TimePoint at);
  // The publish of a trainer of another process, whose snapshot has begun or is complete.
  void publish_requested(std::uint64_t request, const Version& version, std::uint64_t bytes,
                         TimePoint at);
  // It took from `begin`, the opening of the source, to `end`, the last byte.
  void snapshot_taken(std::uint64_t request, const Snapshot& snapshot, TimePoint begin,
                      TimePoint end, TimePoint at);
  void phase_entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  void round_ended(const coordinator::RoundDone& done, TimePoint at);
  // Its round has lost every sidecar, and it waits for another round. `text` is an incident.
  void round_lost(std::uint64_t request, const std::string& text, TimePoint at);
  // It has ended before the coordinator received it.
  void superseded(std::uint64_t request, const control::PushReply& reply, TimePoint at);
  void failed(std::uint64_t request, const Error& why, TimePoint at);

  // ---- a rollback, a promotion ----

  void rollback_began(std::uint64_t request, const Version& to, TimePoint at);
  void rollback_ended(std::uint64_t request, const control::RollbackReply& reply, TimePoint at);
  void promotion_began(std::uint64_t request, const Version& version, TimePoint at);
  void promotion_ended(std::uint64_t request, const control::PromoteReply& reply, TimePoint at);

  // ---- the fleet ----

  void sent(const std::string& sidecar, const control::Message& message, TimePoint at);
  void received(const std::string& sidecar, const control::Message& message, TimePoint at);
  // As RoundTrace::record_stored().
  void record_stored(const Version& target, TimePoint begin, TimePoint end) {
    trace_.record_stored(target, begin, end);
  }
  // A version that was held as its changes is complete.
  void version_completed(const ServedVersions::Completed& completed) {
    trace_.version_completed(completed);
    metrics_.version_completed(completed.in_place);
  }
  // Such a version could not be made complete. `text` is an incident.
  void version_lost(const std::string& text, TimePoint at) {
    metrics_.version_lost();
    incident(text, at);
  }
  // The sidecar is no longer known.
  void forget(const std::string& sidecar) { trace_.forget(sidecar); }
  // A message for the operators of the fleet. It is logged as a warning and kept.
  void incident(const std::string& text, TimePoint at);

  // ---- reports ----

  // As UpdateJournal::shown() and report().
  [[nodiscard]] std::uint64_t shown() const noexcept { return journal_.shown(); }
  void report(const PhaseBytes& moved, TimePoint at, control::StatusReply& out) const {
    journal_.report(moved, at, out);
  }
  [[nodiscard]] std::vector<page::RoundHistory::Round> rounds(TimePoint at) const {
    return history_.rounds(at);
  }
  [[nodiscard]] const trace::Recorder& spans() const noexcept { return trace_.recorder(); }
  [[nodiscard]] metrics::Registry& metrics() noexcept { return metrics_.registry(); }
  void write_trace() const { trace_.write(); }

 private:
  void end(std::uint64_t request, UpdateEnd end, const control::PushReply& reply, TimePoint at);

  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, Version> publishes_;  // by request; snapshot begun, not ended
  UpdateJournal journal_;
  RoundTrace trace_;
  page::RoundHistory history_;
  coordinator::RoundMetrics metrics_;
};

}  // namespace wsync::publish
