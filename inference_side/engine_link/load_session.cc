#include "inference_side/engine_link/load_session.h"

#include <algorithm>
#include <utility>

#include "inference_side/engine_link/arena_copy.h"
#include "inference_side/engine_link/same_memory.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine {

using control::TakeMode;

namespace {

// Each tensor was summed as it was read. What is in the memory now is the one that was written
// last.
Result<> compare_same_memory(const EngineDescription& description, const PreparedVersion& prepared,
                             std::span<const SplitSum> sums, DeviceWeights* on_gpu,
                             TimePoint deadline) {
  if (planted("same_memory_not_compared")) return {};
  const auto& tensors = prepared.layout->plan.tensors();
  for (const auto& group : description.same_memory) {
    for (const std::uint32_t t : group) {
      const SplitSum held = on_gpu != nullptr
                                ? WSYNC_TRY(on_gpu->held_sum(t, tensors[t], deadline))
                                : held_sum(tensors[t], description.tensors[t].destination);
      if (held == sums[t]) continue;
      const auto name = [&](std::uint32_t index) {
        return description.tensors[index].description.name;
      };
      return fail(
          ErrorCode::kDigestMismatch,
          fmt::format("tensors {} and {} have the same memory in this engine, but different "
                      "values in {}: give each memory of its own, or take and publish only "
                      "one of them",
                      name(group[0]), name(group[1]), prepared.version.to_string()));
    }
  }
  return {};
}

}  // namespace

LoadSession::LoadSession(const EngineDescription& description, const PreparedVersion& prepared,
                         Engine& engine, TimePoint deadline, DeviceWeights* on_gpu)
    : description_(&description),
      prepared_(&prepared),
      engine_(&engine),
      on_gpu_(on_gpu),
      deadline_(deadline),
      coverage_(prepared.layout->plan),
      taken_(prepared.layout->plan.bucket_count(), false),
      groups_left_(prepared.layout->layers.size(), 0),
      sums_(prepared.layout->plan.tensors().size()),
      assembled_(description.take == TakeMode::kWhole && on_gpu == nullptr
                     ? description.tensors.size()
                     : 0) {
  for (const auto& group : prepared.layout->plan.groups())
    ++groups_left_[prepared.layout->layer_of[group.tensor]];
}

Destination LoadSession::destination_of(std::uint32_t tensor) {
  if (description_->take == TakeMode::kPieces)
    return Destination::of(description_->tensors[tensor]);
  const std::uint64_t bytes = prepared_->layout->plan.tensors()[tensor].shard.bytes();
  if (on_gpu_ != nullptr) return {.memory = on_gpu_->part(tensor, bytes), .cast = std::nullopt};
  auto& whole = assembled_[tensor];
  if (whole.empty()) whole.resize(bytes);
  return {.memory = whole, .cast = std::nullopt};
}

Result<> LoadSession::take_bucket(std::uint64_t bucket, BucketTaker& taker, std::uint32_t slot) {
  const reload::LoadPlan& plan = prepared_->layout->plan;
  if (bucket >= taken_.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("bucket {} does not exist: the load plan has {} buckets", bucket,
                            taken_.size()));
  if (taken_[bucket]) return {};
  if (on_gpu_ != nullptr && description_->take == TakeMode::kWhole && bucket != taken_count_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("bucket {} came before bucket {}: whole tensors are put together on a "
                            "GPU in the order of the buckets",
                            bucket, taken_count_));
  if (taker.slot_bytes(slot) < plan.bucket_bytes(bucket))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("bucket {} has {} bytes, but its buffer has only {}", bucket,
                            plan.bucket_bytes(bucket), taker.slot_bytes(slot)));
  const TimePoint begin = now();
  WSYNC_TRY(taker.take(
      slot, {.plan = &plan,
             .bucket = bucket,
             .deadline = deadline_,
             .destination = [&](std::uint32_t t) { return destination_of(t); },
             .on_group = [&](std::size_t g, const SplitSum& sum) { return take_group(g, sum); }}));
  copy_time_ += now() - begin;
  return end_bucket(bucket);
}

Result<> LoadSession::load_arena(ThreadPool* helpers) {
  switch (description_->take) {
    case TakeMode::kPieces:
      return copy_pieces(helpers);
    case TakeMode::kAdopt:
    case TakeMode::kBorrow:
      return pass_mapped_layers();
    case TakeMode::kWhole:
      break;
  }
  return copy_whole();
}

