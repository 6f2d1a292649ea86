#include "trainer_side/training/lanes.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "shared/base/planted.h"

namespace wsync::training {
namespace {

class Run {
 public:
  Run(const schedule::RankProgram& program, const LaneHooks& hooks)
      : program_(program),
        hooks_(hooks),
        is_over_(program.operations.size(), false),
        times_(program.operations.size()) {}

  void run_lane(schedule::Lane lane) {
    for (const std::uint32_t index : program_.lanes[static_cast<std::size_t>(lane)]) {
      const schedule::Operation& operation = program_.operations[index];
      if (!wait_for(operation.after)) return;
      times_[index].begin = now();
      Result<> done = hooks_.work(operation);
      times_[index].end = now();
      if (!done) return stop(std::move(done).error());
      const std::lock_guard lock(mutex_);
      is_over_[index] = true;
      changed_.notify_all();
    }
  }

  [[nodiscard]] Result<std::vector<Measured>> result() && {
    if (failure_) return fail(std::move(*failure_));
    return std::move(times_);
  }

 private:
  bool wait_for(const std::vector<std::uint32_t>& others) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      if (failure_) return true;
      for (const std::uint32_t other : others)
        if (!is_over_[other] && !planted("lane_does_not_wait")) return false;
      return true;
    });
    return !failure_;
  }

  void stop(Error error) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = error;
      changed_.notify_all();
    }
    // Called without the lock: the lanes whose waits it ends need the lock to stop.
    hooks_.on_failure(error);
  }

  const schedule::RankProgram& program_;
  const LaneHooks& hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_:
  std::vector<bool> is_over_;
  std::optional<Error> failure_;
  // Each entry is written by the lane of its operation only, so that it needs no lock:
  std::vector<Measured> times_;
};

}  // namespace

Result<std::vector<Measured>> run_lanes(const schedule::RankProgram& program,
                                        const LaneHooks& hooks) {
  Run run(program, hooks);
  {
    const std::jthread communication([&] { run.run_lane(schedule::Lane::kCommunication); });
    const std::jthread copy([&] { run.run_lane(schedule::Lane::kCopy); });
    run.run_lane(schedule::Lane::kComputation);
  }
  return std::move(run).result();
}

}  // namespace wsync::training
