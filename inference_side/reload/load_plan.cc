#include "inference_side/reload/load_plan.h"

#include <algorithm>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"

namespace wsync::reload {

namespace {

// A chunk may be up to one word longer than CopyScratch::kBytes, so that it ends at a word.
constexpr std::uint64_t kWindowBytes = CopyScratch::kBytes + kSumWordBytes;

RangePlace place_of(const LoadTensor& tensor, std::uint64_t position) {
  return {.seed = tensor.seed, .position = position, .tensor_bytes = tensor.shard.tensor_bytes()};
}

// Copies shard bytes [at, at + out.size()) out of `tensor_bytes`, whose first byte is byte `first`
// of the tensor.
void gather(const Shard& shard, std::uint64_t at, std::span<const std::byte> tensor_bytes,
            std::uint64_t first, std::span<std::byte> out) {
  while (!out.empty()) {
    const Shard::Run run = shard.run_at(at);
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(run.bytes, out.size()));
    std::memcpy(out.data(), tensor_bytes.data() + (run.offset - first), bytes);
    out = out.subspan(bytes);
    at += bytes;
  }
}

// The same, and returns the sum of these bytes in the whole tensor. Rows are gathered first, so
// that the processor reads many of them at once, and summed then, while they are in the cache.
SplitSum gather_sum(const LoadTensor& tensor, std::uint64_t at,
                    std::span<const std::byte> tensor_bytes, std::uint64_t first,
                    std::span<std::byte> out) {
  constexpr std::uint64_t kRowsBytes = 16 * 1024;
  SplitSum sum;
  while (!out.empty()) {
    const std::uint64_t most = std::max(tensor.shard.run_at(at).bytes, kRowsBytes);
    const Shard::Rows rows = tensor.shard.rows_at(at, std::min<std::uint64_t>(most, out.size()));
    const auto part = out.first(rows.bytes());
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      std::memcpy(part.data() + row * rows.row_bytes,
                  tensor_bytes.data() + (rows.offset + row * rows.stride - first), rows.row_bytes);
    if ((rows.offset | rows.stride | rows.row_bytes) % kSumWordBytes == 0)
      sum.words += word_sum_rows(part, rows.row_bytes, rows.stride,
                                 {.seed = tensor.seed, .position = rows.offset});
    else
      for (std::uint64_t row = 0; row < rows.rows; ++row)
        sum += split_sum(part.subspan(row * rows.row_bytes, rows.row_bytes),
                         place_of(tensor, rows.offset + row * rows.stride));
    out = out.subspan(part.size());
    at += part.size();
  }
  return sum;
}

// Calls on_range(offset, bytes) for each range of the shard that cuts a word at its begin or end.
template <class OnRange>
void for_each_cut_range(const Shard& shard, OnRange on_range) {
  for (std::uint64_t at = 0; at < shard.bytes();) {
    const Shard::Rows rows = shard.rows_at(at, shard.bytes() - at);
    const std::uint64_t end = rows.offset + rows.row_bytes;
    const bool is_cut = rows.offset % kSumWordBytes != 0 || rows.stride % kSumWordBytes != 0 ||
                        (end % kSumWordBytes != 0 && end != shard.tensor_bytes());
    for (std::uint64_t row = 0; is_cut && row < rows.rows; ++row)
      on_range(rows.offset + row * rows.stride, rows.row_bytes);
    at += rows.bytes();
  }
}

}  // namespace

std::vector<control::EngineTensor> whole_tensors(const Manifest& manifest) {
  std::vector<control::EngineTensor> tensors;
  tensors.reserve(manifest.size());
  for (const TensorInfo& tensor : manifest.tensors())
    tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .ranges = {}});
  return tensors;
}

std::span<std::byte> CopyScratch::window() {
  if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(kWindowBytes);
  return {memory_.get(), kWindowBytes};
}