// Copy bucket by bucket, so that whole tensors are assembled one layer at a time and memory never
// holds a second copy of the model.
Result<> LoadSession::copy_whole() {
  const reload::LoadPlan& plan = prepared_->layout->plan;
  std::vector<std::span<const std::byte>> buckets;
  for (std::uint64_t bucket = 0; bucket < plan.bucket_count(); ++bucket)
    buckets.push_back(plan.bucket_of(prepared_->arena->data(), bucket));
  HostTaker taker(std::move(buckets));
  for (std::uint32_t bucket = 0; bucket < taker.slots(); ++bucket)
    WSYNC_TRY(take_bucket(bucket, taker, bucket));
  return {};
}

// All destinations exist from the start, so several threads may copy at once.
Result<> LoadSession::copy_pieces(ThreadPool* helpers) {
  const reload::LoadPlan& plan = prepared_->layout->plan;
  std::vector<Destination> destinations;
  destinations.reserve(description_->tensors.size());
  for (const RankTensor& tensor : description_->tensors)
    destinations.push_back(Destination::of(tensor));
  const TimePoint begin = now();
  std::uint64_t bucket = 0;
  // A bucket without data for this rank has no group.
  const auto end_buckets = [&](std::size_t groups) -> Result<> {
    for (; bucket < plan.bucket_count() && plan.first_group(bucket + 1) <= groups; ++bucket)
      WSYNC_TRY(end_bucket(bucket));
    return {};
  };
  ArenaCopy copy(plan, prepared_->arena->data(), std::move(destinations));
  const auto on_group = [&](std::size_t g, const SplitSum& sum) -> Result<> {
    WSYNC_TRY(take_group(g, sum));
    return end_buckets(g + 1);
  };
  WSYNC_TRY(copy.run(helpers, deadline_, on_group));
  copy_time_ += now() - begin;
  return end_buckets(plan.groups().size());
}

Result<> LoadSession::load_patch(PatchLoad& patch, ThreadPool* helpers,
                                 std::span<const std::uint64_t> read) {
  const TimePoint begin = now();
  auto applied = on_gpu_ != nullptr ? patch.apply(*on_gpu_, *description_, helpers, deadline_)
                                    : patch.apply(*description_, helpers, deadline_, read);
  if (!applied) return fail(std::move(applied).error());
  PatchedSums sums = std::move(*applied);
  copy_time_ += now() - begin;
  copied_bytes_ += sums.written_bytes;
  before_ = std::move(sums.before);
  sums_ = std::move(sums.after);
  read_before_ = std::move(sums.read_before);
  read_after_ = std::move(sums.read_after);
  // What the patch does not name is in place already.
  mark_all();
  return hand_over_complete_layers();
}

void LoadSession::mark_all() {
  for (std::size_t g = 0; g < prepared_->layout->plan.groups().size(); ++g) coverage_.mark(g);
  std::ranges::fill(groups_left_, 0U);
  taken_.assign(taken_.size(), true);
  taken_count_ = taken_.size();
}

Result<> LoadSession::load_changed_layers(const PatchLoad& patch) {
  const bool copies = description_->take == TakeMode::kWhole;
  const TimePoint begin = now();
  const std::size_t layers = prepared_->layout->layers.size();
  const std::size_t skipped = planted("changed_layer_skipped") ? 1 : 0;
  for (std::size_t left = skipped; next_layer_ < layers; ++next_layer_) {
    if (!patch.changes_layer(next_layer_)) continue;
    if (left != 0) {
      --left;
      continue;
    }
    if (now() > deadline_)
      return fail(ErrorCode::kDeadline, "the deadline passed while changed layers were loaded");
    const std::vector<LayerTensor> tensors =
        copies ? copied_layer(next_layer_) : mapped_layer(next_layer_);
    for (const LayerTensor& tensor : tensors) copied_bytes_ += tensor.bytes.size();
    WSYNC_TRY(pass_layer(tensors));
    if (awaits_engine_)
      return fail(ErrorCode::kInvalidInput,
                  "the engine answers a layer later, which one that takes changed layers cannot: "
                  "it is not told how many there are");
    for (const LayerTensor& tensor : tensors)
      if (copies) std::vector<std::byte>().swap(assembled_[tensor.tensor]);
  }
  copy_time_ += now() - begin;
  // What they were before a whole layer was loaded is not known here.
  if (copies) before_.resize(sums_.size());
  mark_all();
  return {};
}

// Puts the rank's parts of the tensors of a layer together, and sums them.
std::vector<LayerTensor> LoadSession::copied_layer(std::size_t layer) {
  const auto arena = prepared_->arena->data();
  std::vector<LayerTensor> tensors;
  for (const std::uint32_t t : prepared_->layout->layers[layer]) {
    const reload::LoadTensor& tensor = prepared_->layout->plan.tensors()[t];
    auto& whole = assembled_[t];
    whole.resize(tensor.shard.bytes());
    for (std::size_t at = 0; at < whole.size();) {
      const auto run = tensor.shard.run_at(at);
      std::ranges::copy(arena.subspan(tensor.arena_offset + run.offset, run.bytes),
                        whole.begin() + static_cast<std::ptrdiff_t>(at));
      at += run.bytes;
    }
    sums_[t] = held_sum(tensor, whole);
    tensors.push_back({.tensor = t, .bytes = whole});
  }
  return tensors;
}

