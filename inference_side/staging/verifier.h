// Verifier: proves, while the bytes of a version arrive, that they are the announced bytes.
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
  // Called with the bytes of each bucket whose leaves are digested, so that other checksums can be
  // computed. Called on worker threads, several at a time.
  std::function<void(std::uint64_t bucket, std::span<const std::byte> bytes)> also;
  // Called after `also`, with the times at which digesting the bucket began and ended. Not called
  // for a bucket whose bytes differ.
  std::function<void(std::uint64_t bucket, TimePoint begin, TimePoint end)> digested = {};
};

// Thread: stop() and verified_bytes() may be called from any thread, the other functions by one
// thread at a time. The pool does the work and must outlive the verifier. `on_finished` is called
// through `post`, once, unless the verifier was cancelled.
class Verifier {
 public:
  using OnFinished = std::function<void(Result<ContentDigests>)>;
  Verifier(ThreadPool& pool, Post post, VerifierJob job, OnFinished on_finished);
  ~Verifier();

  // All bytes of the bucket have arrived. A repeated call is ignored.
  void bucket_arrived(std::uint64_t bucket);
  // No further bucket will arrive. When the work is done, on_finished receives success if every
  // byte of every tensor has arrived exactly once and the content digest is as expected, otherwise
  // kDigestMismatch.
  void all_arrived();
  // Stops reading; on_finished is not called. Returns at once, while a leaf may still be read.
  void stop() noexcept;
  // Stops reading, and waits for the leaf that each worker is reading. Afterwards nothing reads the
  // data. The workers have low priority, so a loop must call this, and the destructor, on another
  // thread.
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
