#include "trainer_side/publish/draft.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/cast.h"
#include "trainer_side/publish/part_failure.h"

namespace wsync::publish {
namespace {

// Converted bytes stay in the first cache until they are summed and stored.
constexpr std::size_t kCastBytes = 16 * 1024;
constexpr std::size_t kNamedTensors = 3;  // in the sentence about incomplete ones

// A tensor without dimensions has one element.
std::vector<std::uint64_t> extents_of(const TensorInfo& info) {
  return info.shape.empty() ? std::vector<std::uint64_t>{1} : info.shape;
}

TensorInfo info_of_rank(const DraftTensor& tensor) {
  TensorInfo info = tensor.info;
  if (tensor.range) info.shape[tensor.range->dim] = tensor.range->length;
  return info;
}

Result<> check_range(const TensorInfo& info, const std::optional<ShardRange>& range) {
  if (!range) return {};
  if (range->dim >= info.shape.size() || range->begin > info.shape[range->dim] ||
      range->length > info.shape[range->dim] - range->begin)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("tensor {}: [{}, {}) of dimension {} lies outside of its shape {}",
                            info.name, range->begin, range->begin + range->length, range->dim,
                            shape_text(info.shape)));
  return {};
}

}  // namespace

// ---- begin ----

Draft::Draft(std::shared_ptr<Snapshotter> snapshotter, std::shared_ptr<const Manifest> manifest,
             std::shared_ptr<const BucketPlan> plan, WritableArena arena, unsigned threads)
    : snapshotter_(std::move(snapshotter)),
      manifest_(std::move(manifest)),
      plan_(std::move(plan)),
      helpers_(helpers_for(threads)),
      arena_(std::move(arena)) {}

Result<std::shared_ptr<Draft>> Draft::begin(std::shared_ptr<Snapshotter> snapshotter,
                                            std::vector<DraftTensor> tensors,
                                            const SnapshotRequest& request, unsigned threads) {
  std::vector<TensorInfo> infos;
  for (const DraftTensor& tensor : tensors) {
    WSYNC_TRY(check_range(tensor.info, tensor.range));
    infos.push_back(info_of_rank(tensor));
  }
  auto manifest = std::make_shared<const Manifest>(WSYNC_TRY(Manifest::create(std::move(infos))));
  auto plan = WSYNC_TRY(BucketPlan::create(*manifest, request.bucket_bytes));
  auto arena = WSYNC_TRY(snapshotter->begin(*manifest, request));
  const std::span<std::byte> data = arena.data();
  std::shared_ptr<Draft> draft(new Draft(std::move(snapshotter), manifest,
                                         std::make_shared<const BucketPlan>(std::move(plan)),
                                         std::move(arena), threads));
  draft->slots_.resize(manifest->size());
  for (DraftTensor& tensor : tensors) {
    const auto index = manifest->find(tensor.info.name);
    WSYNC_CHECK(index.has_value(), "a manifest has the tensors that it was made from");
    Slot& slot = draft->slots_[*index];
    slot.info = manifest->tensor(*index);
    slot.described = std::move(tensor);
    const auto pieces = draft->plan_->tensor_pieces(*index);
    const std::uint64_t begin = pieces.empty() ? 0 : draft->plan_->arena_offset(pieces.front());
    slot.memory = data.subspan(begin, manifest->byte_size(*index));
  }
  std::uint64_t leaves = 0;
  for (std::size_t i = 0; i < manifest->size(); ++i) {
    draft->first_leaf_.push_back(leaves);
    leaves += leaf_count(manifest->byte_size(i));
  }
  draft->sums_.resize(leaves);
  draft->is_summed_.resize(leaves);
  return draft;
}

// ---- where a part lies ----

