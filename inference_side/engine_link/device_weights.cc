#include "inference_side/engine_link/device_weights.h"

#include <cerrno>
#include <fcntl.h>

#include "inference_side/engine_link/destination.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/device/memory_gate.h"

namespace wsync::engine {

using device::Piece;

namespace {

// The message's descriptors stay with its frame.
Result<UniqueFd> duplicated(const UniqueFd& fd) {
  UniqueFd own(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!own.valid())
    return fail_errno("the descriptor of an IPC buffer cannot be duplicated", errno);
  return own;
}

}  // namespace

Result<std::unique_ptr<DeviceWeights>> DeviceWeights::create(device::Device& device,
                                                             const EngineDescription& description) {
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights(device, description));
  weights->tensors_.resize(description.tensors.size());
  WSYNC_TRY(weights->check());
  weights->event_ = WSYNC_TRY(device.create_event());
  return weights;
}

Result<> DeviceWeights::borrow(std::size_t tensor) {
  const RankTensor& described = description_.tensors[tensor];
  if (described.destination.empty()) return {};
  if (tensors_[tensor] && planted("gpu_memory_checked_once")) return {};
  tensors_[tensor].reset();
  auto memory = device_.borrow(described.destination);
  if (!memory)
    return fail(memory.error().with_context(
        fmt::format("the destination of tensor {}", described.description.name)));
  tensors_[tensor] = std::move(*memory);
  return {};
}

Result<> DeviceWeights::check() {
  for (std::size_t t = 0; takes_pieces() && t < tensors_.size(); ++t) WSYNC_TRY(borrow(t));
  return {};
}

Result<> DeviceWeights::claim(const EngineLayout& layout) {
  if (takes_pieces()) return check();
  claimed_.reset();
  if (layers_ && layers_->fits(layout.places)) return {};
  claimed_ = WSYNC_TRY(LayerMemory::allocate(device_, layout.places));
  return {};
}

Result<> DeviceWeights::begin(const EngineLayout& layout) {
  if (takes_pieces()) {
    // Those that were checked for this load are there.
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      if (!tensors_[t]) WSYNC_TRY(borrow(t));
    return {};
  }
  if (claimed_) layers_ = std::move(claimed_);
  if (layers_ && layers_->fits(layout.places)) return {};
  layers_.reset();
  layers_ = WSYNC_TRY(LayerMemory::allocate(device_, layout.places));
  return {};
}

void DeviceWeights::end() noexcept { layers_.reset(); }

void DeviceWeights::release() noexcept {
  stream_.reset();  // its tables are on the GPU, kept for the next stream
  for (auto& tensor : tensors_) tensor.reset();
  claimed_.reset();
  layers_.reset();
  // Unpinning waits for running kernels, too.
  const auto gate = device::MemoryGate::memory_call();
  patch_.reset();
  device_.free_unused();
}

device::Region DeviceWeights::region(std::uint32_t tensor, std::uint64_t bytes) const {
  if (!takes_pieces()) return layers_->region(tensor, bytes);
  return {.memory = tensors_[tensor].get(), .offset = 0, .bytes = bytes};
}

std::span<std::byte> DeviceWeights::part(std::uint32_t tensor, std::uint64_t bytes) const {
  if (bytes == 0) return {};
  const device::Region at = region(tensor, bytes);
  return {at.memory->address() + at.offset, bytes};
}

Result<> DeviceWeights::open_stream() {
  if (!stream_) {
    stream_ = WSYNC_TRY(device_.create_stream(device::StreamRole::kReload));
  }
  return {};
}

Result<> DeviceWeights::enqueue(Batch& batch) {
  WSYNC_TRY(open_stream());
  WSYNC_TRY(stream_->copy_pieces(batch.pieces, batch.sums));
  return stream_->record(*event_);
}

Result<> DeviceWeights::run(Batch& batch, TimePoint deadline) {
  auto outcome = enqueue(batch);
  if (outcome) outcome = event_->wait(deadline);
  // Running work may still read the buffer and write the sums. Destroying the stream waits for it.
  if (!outcome) stream_.reset();
  return outcome;
}