Result<LoadPlan> LoadPlan::make(const Manifest& manifest, const BucketPlan& plan,
                                std::span<const control::EngineTensor> tensors) {
  LoadPlan load;
  std::vector<std::uint32_t> taker(manifest.size(),
                                   UINT32_MAX);  // engine tensor of each manifest tensor
  for (const auto& tensor : tensors) {
    const auto refuse = [&](std::string_view what) {
      return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", tensor.name, what));
    };
    const auto index = manifest.find(tensor.name);
    if (!index) return refuse("the published tensors do not have it");
    const TensorInfo& info = manifest.tensor(*index);
    if (taker[*index] != UINT32_MAX) return refuse("the engine lists it twice");
    if (tensor.dtype != info.dtype) return refuse("its dtype differs from the checkpoint's");
    if (tensor.shape != info.shape) return refuse("its shape differs from the checkpoint's");
    auto shard = Shard::make(dtype_bits(info.dtype), info.shape, tensor.ranges);
    if (!shard) return refuse(shard.error().message());
    taker[*index] = static_cast<std::uint32_t>(load.tensors_.size());
    const auto pieces = plan.tensor_pieces(*index);
    load.bytes_ += shard->bytes();
    load.tensors_.push_back({.manifest_index = *index,
                             .arena_offset = pieces.empty() ? 0 : plan.arena_offset(pieces.front()),
                             .seed = seed_of(info.name),
                             .shard = std::move(*shard)});
  }
  for (std::size_t b = 0; b < plan.bucket_count(); ++b) {
    load.first_group_.push_back(load.groups_.size());
    load.bucket_offsets_.push_back(plan.bucket_offset(b));
    load.bucket_sizes_.push_back(plan.bucket_size(b));
    for (const Piece& piece : plan.bucket(b)) {
      if (taker[piece.tensor] == UINT32_MAX) continue;
      const std::uint32_t t = taker[piece.tensor];
      const auto part = load.tensors_[t].shard.clip(
          {.begin = piece.tensor_offset, .end = piece.tensor_offset + piece.bytes});
      if (part.bytes() == 0) continue;
      if (plan.arena_offset(piece) != load.tensors_[t].arena_offset + piece.tensor_offset)
        return fail(
            ErrorCode::kInternal,
            fmt::format("tensor {}: its pieces are not consecutive in the arena", tensors[t].name));
      load.groups_.push_back(
          {.tensor = t, .bucket = b, .begin = part.begin, .bytes = part.bytes()});
    }
  }
  load.first_group_.push_back(load.groups_.size());
  load.arena_bytes_ = plan.arena_bytes();
  if (load.groups_.size() > limits::kCopyGroupCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the load plan has {} copy groups, at most {} fit; use larger buckets",
                            load.groups_.size(), limits::kCopyGroupCount));
  WSYNC_TRY(load.prove_coverage(tensors));
  return load;
}

Result<> LoadPlan::prove_coverage(std::span<const control::EngineTensor> tensors) const {
  std::vector<std::uint64_t> reached(tensors_.size(), 0);
  for (const CopyGroup& group : groups_) {
    if (group.begin != reached[group.tensor])
      return fail(ErrorCode::kInternal,
                  fmt::format("tensor {}: the load plan jumps from byte {} to {}",
                              tensors[group.tensor].name, reached[group.tensor], group.begin));
    reached[group.tensor] += group.bytes;
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (reached[t] != tensors_[t].shard.bytes())
      return fail(ErrorCode::kInternal,
                  fmt::format("tensor {}: the load plan copies {} of its {} bytes", tensors[t].name,
                              reached[t], tensors_[t].shard.bytes()));
  }
  return {};
}

std::uint64_t LoadPlan::chunk_begin(const CopyGroup& group, std::uint64_t index) const {
  const std::uint64_t end = group.begin + group.bytes;
  const std::uint64_t at = group.begin + index * CopyScratch::kBytes;
  if (index == 0 || at >= end) return std::min(at, end);
  const Shard::Run run = tensors_[group.tensor].shard.run_at(at);
  const std::uint64_t cut = run.offset % kSumWordBytes;
  return cut == 0 ? at : std::min(at + std::min(kSumWordBytes - cut, run.bytes), end);
}