Result<Draft::Place> Draft::place_of(const DraftPart& part) const {
  const auto index = manifest_->find(part.name);
  if (!index)
    return fail(ErrorCode::kNotFound,
                fmt::format("tensor {}: the version has no tensor of this name", part.name));
  const Slot& slot = slots_[*index];
  const TensorInfo& whole = slot.described.info;
  const auto refuse = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", part.name, what));
  };
  if (part.shape != whole.shape)
    return refuse(fmt::format("its shape is {}, but {} was described", shape_text(part.shape),
                              shape_text(whole.shape)));
  if (!can_cast(part.dtype, whole.dtype))
    return refuse(fmt::format("{} cannot be converted to {}", dtype_name(part.dtype),
                              dtype_name(whole.dtype)));
  if (!std::holds_alternative<std::monostate>(part.scales) &&
      (whole.dtype != DType::kF8E4M3 || part.dtype == whole.dtype))
    return refuse(fmt::format("scales belong to a conversion to F8_E4M3, not from {} to {}",
                              dtype_name(part.dtype), dtype_name(whole.dtype)));
  const auto extents = extents_of(slot.info);
  if (!part.range) return Place{.tensor = *index, .dim = 0, .begin = 0, .end = extents[0]};
  WSYNC_TRY(check_range(whole, part.range));
  if (dtype_bits(whole.dtype) % 8 != 0)
    return refuse(fmt::format("{} is put as a whole, because its elements are smaller than a byte",
                              dtype_name(whole.dtype)));
  const std::optional<ShardRange>& own = slot.described.range;
  const ShardRange range = *part.range;
  if (own && range.dim != own->dim)
    return refuse(
        fmt::format("this rank has a range of dimension {}, but a part of dimension {} "
                    "was put",
                    own->dim, range.dim));
  const std::uint64_t first = own ? own->begin : 0;
  if (range.begin < first || range.begin + range.length > first + extents[range.dim])
    return refuse(fmt::format("[{}, {}) of dimension {} was put, but this rank has [{}, {})",
                              range.begin, range.begin + range.length, range.dim, first,
                              first + extents[range.dim]));
  return Place{.tensor = *index,
               .dim = range.dim,
               .begin = range.begin - first,
               .end = range.begin - first + range.length};
}

Draft::Rows Draft::rows_of(const Place& place) const {
  const auto extents = extents_of(slots_[place.tensor].info);
  const std::uint64_t inner = element_count(std::span(extents).subspan(place.dim + 1));
  const std::uint64_t outer = element_count(std::span(extents).first(place.dim));
  const std::uint64_t run = (place.end - place.begin) * inner;
  const std::uint64_t pitch = extents[place.dim] * inner;
  if (run == pitch) return {.rows = 1, .run = outer * run, .pitch = outer * run, .first = 0};
  return {.rows = outer, .run = run, .pitch = pitch, .first = place.begin * inner};
}

// ---- what was put ----

Result<> Draft::claim(const Place& place) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[place.tensor];
  const auto refuse = [&](ErrorCode code, std::string_view what) {
    return fail(code, fmt::format("tensor {}: {}", slot.info.name, what));
  };
  if (is_sealed_) return refuse(ErrorCode::kRefused, "the version has been ended");
  if (auto kept = check_not_lost(); !kept)
    return refuse(kept.error().code(), kept.error().message());
  if (slot.has_pointer)
    return refuse(ErrorCode::kInvalidInput,
                  "it is written through its pointer and cannot be put as well");
  // Parts of the whole dimension lie along every dimension.
  const bool is_whole = place.begin == 0 && place.end == extents_of(slot.info)[place.dim];
  if (!slot.parts.empty() && slot.dim != place.dim && !is_whole)
    return refuse(ErrorCode::kInvalidInput,
                  fmt::format("a part of dimension {} was put after one of dimension {}", place.dim,
                              slot.dim));
  for (const auto& [begin, end] : slot.parts)
    if ((slot.dim != place.dim || (place.begin < end && begin < place.end)) &&
        !planted("put_twice"))
      return refuse(ErrorCode::kRefused,
                    fmt::format("[{}, {}) of dimension {} was put already", begin, end, slot.dim));
  if (slot.parts.empty()) slot.dim = place.dim;
  slot.parts.emplace_back(place.begin, place.end);
  ++slot.writing;
  return {};
}

