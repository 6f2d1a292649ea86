#include "trainer_side/publish/leaf_copier.h"

#include <algorithm>
#include <span>
#include <thread>

#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/format.h"

namespace wsync::publish {
namespace {

// Size of the parts of a bucket that are protected together: large enough that the system call does
// not count, small enough that the last part of a model takes little time.
constexpr std::uint64_t kPartBytes = 8 * limits::kMiB;

// Consecutive leaves that a thread takes at a time.
constexpr std::size_t kRun = 4;

}  // namespace

LeafCopier::LeafCopier(WeightSource& source, const ArenaLayout& layout, const WriteLease* arena,
                       const SnapshotRequest& request, ChangeFinder* changes)
    : source_(source),
      plan_(*layout.plan),
      table_(*layout.leaves),
      arena_(arena),
      request_(request),
      changes_(changes),
      digester_(*source.manifest()),
      clocks_(plan_.bucket_count()),
      sums_(table_.all().size()) {
  const BucketPlan& plan = plan_;
  for (std::size_t i = 0; i < plan.pieces().size(); ++i)
    for (std::uint64_t at = 0; at < plan.pieces()[i].bytes; at += limits::kLeafBytes) {
      leaves_.push_back({.piece = i, .offset = at, .part = part_of(plan.pieces()[i], at)});
      ++leaves_.back().part->leaves_left;
      ++clocks_[plan.pieces()[i].bucket].leaves_left;
    }
}

Result<ContentDigests> LeafCopier::run(unsigned threads) {
  threads_ = threads;
  {
    std::vector<std::jthread> workers;
    for (unsigned i = 1; i < threads; ++i) workers.emplace_back([this] { copy_leaves(); });
    copy_leaves();
  }
  if (failure_) return fail(*failure_);
  return digester_.finish();
}

std::vector<Snapshot::BucketTime> LeafCopier::bucket_times() const {
  std::vector<Snapshot::BucketTime> times;
  for (const BucketClock& clock : clocks_)
    times.push_back({.begin = TimePoint{clock.begin.load()}, .end = TimePoint{clock.end.load()}});
  return times;
}

// Returns the part of the leaf that begins there, which is the last part or a new one.
LeafCopier::Part* LeafCopier::part_of(const Piece& piece, std::uint64_t offset) {
  const std::uint64_t begin = plan_.arena_offset(piece) + offset;
  const std::uint64_t end = begin + std::min(limits::kLeafBytes, piece.bytes - offset);
  if (parts_.empty() || parts_.back().bucket != piece.bucket ||
      begin - parts_.back().begin >= kPartBytes) {
    parts_.emplace_back();
    parts_.back().bucket = piece.bucket;
    parts_.back().begin = begin;
  }
  parts_.back().end = end;
  return &parts_.back();
}

// Returns the numbers of the next leaves of a thread, from the first to behind the last. They are
// several, so that it reads its source in order, but one at the end, where the other threads have
// nothing to do.
std::pair<std::size_t, std::size_t> LeafCopier::take_leaves() {
  std::size_t first = next_;
  for (;;) {
    const std::size_t left = leaves_.size() - first;
    const std::size_t run = std::clamp<std::size_t>(left / (kRun * threads_), 1, kRun);
    const std::size_t end = first + std::min(run, left);
    if (left == 0 || next_.compare_exchange_weak(first, end)) return {first, end};
  }
}

void LeafCopier::copy_leaves() {
  Tools tools;
  if (changes_ != nullptr) tools.maker.emplace();
  if (arena_ == nullptr) tools.scratch.resize(limits::kLeafBytes);
  for (;;) {
    const auto [first, end] = take_leaves();
    if (first == end || is_over_) return;
    for (std::size_t i = first; i < end; ++i) {
      auto copied = may_continue().and_then([&] { return copy_leaf(i, tools); });
      if (!copied) return end_with(std::move(copied).error());
    }
  }
}

Result<> LeafCopier::may_continue() const {
  if (request_.copy_deadline && now() >= *request_.copy_deadline)
    return fail(ErrorCode::kDeadline, "the weights were not copied before the deadline");
  if (request_.stop.stop_requested())
    return fail(ErrorCode::kCancelled, "the snapshot was stopped");
  return {};
}

// A block is compared where the source has it, and copied from the cache then. If it is nowhere
// before it is in the arena, it is compared there.
Result<WordSum> LeafCopier::copy_bytes(std::uint32_t tensor, const SumPlace& place,
                                       std::span<std::byte> into, Tools& tools) {
  if (!tools.maker || !changes_->is_comparing()) return source_.read_sum(tensor, place, into);
  WordSum sum;
  if (!source_.view(tensor, place.position, into.size())) {
    sum = WSYNC_TRY(source_.read_sum(tensor, place, into));
    (void)changes_->compare(*tools.maker, tensor, place.position, into);
    return sum;
  }
  for (std::uint64_t at = 0; at < into.size(); at += patch::kBlockBytes) {
    const auto block =
        into.subspan(at, std::min<std::uint64_t>(patch::kBlockBytes, into.size() - at));
    const SumPlace from{.seed = place.seed, .position = place.position + at};
    (void)changes_->compare(*tools.maker, tensor, from.position,
                            *source_.view(tensor, from.position, block.size()));
    sum += WSYNC_TRY(source_.read_sum(tensor, from, block));
  }
  return sum;
}

// Each block is summed while it is compared.
Result<WordSum> LeafCopier::compare_bytes(std::uint32_t tensor, const SumPlace& place,
                                          std::span<std::byte> scratch, Tools& tools) {
  WordSum sum;
  if (const auto whole = source_.view(tensor, place.position, scratch.size())) {
    for (std::uint64_t at = 0; at < whole->size(); at += patch::kBlockBytes) {
      const auto block =
          whole->subspan(at, std::min<std::uint64_t>(patch::kBlockBytes, whole->size() - at));
      sum += changes_->compare(*tools.maker, tensor, place.position + at, block);
    }
  } else {
    sum = WSYNC_TRY(source_.read_sum(tensor, place, scratch));
    (void)changes_->compare(*tools.maker, tensor, place.position, scratch);
  }
  if (changes_->is_comparing()) return sum;
  return fail(ErrorCode::kRefused, "too much has changed to hold the changes alone");
}

void LeafCopier::protect(std::uint64_t begin, std::uint64_t bytes) const {
  // What cannot be protected, complete() reports to the readers.
  if (arena_ != nullptr) (void)arena_->protect(begin, bytes);
}

Result<> LeafCopier::copy_leaf(std::size_t index, Tools& tools) {
  const Leaf& leaf = leaves_[index];
  const Piece& piece = plan_.pieces()[leaf.piece];
  const std::uint64_t n = std::min(limits::kLeafBytes, piece.bytes - leaf.offset);
  const auto into = arena_ == nullptr
                        ? std::span(tools.scratch).first(n)
                        : arena_->data().subspan(plan_.arena_offset(piece) + leaf.offset, n);
  const std::uint64_t offset = piece.tensor_offset + leaf.offset;
  const TimePoint begin = now();
  const bool skipped = planted("snapshot_skips_leaf") && leaf.piece == 1;
  const SumPlace place = digester_.place(piece.tensor, offset);
  WordSum sum;
  if (!skipped)
    sum = WSYNC_TRY(arena_ == nullptr ? compare_bytes(piece.tensor, place, into, tools)
                                      : copy_bytes(piece.tensor, place, into, tools));
  if (request_.done_bytes != nullptr) *request_.done_bytes += n;
  WSYNC_TRY(digester_.add_leaf(piece.tensor, offset / limits::kLeafBytes, sum));
  sums_[index] = sum;
  if (--leaf.part->leaves_left == 0) protect(leaf.part->begin, leaf.part->end - leaf.part->begin);
  BucketClock& clock = clocks_[piece.bucket];
  const std::size_t left = --clock.leaves_left;
  // The pages between its parts. The others are protected already, which takes no time.
  if (left == 0) protect(plan_.bucket_offset(piece.bucket), plan_.bucket_size(piece.bucket));
  if (left == (planted("bucket_offered_early") ? 1 : 0)) offer(piece.bucket);
  clock.cover(begin, now());
  return {};
}

// Every thread has stored the sums of its leaves before it has counted them.
void LeafCopier::offer(std::uint64_t bucket) const {
  const auto sums = std::span(sums_).subspan(table_.first(bucket), table_.bucket(bucket).size());
  if (request_.on_bucket) request_.on_bucket(bucket, {sums.begin(), sums.end()});
}

void LeafCopier::end_with(Error error) {
  is_over_ = true;
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
}

}  // namespace wsync::publish
