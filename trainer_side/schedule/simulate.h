// Times a program under given costs: when each operation runs, how long the step takes, where it
// waits, and what the memory of each rank holds.
//
// The model: a lane runs its operations in order, and lanes run concurrently. A message arrives
// when its send ends. The activation and the gradient that one turn sends travel concurrently,
// because links are full duplex. With `lockstep`, each of the five parts of a turn begins at the
// same time on both lanes, as drawn in the figure of the Kimi K2 report (section 2.4.2). Without
// it, an operation begins as soon as its inputs are available.
//
// All costs and times are in one unit of the caller's choice. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/schedule/lowering.h"

namespace wsync::schedule {

// Costs of one operation. Weight gradient, transfer and copies are for one micro-batch on one
// stage; all others are for one micro-batch on one layer.
struct OperationCosts {
  double attention = 0;
  double mlp = 0;
  double head = 0;  // on the last stage only
  double attention_gradient = 0;
  double mlp_gradient = 0;
  double weight_gradient = 0;
  double dispatch = 0;  // forward or backward
  double combine = 0;
  double pp_transfer = 0;
  double offload = 0;
  double onload = 0;
  // Factor by which computation is slower in a pair than alone (SMs are used for communication).
  double pair_factor = 1;

  [[nodiscard]] double of(OperationKind kind) const noexcept;
  // Durations on one stage: one forward alone, one backward alone (weight gradient included), and
  // one pair. Each part of a pair lasts as long as its longer lane: `max(Af,Cb) + max(Mlb,Df) +
  // max(Mlf,Db) + max(Ab,Cf) + max(W,PP)`. With `delay_wgrad`, the gradient is sent during the
  // weight gradient, not after it.
  [[nodiscard]] double forward(std::uint32_t layers = 1) const noexcept;
  [[nodiscard]] double backward(bool delay_wgrad, std::uint32_t layers = 1) const noexcept;
  [[nodiscard]] double pair(bool delay_wgrad, std::uint32_t layers = 1) const noexcept;
};
// Converts costs of whole cells, without communication. `weight_gradient` is the share of W in
// `backward`. `pair` is the duration of a forward with a backward; it lies between the longer of
// the two and their sum. Returns kInvalidInput, which names the impossible cost.
[[nodiscard]] Result<OperationCosts> costs_of_cells(double forward, double backward,
                                                    double weight_gradient,
                                                    std::optional<double> pair);

struct Timing {
  double begin = 0;
  double end = 0;
};

struct RankReport {
  double computation = 0;    // busy
  double communication = 0;  // busy
  double copy = 0;           // busy
  double exposed = 0;        // communication runs but no computation
  // Maximum number of chunk activations that exist at the same time, on the device or on the host.
  // The device would hold all of them without offload.
  std::uint32_t peak_activations = 0;
  // Maximum number of device buffers in use. A buffer that is a source or target of a copy is in
  // use for the whole turn.
  std::uint32_t device_activations = 0;
  std::uint32_t host_activations = 0;
};

// Summarises one rank from the times of its operations, which may be measured. Receives are not
// counted, because they only wait for other ranks.
[[nodiscard]] RankReport rank_report(const Program& program, const RankProgram& rank,
                                     const std::vector<Timing>& times);

// One operation of the chain that determines the makespan.
struct CriticalStep {
  std::uint32_t rank = 0;
  OperationKind kind = OperationKind::kAttention;
  Cell cell;
  Timing time;
};

struct Simulation {
  double makespan = 0;
  // Step time of a rank that never waits: M * V pairs if the schedule has pairs, otherwise M * V
  // forwards and backwards.
  double ideal = 0;
  double bubble_ratio = 0;  // makespan / ideal - 1
  // Median duration of a pair with its waits. Absent if there are no pairs.
  std::optional<double> pair;
  std::vector<RankReport> ranks;
  std::vector<std::vector<Timing>> operations;  // indexed as in the program
  std::vector<CriticalStep> critical_path;      // from the first operation to the last
  [[nodiscard]] double exposed() const;         // of the rank with the highest value
};

struct SimulationOptions {
  bool lockstep = true;
};

// `program` is the result of lower(). Returns kInternal if the program does not run to its end,
// which is a defect of the lowering.
[[nodiscard]] Result<Simulation> simulate(const Program& program, const OperationCosts& costs,
                                          const SimulationOptions& options = {});

}  // namespace wsync::schedule
