// Scheduler: decides which sequences the next step computes (continuous batching as in Orca, OSDI
// 2022) and in which blocks their keys and values are stored (paged attention, arXiv 2309.06180),
// and processes the logits. Pure: no clock, no thread, no I/O.
//
// Requests begin in order of arrival, as soon as there are blocks for all their tokens and one
// spare block for each running sequence. Prompts are computed in pieces of at most max_step_tokens,
// in the same steps as the sequences that decode. If a sequence finds no free block, the youngest
// running sequence is preempted: it returns to the head of the queue and is computed again later
// from its prompt and its generated tokens. The oldest sequence therefore always makes progress.
// Full blocks of a known prefix are shared (block_pool.h).
//
// Thread: confined to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "inference_side/reference_engine/generation/batch.h"
#include "shared/moe/matrix.h"

namespace wsync::engine::generation {

using RequestId = std::uint64_t;

// What happens to keys and values that were computed with earlier weights.
enum class CachePolicy : std::uint8_t {
  kFlush,  // unfinished sequences are computed again from their first token; no prefix is kept
  kKeep,   // reused although they are stale
};

// All values except `stream` must be above 0.
struct SchedulerOptions {
  std::uint32_t vocabulary = 0;
  std::uint32_t max_positions = 0;
  std::uint32_t blocks = 0;
  std::uint32_t block_tokens = 16;
  std::uint32_t max_step_tokens = 512;  // in all slices of a step
  std::uint32_t max_sequences = 64;     // running at the same time
  std::uint32_t max_waiting = 1024;     // requests in the queue
  // Source of random numbers for requests without a seed. Each engine uses a random value of its
  // own; otherwise all engines would generate the same tokens for the same prompts in the same
  // order.
  std::uint64_t stream = 0;
};

struct SchedulerStats {
  std::uint64_t waiting = 0;
  std::uint64_t running = 0;
  std::uint64_t blocks_used = 0;        // used by running sequences
  std::uint64_t blocks_cached = 0;      // cached for prefixes that no sequence uses now
  std::uint64_t preempted = 0;          // since the start, like the counters below
  std::uint64_t prefix_hit_tokens = 0;  // found in the cache when a sequence began or resumed
  std::uint64_t prompt_tokens = 0;      // of requests that have begun
  std::uint64_t generated_tokens = 0;   // sampled
};

// A notification for the client of a request.
struct Progress {
  RequestId id = 0;
  std::vector<GeneratedToken> tokens;  // new tokens; those that may belong to a stop are held back
  std::optional<FinishReason> finished;  // set in the last notification of the request
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // Adds a request to the queue. Returns kInvalidInput as check_request(), or if all blocks
  // together could not hold the request; kResourceExhausted if the queue is full.
  [[nodiscard]] Result<RequestId> add(Request request);
  // Removes a request, if it still exists. Not allowed between plan() and take().
  void cancel(RequestId id);

  // Plans the next step. The batch has no slices exactly if idle(). If it has slices, the caller
  // must call take() or drop() next.
  [[nodiscard]] Batch plan();
  // Handles the logits of the step: one row of the whole vocabulary for each slice that wanted
  // logits, in the order of the slices. Logits that are not finite are handled as in sampler.h.
  [[nodiscard]] std::vector<Progress> take(const Version& version, moe::ConstMatrix logits);
  // The step was not computed, or not on all ranks. Its tokens will be computed again.
  void drop();

  [[nodiscard]] bool idle() const;     // nothing to compute now
  [[nodiscard]] bool running() const;  // some sequence has begun and is not finished

  // Sets whether waiting requests may begin. Preempted sequences may always resume. Initially true.
  void admit(bool yes);
  // Finishes a request with kAbort. Returns std::nullopt if it does not exist. This and the
  // following methods are not allowed between plan() and take().
  [[nodiscard]] std::optional<Progress> abort(RequestId id);
  // Finishes all requests, including waiting ones, with kAbort, in order of arrival.
  [[nodiscard]] std::vector<Progress> abort_all();
  // The steps from now on are computed with other weights.
  void weights_changed(CachePolicy policy);
  // Requests that begin from now on reuse no earlier prefix. Running sequences keep their own keys
  // and values.
  void forget_prefixes();

  [[nodiscard]] SchedulerStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wsync::engine::generation
