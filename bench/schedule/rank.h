// One rank process of `wsync bench schedule`. It trains the same micro-batches repeatedly with each
// of the compared schedules and reports its measurements.
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
  std::optional<double> bytes_per_second;  // std::nullopt: derived from dispatch_share
  double dispatch_share = 0.6;             // time of a dispatch as a share of an attention
};

struct RankTask {
  training::TrainingOptions overlap;
  training::TrainingOptions no_overlap;  // all other options are equal
  LinkOptions link;
  unsigned warmup = 3;
  unsigned steps = 15;
  int memory_fd = -1;  // segment of the ranks without a link
  int linked_fd = -1;  // segment of the group with the link
};

// Sends lines to the launcher, each a JSON object: {"step"} from rank 0 at the end of each step,
// and finally {"link": {"latency_ns", "bytes_per_second"}, "samples": [[step] of each case]}.
//
// kDigestMismatch if two steps computed different gradients. Otherwise errors of the group and of
// options.
[[nodiscard]] Result<> run_rank(const RankTask& task, std::uint32_t rank, const LineWriter& out);

}  // namespace wsync::bench
