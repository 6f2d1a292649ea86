// The simulator's prediction for a schedule with measured operations, and the measured behaviour of
// the ranks.
//
// Times are milliseconds. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/schedule/samples.h"
#include "shared/process_group/emulated_link.h"
#include "trainer_side/schedule/simulate.h"
#include "trainer_side/training/layout.h"

namespace wsync::bench {

// samples[rank][step] of one case. Every rank has the same number of steps.
using CaseSamples = std::vector<std::vector<StepSample>>;

// Returns the costs of operations from `alone`: samples of `program` without overlap and without a
// link, in which a rank executes one operation at a time. Each cost is the median over steps,
// averaged over all operations of its kind.
//
// Replicas wait for each other at every dispatch and combine, so a computation costs the time of
// the slowest replica. A communication costs the work around its exchanges (packing, weighting),
// plus latency + bytes / bandwidth of the link for each exchange. Without a link, the exchange
// costs what the last replica to arrive needed for it. If there are fewer `cores` than the two
// lanes of every rank need, the communication lane's own work slows down computations: pair_factor.
[[nodiscard]] schedule::OperationCosts measured_costs(
    const schedule::Program& program, const training::ParallelSizes& sizes,
    const CaseSamples& alone, const std::optional<collective::LinkSpeed>& link,
    std::uint32_t cores);

// Returns the bandwidth of the emulated link on which a forward dispatch takes `share` of
// `attention`, the time of an attention. kInvalidInput if the latency alone takes that long.
struct DispatchSize {
  double exchanges = 0;  // number of sequential exchanges
  double bytes = 0;      // total bytes
};
[[nodiscard]] Result<double> bandwidth_for(const DispatchSize& dispatch,
                                           std::chrono::nanoseconds latency, double attention,
                                           double share);

// Returns when one replica's operations ran in step `step`, by pipeline rank, relative to the start
// of the first rank.
[[nodiscard]] std::vector<std::vector<schedule::Timing>> timings_of(
    const training::ParallelSizes& sizes, const CaseSamples& samples, std::size_t step,
    std::uint32_t replica);
// From the start of the first rank to the end of the last rank.
[[nodiscard]] double step_time(const CaseSamples& samples, std::size_t step);
// Time in which a rank communicated without computing: the maximum over all ranks.
[[nodiscard]] double exposed_time(const schedule::Program& program,
                                  const training::ParallelSizes& sizes, const CaseSamples& samples,
                                  std::size_t step);

}  // namespace wsync::bench
