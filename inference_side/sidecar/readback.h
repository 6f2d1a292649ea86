// Readback: what every attached rank holds, read back tensor by tensor and compared with the
// version it serves (`wsync verify`).
//
// Thread: the loop's; callbacks come on the loop, never inside a call.
// Outlives: the loop and the worker outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/staging/store.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

class Readback {
 public:
  using OnDone = std::function<void(std::vector<control::VerifyRank>)>;
  // Expected digests are computed on `worker`. `on_gpus`: ranks answer with piece digests.
  Readback(Loop& loop, Worker& worker, bool on_gpus)
      : loop_(loop), worker_(worker), on_gpus_(on_gpus) {}
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;
  // A comparison in flight gets no on_done.
  ~Readback() { *alive_ = false; }

  // Asks the attached ones of `ranks`. One at a time: a second call before the first has answered
  // joins it. `on_done` within `deadline`, ordered by replica and rank.
  void begin(const std::vector<std::shared_ptr<EngineRank>>& ranks,
             std::chrono::milliseconds deadline, OnDone on_done);
  // A rank's answer; `held` is the version it names, null when that is not staged here.
  void answered(const std::shared_ptr<EngineRank>& rank, control::Digests digests,
                const std::shared_ptr<const staging::HeldVersion>& held);
  void lost(const std::shared_ptr<EngineRank>& rank, const Error& error);

 private:
  struct Round {
    std::vector<std::shared_ptr<EngineRank>> waiting;
    std::vector<control::VerifyRank> ranks;
    std::vector<OnDone> on_done;
    std::unique_ptr<Timer> deadline;
  };
  void finish();

  Loop& loop_;
  Worker& worker_;
  const bool on_gpus_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Round> round_;
};

}  // namespace wsync::agent
