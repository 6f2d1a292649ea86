// Verifier: proves that the bytes of a version are the announced ones, while they arrive.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/manifest.h"

namespace wsync::staging {

struct VerifierJob {
  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const BucketPlan> plan;
  std::span<const std::byte> data;  // of the arena; a bucket is read only after it has arrived
  Digest expected;                  // content digest of the whole version
  // Called for each bucket whose leaves are digested, with its bytes, so that other sums of them
  // can be computed. On worker threads, several at a time.
  std::function<void(std::uint64_t bucket, std::span<const std::byte> bytes)> also;
  // Called after `also`, with the times at which the digesting of the bucket began and ended. Not
  // called for a bucket whose bytes differ.
  std::function<void(std::uint64_t bucket, TimePoint begin, TimePoint end)> digested = {};
};

// Thread: stop() and verified_bytes() may be called from any thread, the other functions by one
// thread at a time. The pool does the work, and outlives the verifier. `on_finished` comes through
// `post`, once, unless the verifier was cancelled.
class Verifier {
 public:
  using OnFinished = std::function<void(Result<ContentDigests>)>;
  Verifier(ThreadPool& pool, Post post, VerifierJob job, OnFinished on_finished);
  ~Verifier();

  // All bytes of the bucket have arrived. A repetition is ignored.
  void bucket_arrived(std::uint64_t bucket);
  // No other bucket will follow. When the work is done, on_finished gets success if every byte of
  // every tensor has arrived exactly once and the content digest is the expected one, else
  // kDigestMismatch.
  void all_arrived();
  // Stops reading; on_finished does not come. Returns at once, while a leaf may still be read.
  void stop() noexcept;
  // The same, and waits for the leaf that each worker reads: afterwards nothing reads the data. The
  // workers have low priority, so a loop calls this, and the destructor, on another thread.
  void cancel();
  // Bytes of tensors, without padding.
  [[nodiscard]] std::uint64_t verified_bytes() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
  ThreadPool& pool_;
  std::vector<bool> arrived_;
};

}  // namespace wsync::staging
