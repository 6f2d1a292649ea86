// Scheduler: which sequences are computed in the next step (continuous batching as Orca has it,
// OSDI 2022), in which blocks their keys and values lie (paged attention, arXiv 2309.06180), and
// what becomes of the logits. Pure: no clock, no thread, no I/O.
//
// Requests begin in the order of their arrival, once there are blocks for all tokens that they
// have and one to spare for each sequence that runs. Prompts are computed in pieces of at most
// max_step_tokens, beside the sequences that decode. Where a sequence finds no free block the
// youngest that runs is put back to the head of the queue and computed again later, from its prompt
// and what it has generated; so the oldest always goes on. Full blocks of a prefix that is known
// already are shared (block_pool.h).
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "inference_side/reference_engine/generation/batch.h"
#include "shared/moe/matrix.h"

namespace wsync::engine::generation {

using RequestId = std::uint64_t;

// What becomes of keys and values that other weights have computed.
enum class CachePolicy : std::uint8_t {
  kFlush,  // sequences that go on are computed again from their first token; no prefix is kept
  kKeep,   // used as they are, stale
};

// All but `stream` are above 0.
struct SchedulerOptions {
  std::uint32_t vocabulary = 0;
  std::uint32_t max_positions = 0;
  std::uint32_t blocks = 0;
  std::uint32_t block_tokens = 16;
  std::uint32_t max_step_tokens = 512;  // of all slices of a step
  std::uint32_t max_sequences = 64;     // that run at once
  std::uint32_t max_waiting = 1024;     // requests in the queue
  // What requests without a seed draw from: a random number of each engine's own, or all of them
  // would give the same tokens for the same prompts in the same order.
  std::uint64_t stream = 0;
};

struct SchedulerStats {
  std::uint64_t waiting = 0;
  std::uint64_t running = 0;
  std::uint64_t blocks_used = 0;        // by running sequences
  std::uint64_t blocks_cached = 0;      // of prefixes that no sequence uses now
  std::uint64_t preempted = 0;          // since the beginning, as the next ones
  std::uint64_t prefix_hit_tokens = 0;  // found in the cache when a sequence began, or began again
  std::uint64_t prompt_tokens = 0;      // of requests that have begun
  std::uint64_t generated_tokens = 0;   // sampled
};

// Something to tell whoever made a request.
struct Progress {
  RequestId id = 0;
  std::vector<GeneratedToken> tokens;    // new ones; those that may belong to a stop are held back
  std::optional<FinishReason> finished;  // the last of this request
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // kInvalidInput as check_request(), or when the blocks could never hold it; kResourceExhausted
  // when the queue is full.
  [[nodiscard]] Result<RequestId> add(Request request);
  // Forgets a request, if it is still there. Not between plan() and take().
  void cancel(RequestId id);

  // The next step; no slices exactly when idle(). Unless there are none, take() or drop() follows.
  [[nodiscard]] Batch plan();
  // The step's logits, one row of the whole vocabulary for each slice that wanted them, in their
  // order. Logits that are no numbers are chosen from as sampler.h says.
  [[nodiscard]] std::vector<Progress> take(const Version& version, moe::ConstMatrix logits);
  // The step was not computed, or only by some ranks: its tokens will be computed again.
  void drop();

  [[nodiscard]] bool idle() const;     // nothing to compute now
  [[nodiscard]] bool running() const;  // some sequence has begun and is not finished

  // Whether waiting requests may begin; those that were put back always may go on. Admitted at
  // first.
  void admit(bool yes);
  // Finishes a request with kAbort; nothing if it is not there. Not between plan() and take(), nor
  // are the next ones.
  [[nodiscard]] std::optional<Progress> abort(RequestId id);
  // The same for every request, those that wait as well, in the order of their arrival.
  [[nodiscard]] std::vector<Progress> abort_all();
  // From here on steps are computed with other weights.
  void weights_changed(CachePolicy policy);
  // Requests that begin from here on find no prefix that was computed before; sequences that run
  // keep their own keys and values.
  void forget_prefixes();

  [[nodiscard]] SchedulerStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wsync::engine::generation