SplitSum LoadPlan::execute_chunk(const CopyGroup& group, std::uint64_t index,
                                 std::span<const std::byte> bucket,
                                 std::span<std::byte> destination, CopyScratch& scratch) const {
  const LoadTensor& tensor = tensors_[group.tensor];
  WSYNC_CHECK(destination.size() == tensor.shard.bytes(),
              "the destination has a different size than the rank's tensor");
  WSYNC_CHECK(bucket.size() >= bucket_bytes(group.bucket),
              "the bucket is shorter than the plan says");
  const std::uint64_t begin = chunk_begin(group, index);
  const auto bytes = static_cast<std::size_t>(chunk_begin(group, index + 1) - begin);
  if (bytes == 0) return {};
  const auto target = destination.subspan(begin, bytes);
  // Wraps below zero if the tensor begins inside the bucket.
  std::uint64_t first = bucket_offset(group.bucket) - tensor.arena_offset;
  if (planted("experts_swapped") && (group.tensor ^ 1U) < tensors_.size()) {
    const LoadTensor& other = tensors_[group.tensor ^ 1U];
    if (other.shard.bytes() == tensor.shard.bytes())
      first = bucket_offset(group.bucket) - other.arena_offset;
  }
  const Shard::Run run = tensor.shard.run_at(begin);
  if (run.bytes >= bytes) {
    const auto source = bucket.subspan(run.offset - first, bytes);
    if (planted("blocks_swapped") && bytes >= 2 * kSumBlockBytes) {
      std::vector<std::byte> swapped(source.begin(), source.end());
      const auto second = swapped.begin() + kSumBlockBytes;
      std::swap_ranges(swapped.begin(), second, second);
      return copy_split_sum(target, swapped, place_of(tensor, run.offset));
    }
    return copy_split_sum(target, source, place_of(tensor, run.offset));
  }
  const auto window = scratch.window().first(bytes);
  const SplitSum sum = gather_sum(tensor, begin, bucket, first, window);
  copy_streaming(target, window);
  return sum;
}

SplitSum LoadPlan::read_chunk(const CopyGroup& group, std::uint64_t index,
                              std::span<const std::byte> bucket, CopyScratch& scratch,
                              const OnPart& on_part) const {
  static_assert(limits::kLeafBytes % kSumWordBytes == 0, "no bucket ends within a word");
  static_assert(kPartBytes % kSumWordBytes == 0);
  const LoadTensor& tensor = tensors_[group.tensor];
  WSYNC_CHECK(bucket.size() >= bucket_bytes(group.bucket),
              "the bucket is shorter than the plan says");
  const std::uint64_t begin = chunk_begin(group, index);
  const std::uint64_t end = chunk_begin(group, index + 1);
  if (begin == end) return {};
  // Wraps below zero if the tensor begins inside the bucket.
  const std::uint64_t first = bucket_offset(group.bucket) - tensor.arena_offset;
  const Shard::Run run = tensor.shard.run_at(begin);
  const bool is_run = run.bytes >= end - begin;
  std::span<const std::byte> chunk;
  SplitSum sum;
  if (is_run) {
    chunk = bucket.subspan(run.offset - first, end - begin);
  } else {
    const auto window = scratch.window().first(end - begin);
    sum = gather_sum(tensor, begin, bucket, first, window);
    chunk = window;
  }
  // A part of a run is summed while it is in the first cache, so it is read from memory once.
  std::uint64_t cut = is_run ? run.offset % kSumWordBytes : 0;
  for (std::uint64_t at = 0; at < chunk.size(); cut = 0) {
    const auto part = chunk.subspan(at, std::min(kPartBytes - cut, chunk.size() - at));
    if (is_run) sum += split_sum(part, place_of(tensor, run.offset + at));
    on_part(begin + at, part);
    at += part.size();
  }
  return sum;
}

SplitSum LoadPlan::execute(const CopyGroup& group, std::span<const std::byte> bucket,
                           std::span<std::byte> destination, CopyScratch& scratch) const {
  SplitSum sum;
  for (std::uint64_t i = 0; i < chunk_count(group); ++i)
    sum += execute_chunk(group, i, bucket, destination, scratch);
  return sum;
}

SplitSum LoadPlan::sum(const CopyGroup& group, std::span<const std::byte> bucket) const {
  const LoadTensor& tensor = tensors_[group.tensor];
  const std::uint64_t first = bucket_offset(group.bucket) - tensor.arena_offset;
  SplitSum sum;
  for (std::uint64_t at = group.begin; at < group.begin + group.bytes;) {
    const Shard::Run run = tensor.shard.run_at(at);
    const std::uint64_t bytes = std::min(run.bytes, group.begin + group.bytes - at);
    sum += split_sum(bucket.subspan(run.offset - first, bytes), place_of(tensor, run.offset));
    at += bytes;
  }
  return sum;
}

