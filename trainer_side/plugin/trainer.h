// Trainer: one rank of a trainer that publishes its weights. The C API (wsync/trainer.h) wraps it.
//
// Thread: every function may be called from any thread. The loop runs on its own thread, which
// blocks all signals, so that they are delivered to the threads of the caller.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "shared/config/trainer_config.h"
#include "trainer_side/plugin/publish_board.h"
#include "trainer_side/plugin/rank_role.h"

namespace wsync::plugin {

struct TrainerOptions {
  config::TrainerConfig config;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // Number of the process of this rank, from 0. A process that replaces another one has a higher
  // number; the other one may hang instead of having ended. Ignored on rank 0: see `take_over` of
  // its config.
  std::uint32_t incarnation = 0;
  // Rank 0: while too few sidecars or engines are there, the newest snapshot is taken and kept
  // without a limit. Otherwise a publish waits for sidecars before its snapshot, until
  // deadlines.publish.
  bool keeps_snapshots = true;
};

class Trainer {
 public:
  // Returns kInvalidInput if the rank is not below the world size, or if one of them exceeds its
  // limit.
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> create(TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  // Waits for running tensor callbacks. Publishes that have not ended fail (kCancelled).
  ~Trainer();

  // Rank 0 binds its addresses; errors as TrainerAgent::create(). Other ranks begin to connect to
  // rank 0.
  [[nodiscard]] Result<> start();
  // Begins a publish of these tensors and returns its number. Memory and callbacks of the tensors
  // are read until the publish is snapshotted or has ended. `step` 0 selects the next free step; it
  // is allowed with one rank only.
  //
  // Returns kInvalidInput if the step is above coordinator::kGivenStepMax, if there are several
  // ranks and no step, or if a publish of this step has not ended. The last case is allowed for a
  // rank above 0 that publishes the same weights again: the new publish gets the result of the
  // previous one, or replaces it if rank 0 has made no version of it.
  [[nodiscard]] Result<std::uint64_t> publish_async(RankTensors tensors, std::uint64_t step,
                                                    Weights weights = Weights::kNew);
  // Takes memory for a version of these tensors, which the caller writes in place. Waits for memory
  // at most deadlines.snapshot. Errors as Draft::begin(), and kInvalidInput if the step is
  // too high, if there are several ranks and no step, or if the trainer has not been started.
  [[nodiscard]] Result<std::shared_ptr<publish::Draft>> begin(
      std::vector<publish::DraftTensor> tensors, std::uint64_t step);
  // The same as the other function for a sealed draft. `tensors` describes its tensors; their bytes
  // are ignored.
  [[nodiscard]] Result<std::uint64_t> publish_async(std::shared_ptr<publish::Draft> draft,
                                                    RankTensors tensors, std::uint64_t step);
  [[nodiscard]] Result<PublishView> look(std::uint64_t publish) const {
    return board_.look(publish);
  }
  // Rank 0: the publish of this step fails if none of its weights has been read yet, because it
  // waits for sidecars or for a free arena. Otherwise it continues. The board shows the result.
  [[nodiscard]] Result<> give_up(std::uint64_t step);
  // Rank 0: all ranks will publish this step again. From now on its reports are accepted, even if
  // the step was over.
  [[nodiscard]] Result<> expect(std::uint64_t step);
  // Rank 0: a rank was lost. A publish of this step with missing reports fails (kPeerLost) instead
  // of waiting for them, now or when it becomes the current one. Applies until expect().
  [[nodiscard]] Result<> no_more(std::uint64_t step);
  // As PublishBoard::wait(). Without a deadline it waits a little longer than deadlines.publish,
  // because a snapshot that is kept may wait for sidecars for ever.
  [[nodiscard]] Result<PublishView> wait(std::uint64_t publish, control::PublishState state,
                                         std::optional<TimePoint> deadline) const;
  // Rank 0: returns the fleet to version `to` (0.0: the previous version). Waits `time`, but no
  // longer than a switch may take. kDeadline: not done in time; the rollback continues.
  [[nodiscard]] Result<control::RollbackReply> roll_back(
      const Version& to, std::optional<std::chrono::milliseconds> time);
  // Returns an error if this rank can no longer publish: kFenced if a newer coordinator controls
  // the fleet, or if a newer process is this rank.
  [[nodiscard]] Result<> check() const;

 private:
  explicit Trainer(TrainerOptions options) : options_(std::move(options)) {}
  void run();  // runs on the thread
  [[nodiscard]] Result<> post(std::function<void(RankRole&)> work);
  [[nodiscard]] Result<> check_step(std::uint64_t step) const;
  [[nodiscard]] Result<std::uint64_t> publish_order(PublishOrder order, Weights weights);

  const TrainerOptions options_;
  PublishBoard board_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_:
  Loop* loop_ = nullptr;      // set while the thread runs it
  RankRole* role_ = nullptr;  // used on the loop only
  std::optional<Result<>> started_;
  std::optional<Error> stopped_;
  std::thread thread_;
};

}  // namespace wsync::plugin