void Draft::finish(const Place& place, bool is_written) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[place.tensor];
  --slot.writing;
  if (!is_written) std::erase(slot.parts, std::pair(place.begin, place.end));
}

// Ends the claim of a part, also if an exception does: there may be no memory for a thread.
struct Draft::Claimed {
  Claimed(Draft& of, const Place& at) : draft(of), place(at) {}
  Claimed(const Claimed&) = delete;
  Claimed& operator=(const Claimed&) = delete;
  ~Claimed() { draft.finish(place, is_written); }
  Draft& draft;
  const Place place;
  bool is_written = false;
};

Result<> Draft::put(const DraftPart& part) {
  const Place place = WSYNC_TRY(place_of(part));
  if (part.on_gpu) {
    if (std::holds_alternative<std::monostate>(part.scales)) {
      std::size_t failed = 0;
      return put_all({&part, 1}, failed);
    }
    std::shared_ptr<std::vector<std::byte>> memory;
    return put(WSYNC_TRY(on_host(part, memory)));
  }
  const auto* given = std::get_if<GivenScales>(&part.scales);
  const bool is_plain = std::holds_alternative<std::monostate>(part.scales);
  if (!is_plain && (given == nullptr || given->values.size() != 1)) return put_blocks(part, place);
  const float scale = given != nullptr ? given->values.front() : 1.0F;
  if (!std::isfinite(scale) || scale <= 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("tensor {}: its scale is {}, expected a positive number", part.name, scale));
  WSYNC_TRY(claim(place));
  Claimed claimed(*this, place);
  write(part, place, scale);
  claimed.is_written = true;
  return {};
}

// The same for several parts.
struct Draft::ClaimedAll {
  explicit ClaimedAll(Draft& of) : draft(of) {}
  ClaimedAll(const ClaimedAll&) = delete;
  ClaimedAll& operator=(const ClaimedAll&) = delete;
  ~ClaimedAll() {
    // An exception: what is protected must be writable for those that put it again.
    if (!is_written && is_protecting) (void)draft.arena_->lease().unprotect();
    for (std::size_t i = 0; i < claimed; ++i) draft.finish(places[i], is_written);
  }
  Draft& draft;
  std::vector<Place> places;
  std::size_t claimed = 0;  // of the places, from the first one on
  bool is_protecting = false;
  bool is_written = false;
};

// Ends copies into the arena. It is lost if a GPU may still write there.
struct Draft::EndOfCopies {
  EndOfCopies(DeviceCopies& to_end, Draft& of) : copies(to_end), draft(of) {}
  EndOfCopies(const EndOfCopies&) = delete;
  EndOfCopies& operator=(const EndOfCopies&) = delete;
  ~EndOfCopies() {
    if (copies.end()) return;
    const std::lock_guard lock(draft.mutex_);
    draft.is_lost_ = true;
  }
  DeviceCopies& copies;
  Draft& draft;
};

void Draft::add_leaves(std::size_t part, const Place& place,
                       const std::pair<std::uint64_t, std::uint64_t>& range,
                       std::vector<LeafOfPart>& leaves) const {
  // Pieces begin at leaves.
  const auto pieces = plan_->tensor_pieces(place.tensor);
  auto piece = pieces.begin();
  for (std::uint64_t at = range.first; at < range.second;) {
    const std::uint64_t end =
        std::min(range.second, (at / limits::kLeafBytes + 1) * limits::kLeafBytes);
    while (at >= piece->tensor_offset + piece->bytes) ++piece;
    leaves.push_back({.part = part,
                      .part_begin = range.first,
                      .begin = at,
                      .end = end,
                      .bucket = piece->bucket});
    at = end;
  }
}

