#include "inference_side/staging/verifier.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"

namespace wsync::staging {

// Shared by the owner and the tasks.
struct Verifier::State {
  State(Post given_post, VerifierJob given, OnFinished finished)
      : post(std::move(given_post)),
        job(std::move(given)),
        on_finished(std::move(finished)),
        digester(*job.manifest),
        coverage(*job.manifest) {}

  void verify_bucket(std::uint64_t bucket);
  void leave(const std::function<void()>& under_lock);
  Result<ContentDigests> judge();

  const Post post;
  const VerifierJob job;
  const OnFinished on_finished;
  std::atomic<bool> is_cancelled = false;
  std::atomic<std::uint64_t> verified_bytes = 0;
  ContentDigester digester;  // no two tasks digest the same leaf
  std::mutex mutex;
  std::condition_variable idle;
  // Under mutex:
  Coverage coverage;
  std::uint64_t tasks = 0;  // posted and not finished
  bool is_complete = false;
  std::optional<Error> failure;
};

void Verifier::State::verify_bucket(std::uint64_t bucket) {
  std::optional<Error> problem;
  const TimePoint begin = now();
  for (const Piece& piece : job.plan->bucket(bucket)) {
    const auto bytes = job.data.subspan(job.plan->arena_offset(piece), piece.bytes);
    // Check for a stop after each leaf, so that cancel() waits for at most one leaf.
    for (std::uint64_t at = 0; at < bytes.size() && !problem; at += limits::kLeafBytes) {
      if (is_cancelled) return;
      const auto leaf = bytes.subspan(at, std::min(limits::kLeafBytes, bytes.size() - at));
      if (auto added = digester.add(piece.tensor, piece.tensor_offset + at, leaf); !added)
        problem = added.error();
      verified_bytes += leaf.size();
    }
  }
  if (job.also && !problem)
    job.also(bucket,
             job.data.subspan(job.plan->bucket_offset(bucket), job.plan->bucket_size(bucket)));
  if (job.digested && !problem) job.digested(bucket, begin, now());
  const std::lock_guard lock(mutex);
  if (problem && !failure) failure = std::move(problem);
  for (const Piece& piece : job.plan->bucket(bucket)) coverage.mark(piece);
}

// Called at the end of each task and of all_arrived(). The last of these calls reports the result.
void Verifier::State::leave(const std::function<void()>& under_lock) {
  const std::lock_guard lock(mutex);
  under_lock();
  if (tasks != 0) return;
  idle.notify_all();
  if (!is_complete || is_cancelled) return;
  is_complete = false;  // so that the result is reported once
  post([on = on_finished, verdict = std::make_shared<Result<ContentDigests>>(judge())] {
    on(std::move(*verdict));
  });
}

Result<ContentDigests> Verifier::State::judge() {
  if (failure) return fail(*failure);
  WSYNC_TRY(coverage.complete());
  auto digests = digester.finish();
  if (!digests) return digests;
  if (digests->root != job.expected && !planted("content_digest_not_compared"))
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("the staged bytes have content digest {}, expected {} as announced",
                            digests->root.to_string(), job.expected.to_string()));
  return digests;
}

Verifier::Verifier(ThreadPool& pool, Post post, VerifierJob job, OnFinished on_finished)
    : state_(std::make_shared<State>(std::move(post), std::move(job), std::move(on_finished))),
      pool_(pool),
      arrived_(state_->job.plan->bucket_count(), false) {}

Verifier::~Verifier() { cancel(); }

void Verifier::bucket_arrived(std::uint64_t bucket) {
  if (bucket >= arrived_.size() || arrived_[bucket]) return;
  arrived_[bucket] = true;
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->tasks;
  }
  pool_.post([state = state_, bucket] {
    if (!state->is_cancelled) state->verify_bucket(bucket);
    state->leave([&] { --state->tasks; });
  });
}

void Verifier::all_arrived() {
  state_->leave([&] { state_->is_complete = true; });
}

void Verifier::stop() noexcept { state_->is_cancelled = true; }

void Verifier::cancel() {
  stop();
  std::unique_lock lock(state_->mutex);
  state_->idle.wait(lock, [&] { return state_->tasks == 0; });
}

std::uint64_t Verifier::verified_bytes() const noexcept { return state_->verified_bytes; }

}  // namespace wsync::staging
