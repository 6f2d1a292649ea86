// The update of checkpoint-engine (github.com/MoonshotAI/checkpoint-engine, read at commit 59a3c4f;
// checkpoint_engine/ps.py, worker.py, examples/update.py): weights that lie in the host memory of
// all ranks are brought to every GPU by broadcasts.
//
//   owners     the list of tensors is cut into as many runs of equal length as there are ranks
//              (update.py, split_tensors); a rank's tensors make buckets of at most the buffer,
//              whole tensors only (ps.py, _gen_h2d_buckets)
//   a round    every rank copies its next bucket to its GPU, all at the same time, and waits for
//   it;
//              then, rank after rank: the owner copies the bucket into one of two IPC buffers, NCCL
//              broadcasts it over all ranks of all hosts, the engines' reload of the bucket before
//              is waited for, and the engines are told of this one (ps.py, _update_per_bucket)
//   reload     vLLM's load_weights, tensor by tensor, in the engine's process (worker.py)
//
// Not in it: gathering the metadata (published beside it), the process group, the final hook.
#pragma once

#include <cstdint>

#include "bench/scale/cluster.h"
#include "bench/scale/prediction.h"

namespace wsync::bench {

struct CheckpointEngineOptions {
  std::uint64_t bucket_bytes = 8ULL << 30U;  // its cap; published rows name theirs
  // The one constant that is fitted: what a tensor costs in the reload, bytes apart.
  double tensor_s = 0;
  // Engine and checkpoint-engine are processes of their own on each GPU, whose kernels take turns
  // unless NVIDIA's Multi-Process Service is running ("When to use MPS", docs.nvidia.com). false:
  // reload and broadcast run side by side.
  bool gpu_takes_turns = true;
};

// Errors as check_cluster(); kInvalidInput for fewer tensors than ranks and a buffer that is
// smaller than the largest tensor.
[[nodiscard]] Result<Prediction> simulate_checkpoint_engine(const ModelBytes& model,
                                                            const Cluster& cluster,
                                                            const CheckpointEngineOptions& options);

// Seconds from the first byte of an NCCL broadcast on its root to the first byte on the last rank:
// a ring (NCCL has no other broadcast), with the latencies of NCCL's own tuning model (src/graph/
// tuning.cc, protocol Simple: 8.4 us, and 3.4 us for each step inside a host, 5.7 us without
// NVLink, 14 us from host to host).
[[nodiscard]] double ring_latency_s(const Cluster& cluster);

}  // namespace wsync::bench
