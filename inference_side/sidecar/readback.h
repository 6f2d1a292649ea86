// Readback: asks every attached rank for the digests of its tensors, and compares them with the
// version that the rank serves (`wsync verify`).
//
// Thread: the loop's; callbacks are called on the loop, never inside a call. The loop and the
// worker must outlive this object.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/staging/store.h"
#include "shared/base/clock.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

// Bytes of a rank that are not those of the version that it serves.
struct ReadDifference {
  std::string what;  // in one sentence: rank, tensor, version, expected and found digest
  TimePoint read{};  // none of them were read later
  // The bytes that are staged are not those of the version either, or instead.
  bool is_copy_suspect = false;
};

class Readback {
 public:
  using OnDone = std::function<void(std::vector<control::VerifyRank>)>;
  // Returns what follows for the attached rank, in one sentence.
  using OnDiffers = std::function<std::string(const EngineRank& rank, const ReadDifference&)>;
  // Expected digests are computed on `worker`. `on_differs` may be called inside answered().
  Readback(Loop& loop, Worker& worker, OnDiffers on_differs)
      : loop_(loop), worker_(worker), on_differs_(std::move(on_differs)) {}
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;
  // A comparison in progress does not call on_done.
  ~Readback() { *alive_ = false; }

  // Asks those of `ranks` that are attached. A silent one is not asked, and has a failure that says
  // so. Only one comparison runs at a time; a call during a comparison joins it. `on_done` is
  // called within `deadline`, with the ranks ordered by replica and rank. A rank that does not
  // answer has a failure.
  void begin(const std::vector<std::shared_ptr<EngineRank>>& ranks,
             std::chrono::milliseconds deadline, OnDone on_done);
  // A rank has answered. `held`: the version that it names; null if that version is not staged
  // here.
  void answered(const std::shared_ptr<EngineRank>& rank, control::Digests digests,
                const std::shared_ptr<const staging::HeldVersion>& held);
  // A rank's connection has ended.
  void lost(const std::shared_ptr<EngineRank>& rank, const Error& error);
  // A rank has become silent. Its answer is not waited for any longer, unless it is here already.
  void silenced(const std::shared_ptr<EngineRank>& rank);

 private:
  struct Round {
    std::vector<std::shared_ptr<EngineRank>> waiting;
    std::set<const EngineRank*> compared;  // those of `waiting` whose answer is being compared
    std::vector<control::VerifyRank> ranks;
    std::vector<OnDone> on_done;
    std::unique_ptr<Timer> deadline;
  };
  // The rank could not be read back.
  void add_failure(const EngineRank& rank, std::string why);
  void finish();

  Loop& loop_;
  Worker& worker_;
  const OnDiffers on_differs_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Round> round_;
};

}  // namespace wsync::agent
