// Recovery of a trainer's ranks in a new group. The ranks exchange their states and decide
// (recovery.h). They complete a step that was confirmed. Then they send missing weights and
// optimizer's state to the ranks that need them, as buckets with digests (shared/weights).
//
// Recovery can fail at any point, because another rank can be lost. The remaining ranks then
// recover again in another new group; some of them may already be at the next step and some may
// still be empty. This works because the tag of a rank changes only when it is true: a step is
// completed once, a transfer never overwrites valid data of the receiver, and a rank that receives
// everything is empty until it has received everything.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer_side/training/training_rank.h"

namespace wsync::training {

// Small enough that two ranks that exchange buckets need little memory besides the model.
inline constexpr std::uint64_t kRecoveryBucketBytes = std::uint64_t{4} << 20U;

struct Recovered {
  // The step that all ranks run next, each on the same micro-batches as ever.
  std::uint64_t step = 1;
  // The result of the previous step, if a remaining rank completed it. Rank 0 must report it if its
  // process is new.
  std::optional<StepResult> before;
  // The ranks that were empty and received everything.
  std::vector<std::uint32_t> replaced;
  std::uint64_t bytes = 0;  // bytes that this rank has sent to others
};

// Every rank of `group` must call it: the remaining ranks after their step has failed, and the
// replacements (TrainingRank::Start::kReplacement) at once. `group` is the group that `rank` has.
// All ranks need the same bucket_bytes (BucketPlan::create()). After success all ranks are at
// Recovered::step, forward.
//
// kNotFound (no rank has the lost data): decide() returns it on all ranks, and the group stays
// whole. Every rank is then empty. It can be set to the state of a checkpoint as at a start,
// followed by begin_at() with the next step. kInvalidInput, with nothing changed:
// TrainingOptions::second_holders is not set. Other errors break the group: those of
// compare_options() and ProcessGroup::exchange(), and kDigestMismatch, with both ranks, if received
// bytes differ from those sent. Call recover() again in another group.
//
// Thread: that of run_step(); no other thread may read the rank's weights meanwhile. Needs memory
// for two buckets besides the rank's own.
[[nodiscard]] Result<Recovered> recover(TrainingRank& rank, collective::ProcessGroup& group,
                                        std::uint64_t bucket_bytes = kRecoveryBucketBytes);

}  // namespace wsync::training