Result<> Draft::put_all(std::span<const DraftPart> parts, std::size_t& failed) {
  failed = 0;
  if (parts.empty()) return {};
  ClaimedAll all(*this);
  for (failed = 0; failed < parts.size(); ++failed) {
    const DraftPart& part = parts[failed];
    if (!std::holds_alternative<std::monostate>(part.scales))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {}: a part with scales is put alone", part.name));
    all.places.push_back(WSYNC_TRY(place_of(part)));
  }
  for (failed = 0; failed < parts.size(); ++failed) {
    WSYNC_TRY(claim(all.places[failed]));
    ++all.claimed;
  }
  std::vector<LeafOfPart> leaves;
  // Copies from a GPU travel while this call writes what the host has. They end before the claims.
  DeviceCopies copies(arena_->hold(), &arena_->arena()->region());
  const EndOfCopies ending{copies, *this};
  std::vector<std::size_t> in_rows;  // parts on a GPU that are no single run
  WSYNC_TRY(start_copies(parts, all.places, copies, failed));
  for (failed = 0; failed < parts.size(); ++failed) {
    const auto range = contiguous(all.places[failed]);
    const bool is_on_host = !parts[failed].on_gpu;
    const bool is_copied =
        !is_on_host && cast_on_gpu(parts[failed], all.places[failed]).has_value();
    if (range && (is_on_host || is_copied)) {
      add_leaves(failed, all.places[failed], *range, leaves);
    } else if (is_on_host) {
      write(parts[failed], all.places[failed], 1.0F);
    } else if (is_copied) {
      in_rows.push_back(failed);
    } else {
      std::shared_ptr<std::vector<std::byte>> memory;
      write(WSYNC_TRY(on_host(parts[failed], memory)), all.places[failed], 1.0F);
    }
  }
  // A bucket of which this call writes all bytes is protected as soon as it has them, while other
  // threads write on: nothing else may be put there. The end of the version protects the others.
  std::vector<std::atomic<std::uint64_t>> bytes_left(plan_->bucket_count());
  for (const Piece& piece : plan_->pieces()) bytes_left[piece.bucket] += piece.bytes;
  all.is_protecting = true;
  PartFailure failure;
  for_each_index(helpers_.get(), leaves.size(), [&](std::size_t i) {
    const LeafOfPart& leaf = leaves[i];
    const DraftPart& part = parts[leaf.part];
    const Slot& slot = slots_[all.places[leaf.part].tensor];
    if (part.on_gpu) {
      if (failure.is_set() ||
          !failure.keep(sum_when_copied(slot, leaf.begin, leaf.end, copies), leaf.part))
        return;
    } else {
      const std::uint64_t offset =
          (leaf.begin - leaf.part_begin) * dtype_bits(part.dtype) / dtype_bits(slot.info.dtype);
      write_leaf(part, slot, leaf.begin, leaf.end, part.data + offset, 1.0F);
    }
    const std::uint64_t bytes = leaf.end - leaf.begin;
    if (bytes_left[leaf.bucket].fetch_sub(bytes) == bytes)
      (void)arena_->lease().protect(plan_->bucket_offset(leaf.bucket),
                                    plan_->bucket_size(leaf.bucket));
  });
  for (const std::size_t i : in_rows)
    if (!failure.is_set()) (void)failure.keep(copies.wait(slots_[all.places[i].tensor].memory), i);
  WSYNC_TRY(failure.result(parts, failed));
  failed = parts.size();
  all.is_written = true;
  return {};
}

Result<> Draft::check_dtype(std::string_view name, DType dtype) const {
  const auto index = manifest_->find(name);
  if (!index)
    return fail(ErrorCode::kNotFound,
                fmt::format("tensor {}: the version has no tensor of this name", name));
  const DType described = manifest_->tensor(*index).dtype;
  if (described == dtype) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("tensor {}: it is published as {}, as it was described, not as {}", name,
                          dtype_name(described), dtype_name(dtype)));
}

