// Verifier: proves, while a version arrives, that its bytes are the announced ones.
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
  std::span<const std::byte> data;  // of the arena; a bucket is only read once it has arrived
  Digest expected;                  // content digest of the whole version
  // Called on a worker thread for each bucket whose leaves have been digested, with its bytes:
  // the place to compute what else has to be known of them. Several threads at a time.
  std::function<void(std::uint64_t bucket, std::span<const std::byte> bytes)> also;
  // The same, when all of it is done: when its digesting began and ended. Not of one that differs.
  std::function<void(std::uint64_t bucket, TimePoint begin, TimePoint end)> digested = {};
};

// Thread: stop() and verified_bytes() any; the others by one at a time; the work is done by the
// pool. `on_finished` comes through `post`, once, unless cancelled. The pool outlives the verifier.
class Verifier {
 public:
  using OnFinished = std::function<void(Result<ContentDigests>)>;
  Verifier(ThreadPool& pool, Post post, VerifierJob job, OnFinished on_finished);
  ~Verifier();

  // The bucket's bytes are all there. A bucket that is told again is ignored.
  void bucket_arrived(std::uint64_t bucket);
  // No bucket will follow. When the work is done: success when every byte of every tensor arrived
  // exactly once and the content digest is the expected one, else kDigestMismatch.
  void all_arrived();
  // No more is read, and on_finished does not come; returns at once.
  void stop() noexcept;
  // The same, and waits for the leaf that each worker is busy with: nothing reads the data any
  // more. The workers' priority is low, so a loop's thread leaves this, and the destructor, to
  // another.
  void cancel();
  // Of tensors, padding left out.
  [[nodiscard]] std::uint64_t verified_bytes() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
  ThreadPool& pool_;
  std::vector<bool> arrived_;
};

}  // namespace wsync::staging
