// FleetCommands: commands that sidecars must answer: verify, plan and trace each of them, forget
// one.
//
// Thread: the loop's. Each on_done is called once, on the loop, within seconds (verify: two
// minutes), and may be called before the function returns. The loop, the roster and the spans must
// outlive this object.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "shared/control/messages.h"
#include "shared/observe/trace/recorder.h"
#include "trainer_side/publish/fleet_question.h"

namespace wsync::publish {

class FleetCommands {
 public:
  // `roster`: the sidecars to ask. `own_spans`: the trace of this process. `trainer`: the peer of a
  // trainer of another process that is connected, which is asked for its trace as well. `send`: see
  // FleetQuestions.
  FleetCommands(Loop& loop, const coordinator::Roster& roster, const trace::Recorder& own_spans,
                std::function<std::optional<std::string>()> trainer, FleetQuestions::Send send)
      : roster_(roster),
        own_spans_(own_spans),
        trainer_(std::move(trainer)),
        questions_(loop, std::move(send)) {}

  // Verifies the bytes that each replica serves. A sidecar that does not answer appears with its
  // failure.
  void verify(std::function<void(control::VerifyReply)> on_done);
  void plan(control::Plan plan, std::function<void(control::PlanReply)> on_done);
  // Has a connected sidecar forget one of its replicas.
  void forget_replica(const control::Forget& what,
                      std::function<void(control::ForgetReply)> on_done);
  // Collects the traces of this process, of the trainer, and of the sidecars that answer. The clock
  // of each sidecar is measured first, by separate questions.
  void collect_trace(const control::TraceQuestion& question,
                     std::function<void(control::TraceAnswer)> on_done);

  // An answer of a sidecar to one of these questions, received at the time `at`.
  void answered(const std::string& peer, std::uint64_t request, control::Message message,
                TimePoint at);
  // `peer` can no longer answer; `why` says how it was lost.
  void lost(const std::string& peer, const std::string& why) { questions_.lost(peer, why); }

 private:
  // One entry for each rank that the sidecar had when it was heard last.
  void add_unverified(const FleetAnswer& answer, std::vector<control::VerifyRank>& ranks) const;
  void ask_traces(control::TraceQuestion question, FleetQuestions::OnDone on_done);

  const coordinator::Roster& roster_;
  const trace::Recorder& own_spans_;
  const std::function<std::optional<std::string>()> trainer_;
  FleetQuestions questions_;
  std::uint64_t next_question_ = 1;
};

}  // namespace wsync::publish