Result<> DeviceWeights::take(const device::Memory& buffer, const BucketCopy& copy) {
  // Submitted work cannot be cancelled. A copy that begins after the deadline would write to the
  // weights although the sidecar has already given up the load.
  if (now() > copy.deadline)
    return fail(ErrorCode::kDeadline,
                fmt::format("the deadline passed before the copy of bucket {} began", copy.bucket));
  const reload::LoadPlan& plan = *copy.plan;
  const std::size_t begin = plan.first_group(copy.bucket);
  const std::size_t end = plan.first_group(copy.bucket + 1);
  Batch batch;
  batch.sums.resize(end - begin);
  for (std::size_t g = begin; g < end; ++g) {
    const reload::CopyGroup& group = plan.groups()[g];
    const reload::LoadTensor& tensor = plan.tensors()[group.tensor];
    // The planted fault copies nothing of a group, and returns its sum.
    const bool skipped = planted("engine_skip_piece") && g == plan.groups().size() / 2;
    const device::Region to = region(group.tensor, tensor.shard.bytes());
    const FloatCast cast =
        takes_pieces() ? device_cast(Destination::of(description_.tensors[group.tensor]).cast)
                       : FloatCast{};
    // Without memory a piece would be summed and not copied, and the load would seem to be
    // complete.
    if (to.memory == nullptr)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("the destination of tensor {} was not there when it was last checked, "
                      "so bucket {} is not copied",
                      description_.tensors[group.tensor].description.name, copy.bucket));
    for (const reload::GroupRows& rows : plan.rows(group))
      batch.pieces.push_back({.to = skipped ? nullptr : to.memory,
                              .to_offset = to.offset + cast.converted(rows.to),
                              .from = &buffer,
                              .from_offset = rows.from,
                              .row_bytes = rows.row_bytes,
                              .rows = rows.rows,
                              .from_stride = rows.stride,
                              .sum = static_cast<std::uint32_t>(g - begin),
                              .place = {.seed = tensor.seed,
                                        .position = rows.position,
                                        .tensor_bytes = tensor.shard.tensor_bytes()},
                              .cast = cast});
  }
  if (auto done = run(batch, copy.deadline); !done) {
    if (now() > copy.deadline)
      return fail(ErrorCode::kDeadline,
                  fmt::format("the deadline passed during the copy of bucket {}", copy.bucket));
    return fail(done.error().with_context(fmt::format("bucket {}", copy.bucket)));
  }
  for (std::size_t g = begin; g < end; ++g) WSYNC_TRY(copy.on_group(g, batch.sums[g - begin]));
  return {};
}

Result<SplitSum> DeviceWeights::held_sum(std::uint32_t tensor, const reload::LoadTensor& loaded,
                                         TimePoint deadline) {
  constexpr std::size_t kPieces = 65536;  // of a batch
  SplitSum sum;
  Batch batch;
  for (std::uint64_t at = 0, end = loaded.shard.bytes(); at < end;) {
    const auto range = loaded.shard.run_at(at);
    batch.pieces.push_back({.from = tensors_[tensor].get(),
                            .from_offset = at,
                            .row_bytes = range.bytes,
                            .sum = 0,
                            .place = {.seed = loaded.seed,
                                      .position = range.offset,
                                      .tensor_bytes = loaded.shard.tensor_bytes()}});
    at += range.bytes;
    if (batch.pieces.size() < kPieces && at < end) continue;
    batch.sums.assign(1, {});
    WSYNC_TRY(run(batch, deadline));
    sum += batch.sums[0];
    batch.pieces.clear();
  }
  return sum;
}

Result<Digest> DeviceWeights::converted_digest(std::uint32_t tensor) {
  WSYNC_TRY(borrow(tensor));
  const TimePoint deadline = now() + kDigestDeadline;
  return held_digest_by(
      description_.tensors[tensor], [&](std::uint64_t at, std::span<std::byte> out) -> Result<> {
        WSYNC_TRY(open_stream());
        auto copied = stream_->copy_to_host(
            out, {.memory = tensors_[tensor].get(), .offset = at, .bytes = out.size()});
        if (copied) copied = stream_->record(*event_);
        if (copied) copied = event_->wait(deadline);
        if (!copied) stream_.reset();  // waits: running work may still write to `out`
        return copied;
      });
}

