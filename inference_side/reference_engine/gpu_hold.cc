#include "inference_side/reference_engine/gpu_hold.h"

#include <algorithm>
#include <numeric>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::engine::reference {

std::uint64_t GpuPacking::bytes() const noexcept {
  return std::accumulate(allocations.begin(), allocations.end(), std::uint64_t{0});
}

GpuPacking pack_tensors(std::span<const std::uint64_t> bytes, std::uint64_t limit) {
  GpuPacking packing;
  packing.places.reserve(bytes.size());
  for (const std::uint64_t size : bytes) {
    packing.places.emplace_back();
    if (size == 0) continue;
    WSYNC_CHECK(size <= limit, "a tensor fits into an allocation");
    auto& allocations = packing.allocations;
    constexpr std::uint64_t kAlign = limits::kPieceAlignBytes;
    std::uint64_t offset =
        allocations.empty() ? limit : (allocations.back() + kAlign - 1) / kAlign * kAlign;
    if (offset > limit || size > limit - offset || allocations.empty()) {
      allocations.push_back(0);
      offset = 0;
    }
    allocations.back() = offset + size;
    packing.places.back() = {.allocation = static_cast<std::uint32_t>(allocations.size() - 1),
                             .offset = offset};
  }
  return packing;
}

Result<std::unique_ptr<GpuHold>> GpuHold::create(device::Device& device,
                                                 std::span<const control::EngineTensor> tensors,
                                                 std::span<const std::uint64_t> bytes,
                                                 std::size_t max_samples) {
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (bytes[t] > limits::kBucketBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {}: this rank's part has {} bytes, but an allocation on a "
                              "GPU has at most {}; share the model among more ranks (--world-size)",
                              tensors[t].name, bytes[t], limits::kBucketBytesMax));
  std::unique_ptr<GpuHold> hold(new GpuHold(device));
  hold->sizes_.assign(bytes.begin(), bytes.end());
  const GpuPacking packing = pack_tensors(bytes, limits::kBucketBytesMax);
  hold->places_ = packing.places;
  WSYNC_TRY(hold->allocate(packing));
  WSYNC_TRY(hold->make_buffers(max_samples));
  return hold;
}

Result<> GpuHold::allocate(const GpuPacking& packing) {
  const auto memory = WSYNC_TRY(device_.memory_info());
  const auto short_of = [&](const std::string& why) {
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("{}: the weights of this rank need {} bytes, but {} of {} are free{}; share "
                    "the model among more ranks (--world-size), or free memory there",
                    device_.name(), packing.bytes(), memory.free_bytes, memory.total_bytes, why));
  };
  if (packing.bytes() > memory.free_bytes) return short_of({});
  for (const std::uint64_t bytes : packing.allocations) {
    auto allocation = device_.allocate(bytes);
    if (!allocation && allocation.error().code() == ErrorCode::kResourceExhausted)
      return short_of(fmt::format(" (an allocation of {} of these bytes failed: {})", bytes,
                                  allocation.error().message()));
    if (!allocation) return fail(std::move(allocation).error());
    allocations_.push_back(std::move(*allocation));
    bytes_ += bytes;
  }
  return {};
}

Result<> GpuHold::make_buffers(std::size_t max_samples) {
  for (Lane* lane : {&loading_, &serving_}) {
    auto event = WSYNC_TRY(device_.create_event());
    lane->event = std::move(event);
  }
  samples_.resize(max_samples * kSampleBytes);
  chunk_.resize(kChunkBytes);
  for (const auto* buffer : {&samples_, &chunk_}) {
    if (buffer->empty()) continue;
    auto registered = WSYNC_TRY(device_.register_host(*buffer));
    registered_.push_back(std::move(registered));
  }
  if (samples_.empty()) return {};
  gathered_ = WSYNC_TRY(device_.allocate(samples_.size()));
  bytes_ += samples_.size();
  return {};
}