Result<std::span<std::byte>> Draft::pointer(std::string_view name) {
  const auto index = manifest_->find(name);
  if (!index)
    return fail(ErrorCode::kNotFound,
                fmt::format("tensor {}: the version has no tensor of this name", name));
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[*index];
  if (is_sealed_)
    return fail(ErrorCode::kRefused, fmt::format("tensor {}: the version has been ended", name));
  if (!slot.parts.empty())
    return fail(ErrorCode::kRefused,
                fmt::format("tensor {}: a part of it was put, so it has no pointer", name));
  slot.has_pointer = true;
  return slot.memory;
}

Result<> Draft::seal() {
  const std::lock_guard lock(mutex_);
  if (is_sealed_) return fail(ErrorCode::kRefused, "the version has been ended already");
  WSYNC_TRY(check_not_lost());
  std::vector<std::string> missing;
  for (const Slot& slot : slots_) {
    if (slot.writing != 0)
      return fail(ErrorCode::kRefused,
                  fmt::format("tensor {}: a part of it is being put; end the version after that",
                              slot.info.name));
    if (slot.has_pointer || slot.memory.empty()) continue;
    std::uint64_t put = 0;
    for (const auto& [begin, end] : slot.parts) put += end - begin;
    const std::uint64_t extent = extents_of(slot.info)[slot.dim];
    if (put == extent || planted("missing_parts_published")) continue;
    missing.push_back(put == 0 ? slot.info.name
                               : fmt::format("{} ({} of {} along dimension {})", slot.info.name,
                                             put, extent, slot.dim));
  }
  if (missing.empty()) {
    is_sealed_ = true;
    return {};
  }
  const std::size_t count = missing.size();
  missing.resize(std::min(count, kNamedTensors));
  return fail(ErrorCode::kRefused,
              fmt::format("{} of {} tensors were not put completely: {}{}", count, slots_.size(),
                          fmt::join(missing, ", "), count > kNamedTensors ? ", ..." : ""));
}

// ---- bytes ----

// Bytes [begin, end) of the tensor, if the part is one run of them.
std::optional<std::pair<std::uint64_t, std::uint64_t>> Draft::contiguous(const Place& place) const {
  const Slot& slot = slots_[place.tensor];
  if (slot.memory.empty()) return std::pair<std::uint64_t, std::uint64_t>{0, 0};
  const std::uint32_t bits = dtype_bits(slot.info.dtype);
  if (bits % 8 != 0) return std::pair<std::uint64_t, std::uint64_t>{0, slot.memory.size()};
  const Rows rows = rows_of(place);
  if (rows.rows != 1) return std::nullopt;
  return std::pair{rows.first * bits / 8, (rows.first + rows.run) * bits / 8};
}

void Draft::write(const DraftPart& part, const Place& place, float scale) {
  const Slot& slot = slots_[place.tensor];
  const DType to = slot.info.dtype;
  if (const auto range = contiguous(place))
    return write_contiguous(part, slot, range->first, range->second - range->first, scale);
  const Rows rows = rows_of(place);
  const std::uint64_t to_bytes = dtype_bits(to) / 8;
  const std::uint64_t from_bytes = dtype_bits(part.dtype) / 8;
  for_each_index(
      rows.rows * rows.run * to_bytes < limits::kLeafBytes ? nullptr : helpers_.get(), rows.rows,
      [&](std::size_t row) {
        cast(part.dtype, {part.data + row * rows.run * from_bytes, rows.run * from_bytes}, to,
             slot.memory.subspan((rows.first + row * rows.pitch) * to_bytes, rows.run * to_bytes),
             scale);
      });
}

