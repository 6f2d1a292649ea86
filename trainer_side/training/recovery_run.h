// Recovery of a trainer's ranks in a group that was made anew: they tell each other where they are,
// decide (recovery.h), end a step that was confirmed, and give what is missing where it is missing,
// weights and the optimizer's state, as buckets with digests (shared/weights).
//
// It can fail at any point by the loss of another rank. Then the ranks that are left, of which some
// may be at the next step by now and some still empty, recover again in a group of their own: a
// rank's tag changes only when what it says is true. Ending a step is done once, giving never
// touches what the receiver holds itself, and a rank that is given all is empty until it has all.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer_side/training/training_rank.h"

namespace wsync::training {

// Small enough that two ranks who give and take at once need little memory beside the model.
inline constexpr std::uint64_t kRecoveryBucketBytes = std::uint64_t{4} << 20U;

struct Recovered {
  std::uint64_t step = 1;  // that all run next, on the micro-batches that it has always had
  // Of the step before it, where a rank that is left took it: rank 0 of a new process has not told
  // it yet.
  std::optional<StepResult> before;
  // The ranks that were empty, and have been given all.
  std::vector<std::uint32_t> replaced;
  std::uint64_t bytes = 0;  // that this rank has given to others
};

// Every rank of `group` calls it, the same group that `rank` has: those that are left after their
// step has failed, and the replacements (TrainingRank::Start::kReplacement) at once. All need the
// same bucket_bytes (BucketPlan::create()). Afterwards all are at Recovered::step, forward.
//
// What decide() refuses (kNotFound: what was lost is nowhere else), it refuses on all ranks alike
// and the group stays whole: every rank is empty then, and can be set to a checkpoint's state as at
// a start, and begin_at() the step after. kInvalidInput, with nothing changed, without
// TrainingOptions::second_holders. Other errors break the group: as compare_options(), as
// ProcessGroup::exchange(), and kDigestMismatch naming both ranks for bytes that are not those that
// were sent; recover() again in another group.
//
// Thread: that of run_step(); nobody reads the rank's weights meanwhile. Needs memory for two
// buckets beside what the rank has.
[[nodiscard]] Result<Recovered> recover(TrainingRank& rank, collective::ProcessGroup& group,
                                        std::uint64_t bucket_bytes = kRecoveryBucketBytes);

}  // namespace wsync::training
