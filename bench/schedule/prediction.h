// What the simulator says of a schedule whose operations were measured, and what the ranks really
// did.
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

// samples[rank][step]: of one case, as many steps of every rank.
using CaseSamples = std::vector<std::vector<StepSample>>;

// What operations cost, from `alone`: samples of `program` without overlap and without a link, in
// which a rank does one operation at a time. Each cost is the mean over a kind's operations of the
// median over steps.
//
// Replicas wait for each other at every dispatch and combine, so a computation costs what the
// slowest replica needs. A communication costs the work around its exchanges (packing, weighting),
// and of each exchange the link's latency + bytes / bandwidth; without a link, what the replica
// that came last needed for it. With `cores` fewer than the two lanes of every rank need, the
// communication lane's own work takes its time from computations: pair_factor.
[[nodiscard]] schedule::OperationCosts measured_costs(
    const schedule::Program& program, const training::ParallelSizes& sizes,
    const CaseSamples& alone, const std::optional<collective::LinkSpeed>& link,
    std::uint32_t cores);

// The emulated link's bandwidth on which a forward dispatch takes `share` of an attention,
// `attention` being that time. kInvalidInput when the latency alone is as long.
struct DispatchSize {
  double exchanges = 0;  // one after the other
  double bytes = 0;      // in all of them
};
[[nodiscard]] Result<double> bandwidth_for(const DispatchSize& dispatch,
                                           std::chrono::nanoseconds latency, double attention,
                                           double share);

// When one replica's operations ran in step `step`, by pipeline rank, from the moment when the
// first of all ranks began.
[[nodiscard]] std::vector<std::vector<schedule::Timing>> timings_of(
    const training::ParallelSizes& sizes, const CaseSamples& samples, std::size_t step,
    std::uint32_t replica);
// From the first rank's begin to the last rank's end.
[[nodiscard]] double step_time(const CaseSamples& samples, std::size_t step);
// Time in which a rank communicated and did not compute, of the rank that has most.
[[nodiscard]] double exposed_time(const schedule::Program& program,
                                  const training::ParallelSizes& sizes, const CaseSamples& samples,
                                  std::size_t step);

}  // namespace wsync::bench