std::span<std::byte> GpuHold::range(std::size_t tensor) const {
  if (sizes_[tensor] == 0) return {};
  const GpuPacking::Place& place = places_[tensor];
  return {allocations_[place.allocation]->address() + place.offset, sizes_[tensor]};
}

device::Region GpuHold::region(std::size_t tensor, std::uint64_t offset,
                               std::uint64_t bytes) const {
  WSYNC_CHECK(offset <= sizes_[tensor] && bytes <= sizes_[tensor] - offset,
              "the range is inside the tensor");
  const GpuPacking::Place& place = places_[tensor];
  return {.memory = allocations_[place.allocation].get(),
          .offset = place.offset + offset,
          .bytes = bytes};
}

template <class Work>
Result<> GpuHold::run(Lane& lane, Work work) {
  const auto enqueue = [&]() -> Result<> {
    if (!lane.stream) {
      auto stream = WSYNC_TRY(device_.create_stream(device::StreamRole::kReload));
      lane.stream = std::move(stream);
    }
    WSYNC_TRY(work(*lane.stream));
    WSYNC_TRY(lane.stream->record(*lane.event));
    return lane.event->wait(now() + kWait);
  };
  auto outcome = enqueue();
  // After a failure the stream may still have work. Its destructor waits for that work.
  if (!outcome) lane.stream.reset();
  return outcome;
}

Result<> GpuHold::write(std::size_t tensor, std::uint64_t offset,
                        std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  return run(loading_, [&](device::Stream& stream) {
    return stream.copy_to_device(region(tensor, offset, bytes.size()), bytes);
  });
}

Result<> GpuHold::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) {
  if (out.empty()) return {};
  return run(loading_, [&](device::Stream& stream) {
    return stream.copy_to_host(out, region(tensor, offset, out.size()));
  });
}

Result<> GpuHold::take(std::span<const Source> sources) {
  std::vector<std::unique_ptr<device::Memory>> borrowed;
  for (const Source& source : sources) {
    if (source.bytes.empty()) continue;
    // Memory is borrowed for writing, but it is only read.
    auto* const address = const_cast<std::byte*>(source.bytes.data());
    auto memory = WSYNC_TRY(device_.borrow({address, source.bytes.size()}));
    borrowed.push_back(std::move(memory));
  }
  if (borrowed.empty()) return {};
  return run(loading_, [&](device::Stream& stream) -> Result<> {
    auto from = borrowed.begin();
    for (const Source& source : sources) {
      if (source.bytes.empty()) continue;
      const std::uint64_t bytes = source.bytes.size();
      WSYNC_TRY(stream.copy_on_device(region(source.tensor, 0, bytes),
                                      {.memory = (from++)->get(), .offset = 0, .bytes = bytes}));
    }
    return {};
  });
}

Result<std::span<const std::byte>> GpuHold::sample(std::span<const Sample> samples) {
  WSYNC_CHECK(samples.size() * kSampleBytes <= samples_.size(), "there is room for the samples");
  if (samples.empty()) return std::span<const std::byte>();
  std::vector<device::Piece> pieces;
  pieces.reserve(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    WSYNC_CHECK(samples[i].bytes <= kSampleBytes, "a sample is a few bytes");
    const device::Region from = region(samples[i].tensor, samples[i].offset, samples[i].bytes);
    pieces.push_back({.to = gathered_.get(),
                      .to_offset = i * kSampleBytes,
                      .from = from.memory,
                      .from_offset = from.offset,
                      .row_bytes = from.bytes});
  }
  const auto out = std::span(samples_).first(samples.size() * kSampleBytes);
  const auto done = run(serving_, [&](device::Stream& stream) -> Result<> {
    WSYNC_TRY(stream.copy_pieces(pieces, {}));
    return stream.copy_to_host(out, {.memory = gathered_.get(), .offset = 0, .bytes = out.size()});
  });
  if (!done) return fail(done.error());
  return std::span<const std::byte>(out);
}

}  // namespace wsync::engine::reference
