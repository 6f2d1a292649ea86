// Times a program under given costs: when each operation runs, what the step costs, where it waits
// and what a rank's memory holds meanwhile.
//
// The model: lanes run their operations in order and side by side; a message is there when its send
// is over; the activation and the gradient that one turn sends travel together (links are full
// duplex). With `lockstep` the five parts of a turn begin together on both lanes, as drawn in the
// figure of the Kimi K2 report (section 2.4.2); without, an operation begins as soon as what it
// needs is there.
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

// Of one operation: one micro-batch on one layer (weight gradient, transfer and copies: on one
// stage).
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
  // Computation in a pair costs so many times what it costs alone (SMs given to communication).
  double pair_factor = 1;

  [[nodiscard]] double of(OperationKind kind) const noexcept;
  // Of a stage: one forward alone, one backward alone (weight gradient included), and a
  // pair, each part as long as its longer lane: `max(Af,Cb) + max(Mlb,Df) + max(Mlf,Db) +
  // max(Ab,Cf) + max(W,PP)`. `delay_wgrad`: the gradient leaves beside the weight gradient, not
  // after it.
  [[nodiscard]] double forward(std::uint32_t layers = 1) const noexcept;
  [[nodiscard]] double backward(bool delay_wgrad, std::uint32_t layers = 1) const noexcept;
  [[nodiscard]] double pair(bool delay_wgrad, std::uint32_t layers = 1) const noexcept;
};
// Costs of whole cells, without communication. `weight_gradient` is the share of `backward` that W
// takes. `pair`: of a forward with a backward, between the longer of the two and their sum.
// kInvalidInput says which cost is not possible.
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
  double exposed = 0;        // communication runs and no computation
  // Chunk activations that exist at one time, wherever they are: what the device holds without
  // offload.
  std::uint32_t peak_activations = 0;
  // Buffers in use on the device; one that is copied into or out of is in use for the whole turn.
  std::uint32_t device_activations = 0;
  std::uint32_t host_activations = 0;
};

// What one rank did, by the times of its operations, which may be measured. Receives count for
// nothing: they wait for others.
[[nodiscard]] RankReport rank_report(const Program& program, const RankProgram& rank,
                                     const std::vector<Timing>& times);

// One stretch of the chain of operations that the makespan is made of.
struct CriticalStep {
  std::uint32_t rank = 0;
  OperationKind kind = OperationKind::kAttention;
  Cell cell;
  Timing time;
};

struct Simulation {
  double makespan = 0;
  // What a rank would need if it never waited: M * V times a pair where there are pairs, else times
  // a forward and a backward.
  double ideal = 0;
  double bubble_ratio = 0;     // makespan / ideal - 1
  std::optional<double> pair;  // median turn of a pair, waits inside it included; if there is one
  std::vector<RankReport> ranks;
  std::vector<std::vector<Timing>> operations;  // as in the program
  std::vector<CriticalStep> critical_path;      // from the first operation to the last
  [[nodiscard]] double exposed() const;         // of the rank that has most of it
};

struct SimulationOptions {
  bool lockstep = true;
};

// `program` from lower(). kInternal if it does not run to its end (a defect of the lowering).
[[nodiscard]] Result<Simulation> simulate(const Program& program, const OperationCosts& costs,
                                          const SimulationOptions& options = {});

}  // namespace wsync::schedule
