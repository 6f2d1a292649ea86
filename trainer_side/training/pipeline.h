// Executes the operations of a rank's program: one step of training on the rank's stages, from
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
  // The last pipeline rank's copy of tied embeddings. Absent if the head has its own weights, or if
  // the embeddings are in `dense`.
  std::optional<ParameterSet> tied_head;
};

// The sums of one step's gradients, with one accumulator for each source (see README.md).
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
  // The program of all ranks, lowered with layers_of_stage() layers, a head, and expert parallelism
  // if ep > 1.
  std::shared_ptr<const schedule::Program> program;
  std::size_t tokens = 0;    // tokens of a micro-batch
  std::size_t sequence = 0;  // tokens of one sequence
  // Number of slots on the device and on the host. A slot holds the activations of one micro-batch
  // on one chunk.
  std::size_t device_slots = 0;
  std::size_t host_slots = 0;
  collective::ProcessGroup* group = nullptr;   // borrowed; may be null for one rank
  std::chrono::milliseconds deadline{60'000};  // deadline of one exchange
};
// Maximum number of chunk activations that a rank holds at one time. max_activations() counts those
// that exist, by the order of the computation lane; without offload all of them are on the device.
// The second function counts those on the host, by the order of the copy lane.
[[nodiscard]] std::size_t max_activations(const schedule::RankProgram& program);
[[nodiscard]] std::size_t max_offloaded(const schedule::RankProgram& program);

// Thread: one call of run_step() at a time. `weights` is borrowed and must not change during a
// call.
class Pipeline {
 public:
  Pipeline(PipelineOptions options, const RankWeights& weights);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  struct Step {
    double loss = 0;  // sum over the tokens of this replica; 0 except on the rank of the last stage
    std::vector<Measured> times;  // of this rank's operations
  };
  // Runs one step. `batches` are the micro-batches of this rank's replica, with the sizes of the
  // options. Adds to `gradients` the gradients of the loss (see loss.h), summed over tokens and
  // multiplied by `scale`. `on_backward` is called on this thread before its first backward. A
  // failure breaks the group; the other ranks get the number of the rank that failed.
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
  std::vector<LayerWeights> layers_;  // layers of all chunks, one chunk after the other
  SlotPool device_;
  SlotPool host_;
};

}  // namespace wsync::training
