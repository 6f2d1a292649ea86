// What the operations of a rank's program do: one step of training on the rank's stages, from
// micro-batches to gradients.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shared/moe/operators.h"
#include "shared/process_group/process_group.h"
#include "trainer_side/schedule/lowering.h"
#include "trainer_side/training/activations.h"
#include "trainer_side/training/lanes.h"
#include "trainer_side/training/layer.h"
#include "trainer_side/training/layout.h"
#include "trainer_side/training/parameters.h"
#include "trainer_side/training/sequential.h"

namespace wsync::training {

// The weights that a rank computes with.
struct RankWeights {
  RankWeights(const moe::ModelSpec& spec, const ParallelSizes& sizes, const Place& place);
  ParameterSet dense;
  ParameterSet experts;
  // The last pipeline rank's copy of tied embeddings; none where the head has its own weights or
  // where they are among `dense`.
  std::optional<ParameterSet> tied_head;
};

// The sums of one step's gradients, one accumulator for each source (see README.md).
struct RankGradients {
  RankGradients(const moe::ModelSpec& spec, const ParallelSizes& sizes, const Place& place);
  void clear();
  ParameterSet dense;                     // of this rank's replica
  std::vector<ParameterSet> experts;      // of each replica that shares the experts
  std::optional<ParameterSet> tied_head;  // of this rank's replica, with tied embeddings
};

struct PipelineOptions {
  moe::ModelSpec spec;
  ParallelSizes sizes;
  Place place;
  // Lowered with layers_of_stage() layers, a head, and expert parallelism where ep > 1; all ranks.
  std::shared_ptr<const schedule::Program> program;
  std::size_t tokens = 0;    // of a micro-batch
  std::size_t sequence = 0;  // tokens of one sequence
  // Slots of the device and of the host for activations of one micro-batch on one chunk.
  std::size_t device_slots = 0;
  std::size_t host_slots = 0;
  collective::ProcessGroup* group = nullptr;   // borrowed; may be null for one rank
  std::chrono::milliseconds deadline{60'000};  // of one exchange
};
// Chunk activations that a rank has at one time: alive by the order of its computation lane, which
// are all on the device without offload; and on the host, by the order of its copy lane.
[[nodiscard]] std::size_t max_activations(const schedule::RankProgram& program);
[[nodiscard]] std::size_t max_offloaded(const schedule::RankProgram& program);

// Thread: run_step() from one at a time. `weights` is borrowed and stays as it is meanwhile.
class Pipeline {
 public:
  Pipeline(PipelineOptions options, const RankWeights& weights);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  struct Step {
    double loss = 0;  // summed over the tokens of this replica; 0 but on the last stage's rank
    std::vector<Measured> times;  // of this rank's operations
  };
  // `batches`: the micro-batches of this rank's replica, of the sizes of the options. Adds to
  // `gradients` those of the loss (see loss.h) summed over tokens, times `scale`. `on_backward` is
  // called by this thread before its first backward. A failure has broken the group, whose other
  // ranks are told which one failed.
  [[nodiscard]] Result<Step> run_step(const std::vector<MicroBatch>& batches, float scale,
                                      RankGradients& gradients,
                                      const std::function<void()>& on_backward = {});
  [[nodiscard]] const SlotPool& device_pool() const noexcept { return device_; }

 private:
  class Work;
  friend class Work;
  void check_batches(const std::vector<MicroBatch>& batches) const;
  void abort(const Error& error) const;
  const PipelineOptions options_;
  const RankWeights& weights_;
  moe::RotaryTable rotary_;
  ExpertParallel expert_parallel_;
  std::vector<LayerWeights> layers_;  // of all chunks, one after the other
  SlotPool device_;
  SlotPool host_;
};

}  // namespace wsync::training
