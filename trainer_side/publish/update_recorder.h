// UpdateRecorder: the one place that is told what an update does. It keeps four records of it: the
// journal (progress and outcome, for the status), the trace, the history of the web page, and the
// metrics. An update is a publish or a rollback; its request number is used once.
//
// Thread: the loop's. The clock comes with each call.
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
#include "trainer_side/publish/update_journal.h"

namespace wsync::publish {

class UpdateRecorder {
 public:
  // As RoundTrace: the trace goes to `trace_file` at write_trace(); it has `trace_spans` at most.
  UpdateRecorder(std::string trace_file, std::uint64_t trace_spans)
      : trace_(std::move(trace_file), trace_spans) {}

  // A number for the next update: publishes and rollbacks are numbered together.
  [[nodiscard]] std::uint64_t next_request() noexcept { return next_request_++; }

  // ---- a publish ----

  void snapshot_began(std::uint64_t request, const Version& version, TimePoint at);
  // `took`: from the opening of its source to its last byte.
  void snapshot_taken(std::uint64_t request, const Snapshot& snapshot,
                      std::chrono::nanoseconds took, TimePoint at);
  void phase_entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  void round_ended(const RoundDone& done, TimePoint at);
  // It has ended before the coordinator had heard of it.
  void failed(std::uint64_t request, const Error& why, TimePoint at);

  // ---- a rollback ----

  void rollback_began(std::uint64_t request, const Version& to, TimePoint at);
  void rollback_ended(std::uint64_t request, const control::RollbackReply& reply, TimePoint at);

  // ---- the fleet ----

  void sent(const std::string& sidecar, const control::Message& message, TimePoint at);
  void received(const std::string& sidecar, const control::Message& message, TimePoint at);
  // Something that the people who run the fleet should know: logged as a warning, and kept.
  void incident(const std::string& text, TimePoint at);

  // ---- what is reported ----

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
  RoundMetrics metrics_;
};

}  // namespace wsync::publish
