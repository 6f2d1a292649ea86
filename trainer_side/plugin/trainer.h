// Trainer: one rank of a trainer that publishes its weights. What the C API (wsync/trainer.h)
// wraps.
//
// Thread: every function may be called from any thread; a thread of its own runs the loop. That
// thread blocks every signal, so the caller's handlers stay the caller's.
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
  // 0: the first process of this rank; one that takes the place of a process that was lost, and may
  // only stand still, has a higher one. Rank 0 takes no notice of it: see `take_over` of its
  // config.
  std::uint32_t incarnation = 0;
};

class Trainer {
 public:
  // kInvalidInput when the rank is not below the world size, or one of them is over its limit.
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> create(TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  // Waits for a callback of a tensor that runs; publishes that have not ended fail (kCancelled).
  ~Trainer();

  // Rank 0: binds its addresses (errors as TrainerAgent::create). Others: begin to look for rank 0.
  [[nodiscard]] Result<> start();
  // Begins a publish of these tensors; its number. Memory and callbacks of the tensors are read
  // until the publish is snapshotted or has ended. `step` 0: the next free one, with one rank only.
  // kInvalidInput: several ranks and no step, or a publish of this step has not ended. The latter
  // is no error for a rank above 0 that publishes the same weights once more: this publish then has
  // the end of the one before, or takes its place when rank 0 has failed to make a version of it.
  [[nodiscard]] Result<std::uint64_t> publish_async(RankTensors tensors, std::uint64_t step,
                                                    Weights weights = Weights::kNew);
  [[nodiscard]] Result<PublishView> look(std::uint64_t publish) const {
    return board_.look(publish);
  }
  // Rank 0: the publish of this step fails if none of its weights has been read yet, because it
  // waits for sidecars or for a free arena; otherwise it goes on. The board tells which it was.
  [[nodiscard]] Result<> give_up(std::uint64_t step);
  // Rank 0: all ranks are about to publish this step once more: from now on it takes their reports,
  // whatever it said of the step before.
  [[nodiscard]] Result<> expect(std::uint64_t step);
  // Rank 0: a rank was lost. A publish of this step that lacks the reports of ranks, now or when
  // its turn comes, fails (kPeerLost) instead of waiting for them. Until expect().
  [[nodiscard]] Result<> no_more(std::uint64_t step);
  // As PublishBoard::wait().
  [[nodiscard]] Result<PublishView> wait(std::uint64_t publish, control::PublishState state,
                                         std::optional<TimePoint> deadline) const {
    return board_.wait(publish, state, deadline);
  }
  // Rank 0: brings the fleet back to `to` (0.0: the previous version). Waits `time`, but no longer
  // than a switch may take. kDeadline: not done in time, and it goes on.
  [[nodiscard]] Result<control::RollbackReply> roll_back(
      const Version& to, std::optional<std::chrono::milliseconds> time);
  // Why nothing will be published any more: kFenced when a newer coordinator has the fleet, or when
  // a newer process is this rank.
  [[nodiscard]] Result<> check() const;

 private:
  explicit Trainer(TrainerOptions options) : options_(std::move(options)) {}
  void run();  // the thread
  [[nodiscard]] Result<> post(std::function<void(RankRole&)> work);

  const TrainerOptions options_;
  PublishBoard board_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  Loop* loop_ = nullptr;      // while the thread runs it
  RankRole* role_ = nullptr;  // used on the loop only
  std::optional<Result<>> started_;
  std::optional<Error> stopped_;
  std::thread thread_;
};

}  // namespace wsync::plugin
