// The group of a rank of a training run. If a rank is lost, the launcher makes a new group and
// sends it to the remaining ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shared/config/train_config.h"
#include "shared/process_group/memory/memory_group.h"
#include "shared/process_group/regroupable_group.h"
#include "trainer_side/run/rank_run.h"

namespace wsync::cli {

// Messages of the launcher to a rank, one byte each: a new group with the descriptor of its
// segment; the rank has been replaced; the run is over.
inline constexpr std::byte kSegmentSign{1};
inline constexpr std::byte kReplacedSign{2};
inline constexpr std::byte kOverSign{3};

// Thread: one at a time.
class Membership {
 public:
  // Joins the group in `start`; errors as memory::attach() and gloo::join(). `start` must outlive
  // the membership.
  [[nodiscard]] static Result<std::unique_ptr<Membership>> join(const RankStart& start);

  // The object stays the same when the rank joins another group.
  [[nodiscard]] collective::ProcessGroup& group() noexcept { return *group_; }
  // Returns whether the launcher makes another group if this one breaks.
  [[nodiscard]] bool is_renewed() const noexcept { return start_.control >= 0; }
  // Returns whether this is the first group of the run.
  [[nodiscard]] bool is_first() const noexcept { return is_first_; }
  // Waits until the launcher has made the next group, and joins it. Returns false if the run is
  // over because another rank has ended normally. `why` is the error that broke this group; it is
  // returned if the run fails and there is no next group. Returns kFenced if this rank was
  // replaced.
  [[nodiscard]] Result<bool> rejoin(const Error& why);
  // notify() publishes a word of this rank to the launcher and to the other ranks; told() reads the
  // word of another rank.
  void notify(std::uint64_t word) noexcept;
  [[nodiscard]] std::uint64_t told(std::uint32_t rank) const noexcept;

 private:
  explicit Membership(const RankStart& start) : start_(start), is_first_(start.generation == 0) {}
  [[nodiscard]] Result<> enter(int segment);

  const RankStart& start_;
  std::unique_ptr<collective::ProcessGroup> gloo_;
  std::unique_ptr<collective::RegroupableGroup> renewed_;
  collective::ProcessGroup* group_ = nullptr;
  collective::memory::MemoryGroup* memory_ = nullptr;  // owned by renewed_
  std::uint64_t word_ = 0;
  bool is_first_;
  // Uses memory_; must be destroyed first.
  std::unique_ptr<collective::memory::Heartbeat> heartbeat_;
};

}  // namespace wsync::cli
