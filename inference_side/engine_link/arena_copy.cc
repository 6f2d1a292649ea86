#include "inference_side/engine_link/arena_copy.h"

#include <algorithm>
#include <latch>
#include <memory>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine {
namespace {

// A thread reads its run as one stream, so data that the processor prefetches past the end of a
// chunk is what the same thread copies next. Runs become shorter towards the end, so that no thread
// has a long run left while the others are idle.
constexpr std::size_t kRunChunks = 8;  // 4 MiB
constexpr std::size_t kRunShare = 32;  // a run is at most this fraction of the remaining chunks

}  // namespace

ArenaCopy::ArenaCopy(const reload::LoadPlan& plan, std::span<const std::byte> arena,
                     std::vector<Destination> destinations)
    : plan_(plan), arena_(arena), destinations_(std::move(destinations)) {
  for (std::uint32_t g = 0; g < plan.groups().size(); ++g) {
    first_chunk_.push_back(chunks_.size());
    const std::uint64_t count = reload::LoadPlan::chunk_count(plan.groups()[g]);
    for (std::uint32_t i = 0; i < count; ++i) chunks_.push_back({.group = g, .index = i});
  }
  first_chunk_.push_back(chunks_.size());
  sums_.resize(chunks_.size());
  done_ = std::vector<std::atomic<bool>>(chunks_.size());
}

void ArenaCopy::copy_chunk(std::size_t at, reload::CopyScratch& scratch) {
  const reload::CopyGroup& group = plan_.groups()[chunks_[at].group];
  // The planted fault copies nothing, and sums what it should have copied.
  std::vector<std::byte> lost;
  auto destination = destinations_[group.tensor];
  if (planted("engine_skip_piece") && chunks_[at].group == plan_.groups().size() / 2) {
    lost.resize(destination.memory.size());
    destination.memory = lost;
  }
  sums_[at] = take_chunk(plan_, group, chunks_[at].index, plan_.bucket_of(arena_, group.bucket),
                         destination, scratch);
  done_[at].store(true, std::memory_order_release);
}

bool ArenaCopy::copy_run(reload::CopyScratch& scratch) {
  if (ended_.load(std::memory_order_relaxed)) return false;
  std::size_t begin = next_chunk_.load(std::memory_order_relaxed);
  std::size_t end = begin;
  do {
    const std::size_t left = chunks_.size() - begin;
    if (left == 0) return false;
    end = begin + std::clamp<std::size_t>(left / kRunShare, 1, kRunChunks);
  } while (!next_chunk_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  for (std::size_t at = begin; at < end; ++at) copy_chunk(at, scratch);
  return true;
}

Result<> ArenaCopy::notify_complete(const OnGroup& on_group) {
  while (done_chunks_ < chunks_.size() && done_[done_chunks_].load(std::memory_order_acquire)) {
    ++done_chunks_;
    if (done_chunks_ < first_chunk_[next_group_ + 1]) continue;
    const std::size_t first = first_chunk_[next_group_];
    SplitSum sum;
    for (std::size_t at = first; at < done_chunks_; ++at) sum += sums_[at];
    WSYNC_TRY(on_group(next_group_, sum));
    ++next_group_;
  }
  return {};
}

Result<> ArenaCopy::run(ThreadPool* helpers, TimePoint deadline, const OnGroup& on_group) {
  const unsigned helping = helpers == nullptr ? 0 : helpers->size();
  // Shared, because the last helper may still be inside count_down() when wait() returns.
  const auto idle = std::make_shared<std::latch>(helping);
  for (unsigned i = 0; i < helping; ++i)
    helpers->post([this, idle] {
      reload::CopyScratch scratch;
      while (copy_run(scratch)) {
      }
      idle->count_down();
    });
  reload::CopyScratch scratch;
  Result<> outcome;
  while (outcome && copy_run(scratch)) {
    outcome = notify_complete(on_group);
    if (outcome && now() > deadline)
      outcome = fail(
          ErrorCode::kDeadline,
          fmt::format("the deadline passed during the copy of bucket {}",
                      plan_.groups()[std::min(next_group_, plan_.groups().size() - 1)].bucket));
  }
  // The helpers write to the rank's memory and use this object, so wait for them even after an
  // error.
  if (!outcome) ended_ = true;
  idle->wait();
  return outcome ? notify_complete(on_group) : outcome;
}

}  // namespace wsync::engine
