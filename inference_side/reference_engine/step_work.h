// StepWork: what the ranks of a replica compute in their steps. Serving executes it.
#pragma once

#include <cstdint>
#include <string>

#include "inference_side/reference_engine/step_protocol.h"
#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "shared/process_group/collectives.h"

namespace wsync::engine::reference {

// Thread: the serving thread.
class StepWork {
 public:
  virtual ~StepWork() = default;

  // Leader: whether there is something to compute now. If not, the only step that begins is the
  // first one after a resume. Serving::wake() causes another call.
  [[nodiscard]] virtual bool due() = 0;
  // Leader: all ranks shall stop serving in this mode. Returns true if they may stop now. Otherwise
  // steps continue, and this is called again after each step.
  [[nodiscard]] virtual bool may_stop(PauseMode mode) = 0;
  // Leader: serving continues, either after a stop or because a requested stop was cancelled.
  virtual void resumed() = 0;
  // Leader: all ranks of the replica are connected; some of them may be new.
  virtual void together() = 0;

  // Computes this rank's share of a step that all ranks have agreed on. `team`: all ranks, the
  // leader first. `saw` receives one sentence if a layer did not have that version. An error breaks
  // the group.
  [[nodiscard]] virtual Result<Reading> run(std::uint64_t step, const Version& version,
                                            const collective::Team& team, TimePoint deadline,
                                            std::string& saw) = 0;
  // Leader: the step has ended; `done` says whether it was completed on every rank. If so, `total`
  // is the reduction.
  virtual void ended(bool done, const Version& version, const Reading& total) = 0;
};

}  // namespace wsync::engine::reference