std::vector<GroupRows> LoadPlan::rows(const CopyGroup& group) const {
  const LoadTensor& tensor = tensors_[group.tensor];
  // Wraps below zero if the tensor begins inside the bucket.
  const std::uint64_t first = bucket_offsets_[group.bucket] - tensor.arena_offset;
  const std::uint64_t end = group.begin + group.bytes;
  std::vector<GroupRows> rows;
  for (std::uint64_t at = group.begin; at < end;) {
    const Shard::Rows next = tensor.shard.rows_at(at, end - at);
    rows.push_back({.to = at,
                    .from = next.offset - first,
                    .position = next.offset,
                    .row_bytes = next.row_bytes,
                    .rows = next.rows,
                    .stride = next.stride});
    at += next.bytes();
  }
  return rows;
}

std::span<const std::byte> LoadPlan::bucket_of(std::span<const std::byte> arena,
                                               std::uint64_t bucket) const {
  WSYNC_CHECK(arena.size() >= arena_bytes_, "the arena is shorter than the plan says");
  return arena.subspan(bucket_offsets_[bucket], bucket_sizes_[bucket]);
}

SplitSum expected_sum(const LoadTensor& tensor, std::span<const std::byte> arena) {
  SplitSum sum;
  for (std::uint64_t at = 0; at < tensor.shard.bytes();) {
    const Shard::Run run = tensor.shard.run_at(at);
    sum += split_sum(arena.subspan(tensor.arena_offset + run.offset, run.bytes),
                     place_of(tensor, run.offset));
    at += run.bytes;
  }
  return sum;
}

WordSum expected_edges(const LoadTensor& tensor, std::span<const std::byte> arena) {
  WordSum edges;
  const auto whole = arena.subspan(tensor.arena_offset, tensor.shard.tensor_bytes());
  for_each_cut_range(tensor.shard, [&](std::uint64_t offset, std::uint64_t bytes) {
    // Its words in the middle are of no interest, so the first and the last one suffice.
    if (bytes <= 2 * kSumWordBytes) {
      edges += split_sum(whole.subspan(offset, bytes), place_of(tensor, offset)).edges;
      return;
    }
    const std::uint64_t end = offset + bytes;
    const std::uint64_t last = end - end % kSumWordBytes;
    edges += split_sum(whole.subspan(offset, kSumWordBytes - offset % kSumWordBytes),
                       place_of(tensor, offset))
                 .edges;
    edges += split_sum(whole.subspan(last, end - last), place_of(tensor, last)).edges;
  });
  return edges;
}

void add_cut_words(const LoadTensor& tensor, std::vector<std::uint64_t>& words) {
  for_each_cut_range(tensor.shard, [&](std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t end = offset + bytes;
    if (offset % kSumWordBytes != 0) words.push_back(offset / kSumWordBytes);
    if (end % kSumWordBytes != 0 && end != tensor.shard.tensor_bytes())
      words.push_back(end / kSumWordBytes);
  });
}

Digest expected_digest(const LoadTensor& tensor, std::span<const std::byte> arena) {
  const auto whole = arena.subspan(tensor.arena_offset, tensor.shard.tensor_bytes());
  const std::uint64_t bytes = tensor.shard.bytes();
  if (bytes != 0 && tensor.shard.contiguous())
    return tensor_digest(tensor.seed, whole.subspan(tensor.shard.run_at(0).offset, bytes));
  WordSum sum;
  std::vector<std::byte> window(CopyScratch::kBytes);
  for (std::uint64_t at = 0; at < bytes; at += window.size()) {
    const auto part = std::span(window).first(std::min<std::uint64_t>(window.size(), bytes - at));
    gather(tensor.shard, at, whole, 0, part);
    sum += word_sum(part, {.seed = tensor.seed, .position = at});
  }
  return digest_of(sum, bytes);
}

LoadCoverage::LoadCoverage(const LoadPlan& plan)
    : groups_(plan.groups().begin(), plan.groups().end()), marked_(groups_.size(), false) {}

void LoadCoverage::mark(std::size_t index) {
  if (marked_[index]) return;
  marked_[index] = true;
  ++marked_count_;
  bytes_ += groups_[index].bytes;
}

Result<> LoadCoverage::check() const {
  if (complete()) return {};
  const auto hole = static_cast<std::size_t>(std::ranges::find(marked_, false) - marked_.begin());
  return fail(
      ErrorCode::kInternal,
      fmt::format(
          "{} of {} copy groups are missing; the first is {} bytes of tensor {} from bucket {}",
          marked_.size() - marked_count_, marked_.size(), groups_[hole].bytes, groups_[hole].tensor,
          groups_[hole].bucket));
}

}  // namespace wsync::reload