Result<> DeviceWeights::claim_patch() {
  if (!patch_) patch_ = WSYNC_TRY(DevicePatch::create(device_));
  return {};
}

Result<PatchedSums> DeviceWeights::patch(const PatchTargets& targets, ThreadPool* helpers,
                                         TimePoint deadline) {
  WSYNC_CHECK(patch_ != nullptr, "a patch is claimed before it is written");
  if (now() > deadline)
    return fail(ErrorCode::kDeadline, "the deadline passed before the patch was begun");
  std::vector<device::Memory*> destinations;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t] == nullptr && targets.parts[t].bytes() != 0)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the destination of tensor {} was not there when it was last "
                              "checked, so the patch is not written",
                              description_.tensors[t].description.name));
    destinations.push_back(tensors_[t].get());
  }
  WSYNC_TRY(open_stream());
  auto sums = patch_->apply(*stream_, targets, destinations, helpers, deadline);
  // Running work may still read the buffers and write the sums. Destroying the stream waits for it.
  if (!sums) stream_.reset();
  return sums;
}

Result<std::vector<Digest>> DeviceWeights::digests(std::uint32_t first) {
  const auto is_converted = [&](std::size_t t) {
    return Destination::of(description_.tensors[t]).cast.has_value();
  };
  if (is_converted(first)) {
    auto digest = converted_digest(first);
    if (!digest)
      return fail(digest.error().with_context(device_.name() + ": the digests of the weights"));
    return std::vector{*digest};
  }
  Batch batch;
  std::vector<std::uint64_t> sizes;
  std::uint64_t bytes = 0;
  for (std::size_t t = first; t < tensors_.size(); ++t) {
    const RankTensor& tensor = description_.tensors[t];
    const std::uint64_t size = tensor.destination.size();
    if (!sizes.empty() && (bytes + size > kDigestBatchBytes || is_converted(t))) break;
    WSYNC_TRY(borrow(t));
    bytes += size;
    if (size != 0)
      batch.pieces.push_back(
          {.from = tensors_[t].get(),
           .row_bytes = size,
           .sum = static_cast<std::uint32_t>(sizes.size()),
           .place = {
               .seed = seed_of(tensor.description.name), .position = 0, .tensor_bytes = size}});
    sizes.push_back(size);
  }
  batch.sums.resize(sizes.size());
  if (auto done = run(batch, now() + kDigestDeadline); !done)
    return fail(done.error().with_context(device_.name() + ": the digests of the weights"));
  std::vector<Digest> digests;
  digests.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    digests.push_back(digest_of(batch.sums[i].words, sizes[i]));
  return digests;
}

Result<std::unique_ptr<BucketTaker>> DeviceTaker::import(
    DeviceWeights& weights, std::span<const control::BufferHandle> handles,
    std::span<const UniqueFd> fds, std::uint64_t bytes) {
  if (handles.size() != 2 || fds.size() != handles.size())
    return fail(ErrorCode::kRefused,
                fmt::format("received {} handles of IPC buffers with {} descriptors, expected 2 "
                            "with 2",
                            handles.size(), fds.size()));
  std::unique_ptr<DeviceTaker> taker(new DeviceTaker(weights));
  for (std::size_t i = 0; i < handles.size(); ++i) {
    auto fd = WSYNC_TRY(duplicated(fds[i]));
    auto memory = weights.device().import_memory({.kind = weights.device().kind(),
                                                  .bytes = bytes,
                                                  .fd = std::move(fd),
                                                  .opaque = handles[i].opaque});
    if (!memory) return fail(memory.error().with_context(fmt::format("IPC buffer {}", i)));
    taker->buffers_.push_back(std::move(*memory));
  }
  return std::unique_ptr<BucketTaker>(std::move(taker));
}

}  // namespace wsync::engine