// Bytes [begin, begin + bytes) of the tensor, leaf by leaf.
void Draft::write_contiguous(const DraftPart& part, const Slot& slot, std::uint64_t begin,
                             std::uint64_t bytes, float scale) {
  if (bytes == 0) return;
  const std::uint64_t first = begin / limits::kLeafBytes;
  const std::uint64_t last = (begin + bytes - 1) / limits::kLeafBytes;
  const std::uint64_t from_bits = dtype_bits(part.dtype);
  const std::uint64_t to_bits = dtype_bits(slot.info.dtype);
  for_each_index(first == last ? nullptr : helpers_.get(), last - first + 1, [&](std::size_t i) {
    const std::uint64_t from = std::max(begin, (first + i) * limits::kLeafBytes);
    const std::uint64_t to = std::min(begin + bytes, (first + i + 1) * limits::kLeafBytes);
    write_leaf(part, slot, from, to, part.data + (from - begin) * from_bits / to_bits, scale);
  });
}

// Bytes [begin, end) of the tensor, which lie in one leaf.
void Draft::write_leaf(const DraftPart& part, const Slot& slot, std::uint64_t begin,
                       std::uint64_t end, const std::byte* data, float scale) {
  const auto into = slot.memory.subspan(begin, end - begin);
  const std::uint64_t from_bits = dtype_bits(part.dtype);
  const std::uint64_t to_bits = dtype_bits(slot.info.dtype);
  const bool is_whole = begin % limits::kLeafBytes == 0 &&
                        (end % limits::kLeafBytes == 0 || end == slot.memory.size());
  if (!is_whole)
    return cast(part.dtype, {data, into.size() * from_bits / to_bits}, slot.info.dtype, into,
                scale);
  const SumPlace place{.seed = seed_of(slot.info.name), .position = begin};
  WordSum sum;
  if (part.dtype == slot.info.dtype) {
    sum = copy_streaming_sum(into, {data, into.size()}, place);
  } else {
    std::array<std::byte, kCastBytes> converted;
    for (std::size_t at = 0; at < into.size(); at += kCastBytes) {
      const auto chunk = std::span(converted).first(std::min(kCastBytes, into.size() - at));
      cast(part.dtype, {data + at * from_bits / to_bits, chunk.size() * from_bits / to_bits},
           slot.info.dtype, chunk, scale);
      sum += copy_streaming_sum(into.subspan(at, chunk.size()), chunk,
                                {.seed = place.seed, .position = begin + at});
    }
  }
  keep_sum(slot, begin, sum);
}

void Draft::keep_sum(const Slot& slot, std::uint64_t begin, const WordSum& sum) {
  const auto index = static_cast<std::size_t>(&slot - slots_.data());
  const std::uint64_t leaf = first_leaf_[index] + begin / limits::kLeafBytes;
  sums_[leaf] = sum;
  is_summed_[leaf] = 1;
}

// ---- scales of blocks ----

