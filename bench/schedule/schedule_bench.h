// `wsync bench schedule`: what overlapping expert-parallel communication with computation is worth
// on an emulated link, and how close the simulator comes to it. How to read the table, and limits:
// deploy/guides/benchmark.md.
//
// Each rank is a forked process that runs the training core as it is (trainer_side/training), with
// messages through shared memory that take as long as on a link of the given latency and bandwidth
// (shared/process_group/emulated_link.h). Who waits for the link sleeps, so it costs no core. The
// cases take turns, step by step, and which comes first changes. All train the same micro-batches
// on the same weights; a gradient that differs in a bit fails the benchmark. A step is from the
// first rank's begin to the last rank's last gradient; summing gradients over replicas and the
// optimizer are left out. What the prediction is made of: prediction.h. Ranks are no threads
// because products of matrices in one process are computed one after the other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/spread.h"
#include "bench/schedule/prediction.h"
#include "bench/schedule/rank.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct ScheduleBenchOptions {
  training::ParallelSizes sizes{.pp = 1, .vpp = 2, .ep = 2, .dp = 2};
  std::uint32_t microbatches = 8;
  std::uint32_t hidden = 256;  // a multiple of 64
  std::uint32_t experts = 8;   // of each layer; two for a token
  std::size_t tokens = 256;    // of a micro-batch
  LinkOptions link;
  unsigned warmup = 3;  // steps, whose attention sets the link's bandwidth
  unsigned steps = 15;  // of each case
};

struct ScheduleCase {
  CaseKind kind = CaseKind::kOverlap;
  schedule::Program program;
  schedule::OperationCosts costs;  // ms; what the prediction was made of
  schedule::Simulation predicted;  // ms
  std::vector<double> steps_ms;    // in the order in which they ran
  Spread step_ms, exposed_ms;
  Spread ratio;  // step / predicted
  // When the operations of replica 0 ran, by pipeline rank, in the step nearest to the median.
  std::vector<std::vector<schedule::Timing>> times;
};

struct ScheduleBenchResult {
  Machine machine;
  ScheduleBenchOptions options;
  moe::ModelSpec model;
  collective::LinkSpeed link;
  std::vector<ScheduleCase> cases;  // by CaseKind
  // Time of a step without overlap, by that of the step with it next to it; both over the link.
  Spread speed_up;
  double predicted_speed_up = 0;
  double others_busy = 0;  // share of the cores' time that was used before the ranks began
  double stolen = 0;       // share that the host withheld meanwhile
  [[nodiscard]] const ScheduleCase& of(CaseKind kind) const {
    return cases[static_cast<std::size_t>(kind)];
  }
};

// The model that is trained: one layer for each stage.
[[nodiscard]] moe::ModelSpec model_of(const ScheduleBenchOptions& options);
// Compares what ranks have sampled: samples[case][rank][step]. Pure.
[[nodiscard]] Result<std::vector<ScheduleCase>> compare_cases(
    const ScheduleBenchOptions& options, const std::array<CaseSamples, kCaseCount>& samples,
    const collective::LinkSpeed& link, std::uint32_t cores);
[[nodiscard]] Spread speed_up_of(const ScheduleCase& overlap, const ScheduleCase& no_overlap);

// Told how many of how many steps are done.
using OnSteps = std::function<void(unsigned done, unsigned total)>;

// Ends early, leaving no process, with kCancelled on a signal, or with the first error of a rank.
// kInvalidInput for sizes that do not go together. Thread: the process has no other one, for the
// ranks are forked.
[[nodiscard]] Result<ScheduleBenchResult> run_schedule_bench(const ScheduleBenchOptions& options,
                                                             const Interrupt& interrupt,
                                                             const OnSteps& on_steps);

}  // namespace wsync::bench
