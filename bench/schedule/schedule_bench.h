// `wsync bench schedule` measures how much a step gains from overlapping expert-parallel
// communication with computation on an emulated link, and how close the simulator comes to it. How
// to read the table, and limits: deploy/guides/benchmark.md.
//
// Each rank is a forked process that runs the unmodified training core (trainer_side/training). Its
// messages through shared memory take as long as on a link of the given latency and bandwidth
// (shared/process_group/emulated_link.h). A thread that waits for the link sleeps and uses no core.
// The cases take turns step by step in a changing order. All train the same micro-batches on the
// same weights, and a gradient that differs in one bit fails the benchmark. A step lasts from the
// start of the first rank to the last gradient of the last rank. It excludes the sum of gradients
// over replicas and the optimizer. For the inputs of the prediction see prediction.h.
//
// Ranks are processes instead of threads because matrix products in one process are computed one
// after the other.
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
  std::uint32_t hidden = 256;  // multiple of 64
  std::uint32_t experts = 8;   // per layer; two for each token
  std::size_t tokens = 256;    // tokens per micro-batch
  LinkOptions link;
  unsigned warmup = 3;  // number of steps, whose attention time determines the link's bandwidth
  unsigned steps = 15;  // per case
};

struct ScheduleCase {
  CaseKind kind = CaseKind::kOverlap;
  schedule::Program program;
  schedule::OperationCosts costs;  // in ms; input of the prediction
  schedule::Simulation predicted;  // in ms
  std::vector<double> steps_ms;    // in order of execution
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
  // Time of a step without overlap divided by the time of the adjacent step with overlap, both over
  // the link.
  Spread speed_up;
  double predicted_speed_up = 0;
  // share of the cores' time that other processes used before the ranks started
  double others_busy = 0;
  double stolen = 0;  // share that the host withheld during the run
  [[nodiscard]] const ScheduleCase& of(CaseKind kind) const {
    return cases[static_cast<std::size_t>(kind)];
  }
};

// The trained model, with one layer per stage.
[[nodiscard]] moe::ModelSpec model_of(const ScheduleBenchOptions& options);
// Compares the ranks' samples: samples[case][rank][step]. Pure.
[[nodiscard]] Result<std::vector<ScheduleCase>> compare_cases(
    const ScheduleBenchOptions& options, const std::array<CaseSamples, kCaseCount>& samples,
    const collective::LinkSpeed& link, std::uint32_t cores);
[[nodiscard]] Spread speed_up_of(const ScheduleCase& overlap, const ScheduleCase& no_overlap);

// Called with the numbers of finished and of all steps.
using OnSteps = std::function<void(unsigned done, unsigned total)>;

// Ends early, leaving no process, with kCancelled on a signal or with the first error of a rank.
// kInvalidInput if the sizes are inconsistent. Thread: this must be the only thread of the process,
// because ranks are forked.
[[nodiscard]] Result<ScheduleBenchResult> run_schedule_bench(const ScheduleBenchOptions& options,
                                                             const Interrupt& interrupt,
                                                             const OnSteps& on_steps);

}  // namespace wsync::bench