// The bytes of a group are in place.
Result<> LoadSession::take_group(std::size_t index, const SplitSum& sum) {
  const EngineLayout& layout = *prepared_->layout;
  const reload::CopyGroup& group = layout.plan.groups()[index];
  copied_bytes_ += group.bytes;
  sums_[group.tensor] += sum;
  coverage_.mark(index);
  --groups_left_[layout.layer_of[group.tensor]];
  return {};
}

std::vector<SplitSum> LoadSession::take_sums() {
  return reads_in_place(*description_) ? std::vector<SplitSum>() : std::move(sums_);
}

Result<> LoadSession::end_bucket(std::uint64_t bucket) {
  taken_[bucket] = true;
  ++taken_count_;
  WSYNC_TRY(hand_over_complete_layers());
  engine_->on_bucket(prepared_->version, bucket, taken_.size());
  return {};
}

Result<> LoadSession::hand_over_complete_layers() {
  const EngineLayout& layout = *prepared_->layout;
  for (; next_layer_ < layout.layers.size() && groups_left_[next_layer_] == 0; ++next_layer_) {
    std::vector<LayerTensor> tensors;
    for (const std::uint32_t t : layout.layers[next_layer_])
      tensors.push_back({.tensor = t, .bytes = destination_of(t).memory});
    WSYNC_TRY(pass_layer(tensors));
    if (!assembled_.empty())
      for (const std::uint32_t t : layout.layers[next_layer_])
        std::vector<std::byte>().swap(assembled_[t]);
  }
  return {};
}

Result<> LoadSession::pass_layer(std::span<const LayerTensor> tensors) {
  const auto answer = WSYNC_TRY(
      engine_->load_layer(prepared_->version, static_cast<std::uint32_t>(next_layer_), tensors));
  if (answer == Answer::kNow) return {};
  // The bytes of whole tensors are given up after the call, and pieces are overwritten by the next
  // load, which would not wait.
  if (!control::maps_version(description_->take))
    return fail(ErrorCode::kInvalidInput,
                "the engine answers a layer later, which only a rank that borrows or adopts can");
  awaits_engine_ = true;
  return {};
}

// In host memory all layers are passed in one call, so an engine waits for no further one.
void LoadSession::give_up() {
  const bool waits = on_gpu_ != nullptr && awaits_engine_ && !all_layers();
  if (!waits || std::exchange(is_given_up_, true) || planted("given_up_load_not_told")) return;
  engine_->load_given_up(prepared_->version);
}

std::vector<LayerTensor> LoadSession::mapped_layer(std::size_t layer) const {
  const auto arena = prepared_->arena->data();
  std::vector<LayerTensor> tensors;
  for (const std::uint32_t t : prepared_->layout->layers[layer]) {
    const reload::LoadTensor& tensor = prepared_->layout->plan.tensors()[t];
    const std::uint64_t bytes = tensor.shard.bytes();
    const auto part =
        bytes == 0 ? std::span<const std::byte>()
                   : arena.subspan(tensor.arena_offset + tensor.shard.run_at(0).offset, bytes);
    tensors.push_back({.tensor = t, .bytes = part});
  }
  return tensors;
}

Result<> LoadSession::pass_mapped_layers() {
  const EngineLayout& layout = *prepared_->layout;
  for (; next_layer_ < layout.layers.size(); ++next_layer_)
    WSYNC_TRY(pass_layer(mapped_layer(next_layer_)));
  // The sidecar has verified the version before it was prepared. Nothing has written to the arena
  // since, because this process holds a read lock on it.
  for (std::size_t g = 0; g < layout.plan.groups().size(); ++g) coverage_.mark(g);
  taken_count_ = taken_.size();
  return {};
}

bool LoadSession::all_buckets() const noexcept {
  if (planted("engine_commit_without_coverage")) return taken_.empty() || taken_.back();
  return taken_count_ == taken_.size();
}

Result<> LoadSession::finish() {
  if (planted("engine_commit_without_coverage")) return {};
  // A version without buckets may still have layers whose tensors are empty.
  WSYNC_TRY(hand_over_complete_layers());
  WSYNC_TRY(coverage_.check());
  if (next_layer_ != prepared_->layout->layers.size())
    return fail(ErrorCode::kInternal,
                fmt::format("layer {} was never passed to the engine", next_layer_));
  return compare_same_memory(*description_, *prepared_, sums_, on_gpu_, deadline_);
}

}  // namespace wsync::engine
