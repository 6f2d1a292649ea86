// The update of checkpoint-engine (github.com/MoonshotAI/checkpoint-engine, read at commit 59a3c4f;
// checkpoint_engine/ps.py, worker.py, examples/update.py): weights in the host memory of all ranks
// are broadcast to every GPU.
//
//   owners: the list of tensors is split into as many ranges of equal length as there are ranks
//     (update.py, split_tensors). A rank's tensors form buckets of whole tensors, up to the buffer
//     size (ps.py, _gen_h2d_buckets).
//   round: all ranks copy their next buckets to their GPUs at the same time and wait for them.
//     Then, rank after rank, the owner copies the bucket into one of two IPC buffers, NCCL
//     broadcasts it to all ranks of all hosts, the engines' reload of the previous bucket is
//     awaited, and the engines are notified of this bucket (ps.py, _update_per_bucket).
//   reload: vLLM's load_weights, tensor by tensor, in the engine's process (worker.py).
//
// Not included: gathering the metadata (published separately), the process group, and the final
// hook.
#pragma once

#include <cstdint>

#include "bench/scale/cluster.h"
#include "bench/scale/prediction.h"

namespace wsync::bench {

struct CheckpointEngineOptions {
  std::uint64_t bucket_bytes = 8ULL << 30U;  // maximum bucket size; published rows name theirs
  // The only fitted constant: the cost of a tensor in the reload, without its bytes.
  double tensor_s = 0;
  // Engine and checkpoint-engine are separate processes on each GPU. Their kernels take turns
  // unless NVIDIA's Multi-Process Service is running ("When to use MPS", docs.nvidia.com). false:
  // reload and broadcast run in parallel.
  bool gpu_takes_turns = true;
};

// Errors as check_cluster(). kInvalidInput if there are fewer tensors than ranks, or if the buffer
// is smaller than the largest tensor.
[[nodiscard]] Result<Prediction> simulate_checkpoint_engine(const ModelBytes& model,
                                                            const Cluster& cluster,
                                                            const CheckpointEngineOptions& options);

// Seconds from the first byte of an NCCL broadcast on its root to the first byte on the last rank.
// NCCL has only ring broadcasts. The latencies are those of NCCL's tuning model
// (src/graph/tuning.cc, protocol Simple): 8.4 us, plus 3.4 us per step inside a host (5.7 us
// without NVLink) and 14 us per step between hosts.
[[nodiscard]] double ring_latency_s(const Cluster& cluster);

}  // namespace wsync::bench