Result<> Draft::put_blocks(const DraftPart& part, const Place& place) {
  const Slot& slot = slots_[place.tensor];
  const TensorInfo& whole = slot.described.info;
  const auto scales = WSYNC_TRY(scale_info(whole));
  const auto refuse = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", part.name, what));
  };
  // Blocks are those of the whole tensor.
  const std::optional<ShardRange> range = part.range ? part.range : slot.described.range;
  DraftPart scale_part{.name = scales.name, .dtype = DType::kF32, .shape = scales.shape};
  if (range) {
    scale_part.range = range;
    if (range->dim + 2 >= whole.shape.size()) {
      const std::uint64_t end = range->begin + range->length;
      if (range->begin % kScaleBlock != 0 ||
          (end % kScaleBlock != 0 && end != whole.shape[range->dim]))
        return refuse(fmt::format("[{}, {}) of dimension {} cuts a block of {} that has one scale",
                                  range->begin, end, range->dim, kScaleBlock));
      scale_part.range = ShardRange{.dim = range->dim,
                                    .begin = range->begin / kScaleBlock,
                                    .length = blocks_of(range->length)};
    }
  }
  BlockPart blocks{.name = part.name,
                   .from = part.dtype,
                   .data = part.data,
                   .tensor = slot.memory,
                   .shape = slot.info.shape,
                   .dim = place.dim,
                   .begin = place.begin,
                   .end = place.end};
  const bool is_computed = std::holds_alternative<ComputedScales>(part.scales);
  if (!is_computed) {
    auto shape = scales.shape;
    if (scale_part.range) shape[scale_part.range->dim] = scale_part.range->length;
    if (const auto& given = std::get<GivenScales>(part.scales).values;
        given.size() != element_count(shape))
      return refuse(fmt::format("{} scales are given, expected 1, or {} for blocks of {} x {}",
                                given.size(), element_count(shape), kScaleBlock, kScaleBlock));
    blocks.scales = std::get<GivenScales>(part.scales).values;
    WSYNC_TRY(claim(place));
    Claimed claimed(*this, place);
    const auto written = cast_blocks(blocks, helpers_.get());
    claimed.is_written = written.has_value();
    return written ? Result<>{} : fail(written.error());
  }
  // Without a range of its own the part is all of the tensor, and so are its scales.
  if (const auto index = manifest_->find(scales.name);
      !range && index && slots_[*index].described.range)
    return refuse(
        fmt::format("this rank has all of it, but only a range of its scales {}", scales.name));
  const auto scale_place = place_of(scale_part);
  if (!scale_place)
    return fail(
        scale_place.error().with_context(fmt::format("the scales of tensor {}", part.name)));
  WSYNC_TRY(claim(place));
  Claimed claimed(*this, place);
  WSYNC_TRY(claim(*scale_place));
  Claimed claimed_scales(*this, *scale_place);
  const auto computed = cast_blocks(blocks, helpers_.get());
  if (computed) {
    scale_part.data = reinterpret_cast<const std::byte*>(computed->data());
    write(scale_part, *scale_place, 1.0F);
  }
  claimed.is_written = claimed_scales.is_written = computed.has_value();
  return computed ? Result<>{} : fail(computed.error());
}

// ---- end ----

class DraftSource final : public WeightSource {
 public:
  explicit DraftSource(std::shared_ptr<Draft> draft) : draft_(std::move(draft)) {}
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return draft_->manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t /*tensor*/, std::uint64_t /*offset*/,
                              std::span<std::byte> /*into*/) override {
    if (has_arena_) return {};  // `into` is the memory of the tensor
    return fail(ErrorCode::kInternal, "the arena of this draft has been given to a snapshot");
  }
  [[nodiscard]] Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                         std::span<std::byte> into) override {
    WSYNC_TRY(read(tensor, place.position, into));
    const std::uint64_t leaf = draft_->first_leaf_[tensor] + place.position / limits::kLeafBytes;
    if (draft_->is_summed_[leaf] != 0) return draft_->sums_[leaf];
    return word_sum(into, place);
  }
  [[nodiscard]] bool is_summed() const override {
    return std::ranges::all_of(draft_->is_summed_, [](std::uint8_t is) { return is != 0; });
  }
  [[nodiscard]] std::optional<WritableArena> take_arena() override {
    has_arena_ = draft_->arena_.has_value();
    return std::exchange(draft_->arena_, std::nullopt);
  }

 private:
  const std::shared_ptr<Draft> draft_;
  bool has_arena_ = false;
};

std::unique_ptr<WeightSource> Draft::source() {
  return std::make_unique<DraftSource>(shared_from_this());
}

std::vector<RankTensor> Draft::rank_tensors() const {
  std::vector<RankTensor> tensors;
  for (const Slot& slot : slots_)
    tensors.push_back({.info = slot.described.info,
                       .range = slot.described.range,
                       .bytes = std::span<const std::byte>(slot.memory)});
  return tensors;
}

}  // namespace wsync::publish
