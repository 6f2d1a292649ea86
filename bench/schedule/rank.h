// What one rank process of `wsync bench schedule` does: it trains the same micro-batches again and
// again, by each of the schedules that are compared, and tells what it measured.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/schedule/processes.h"
#include "shared/process_group/emulated_link.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::bench {

// The link of each rank.
struct LinkOptions {
  std::chrono::nanoseconds latency{100'000};
  std::optional<double> bytes_per_second;  // absent: such that a dispatch takes
  double dispatch_share = 0.6;             // of an attention
};

struct RankTask {
  training::TrainingOptions overlap;
  training::TrainingOptions no_overlap;  // all else is equal
  LinkOptions link;
  unsigned warmup = 3;
  unsigned steps = 15;
  int memory_fd = -1;  // the segment of ranks without a link
  int linked_fd = -1;  // the one that gets it
};

// Lines to the launcher, objects each: {"step"} from rank 0 as steps end, and at the end
// {"link": {"latency_ns", "bytes_per_second"}, "samples": [[step] of each case]}.
//
// kDigestMismatch when two steps came to different gradients. Errors of the group and of options
// else.
[[nodiscard]] Result<> run_rank(const RankTask& task, std::uint32_t rank, const LineWriter& out);

}  // namespace wsync::bench
