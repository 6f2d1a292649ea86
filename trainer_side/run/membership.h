// What a rank of a training run belongs to: its group, which the launcher makes anew when a rank is
// lost, and hands to those that are left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shared/config/train_config.h"
#include "shared/process_group/memory/memory_group.h"
#include "shared/process_group/regroupable_group.h"
#include "trainer_side/run/rank_run.h"

namespace wsync::cli {

// What the launcher sends to a rank: one byte, with the descriptor of the next group's segment; or
// that the rank has been replaced, or that the run is over.
inline constexpr std::byte kSegmentSign{1};
inline constexpr std::byte kReplacedSign{2};
inline constexpr std::byte kOverSign{3};

// Thread: one at a time.
class Membership {
 public:
  // Joins the group that `start` names; errors as memory::attach() and gloo::join(). `start`
  // outlives it.
  [[nodiscard]] static Result<std::unique_ptr<Membership>> join(const RankStart& start);

  // Stays the same object.
  [[nodiscard]] collective::ProcessGroup& group() noexcept { return *group_; }
  // Whether the launcher makes another group when this one breaks.
  [[nodiscard]] bool is_renewed() const noexcept { return start_.control >= 0; }
  // Whether this is the group that the run began with.
  [[nodiscard]] bool is_first() const noexcept { return is_first_; }
  // Waits until the launcher has made the next group, and joins it. False: the run is over, and
  // another rank has ended in order. `why` is what broke this one, and the error when there is no
  // next one because the run fails; kFenced: this rank was replaced.
  [[nodiscard]] Result<bool> rejoin(const Error& why);
  // What the launcher and other ranks see of this rank, and what another one has told.
  void notify(std::uint64_t word) noexcept;
  [[nodiscard]] std::uint64_t told(std::uint32_t rank) const noexcept;

 private:
  explicit Membership(const RankStart& start) : start_(start), is_first_(start.generation == 0) {}
  [[nodiscard]] Result<> enter(int segment);

  const RankStart& start_;
  std::unique_ptr<collective::ProcessGroup> gloo_;
  std::unique_ptr<collective::RegroupableGroup> renewed_;
  collective::ProcessGroup* group_ = nullptr;
  collective::memory::MemoryGroup* memory_ = nullptr;  // inside of renewed_
  std::uint64_t word_ = 0;
  bool is_first_;
  std::unique_ptr<collective::memory::Heartbeat> heartbeat_;  // of memory_; ends first
};

}  // namespace wsync::cli
