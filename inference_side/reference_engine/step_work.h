// StepWork: what the ranks of a replica compute in their steps. Serving runs it.
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

  // Leader: there is something to compute now. Without, no step is begun but the first after a
  // resume; Serving::wake() makes it ask again.
  [[nodiscard]] virtual bool due() = 0;
  // Leader: all ranks shall leave off serving, in this way. True when they may now; otherwise steps
  // go on and it is asked again after each.
  [[nodiscard]] virtual bool may_stop(PauseMode mode) = 0;
  // Leader: serving goes on, after a stop or instead of one that was asked for.
  virtual void resumed() = 0;
  // Leader: every rank of the replica is there, some of them perhaps new.
  virtual void together() = 0;

  // Every rank's share of a step that all have agreed on. `team`: all ranks, the leader first.
  // `saw` gets one sentence when a layer was not of that version. An error breaks the group.
  [[nodiscard]] virtual Result<Reading> run(std::uint64_t step, const Version& version,
                                            const collective::Team& team, TimePoint deadline,
                                            std::string& saw) = 0;
  // Leader: the step is over, on every rank if `done`; `total` is then the reduction.
  virtual void ended(bool done, const Version& version, const Reading& total) = 0;
};

}  // namespace wsync::engine::reference
