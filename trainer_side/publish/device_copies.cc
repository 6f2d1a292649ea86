#include "trainer_side/publish/device_copies.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"

namespace wsync::publish {
namespace {

// Large enough that the time between two copies of a stream does not count. The last chunks are
// smaller, so that the sum of the last one takes little longer than the copies.
constexpr std::uint64_t kChunkBytes = std::uint64_t{16} << 20U;
constexpr std::uint64_t kLastChunkBytes = std::uint64_t{4} << 20U;
constexpr std::size_t kChunkParts = 4096;
// What is converted is put at multiples of this, so that the GPU writes 16 bytes at a time.
constexpr std::uint64_t kConvertedAlignment = 16;

constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kConvertedAlignment - 1) / kConvertedAlignment * kConvertedAlignment;
}

// The size of the next chunk when so many bytes are left.
std::uint64_t chunk_bytes(std::uint64_t left) {
  const std::uint64_t share = (left / 4 + limits::kLeafBytes - 1) / limits::kLeafBytes;
  return std::clamp(share * limits::kLeafBytes, kLastChunkBytes, kChunkBytes);
}

void keep_for_ever(std::shared_ptr<const void> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;  // never destroyed
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

Result<> DeviceCopies::add(const DeviceBytes& from, std::uint64_t offset, const Rows& rows,
                           const FloatCast& cast) {
  const std::uint64_t bytes = rows.row_bytes * rows.rows;
  const std::uint64_t read = bytes / float_bytes(cast.to) * float_bytes(cast.from);
  WSYNC_CHECK(offset <= from.range.size() && read <= from.range.size() - offset,
              "a copy lies inside the bytes of a GPU");
  if (bytes == 0) return {};
  auto memory = from.memory;
  if (!planted("freed_gpu_memory_copied")) memory = WSYNC_TRY(from.gpus->memory(from));
  Queue& queue = queues_[from.gpu];
  queue.gpus = from.gpus;
  if (rows.rows == 1 || rows.stride == rows.row_bytes) {
    queue.parts.push_back({.into = rows.into,
                           .bytes = bytes,
                           .memory = memory.get(),
                           .offset = offset,
                           .cast = cast});
  } else {
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      queue.parts.push_back({.into = rows.into + row * rows.stride,
                             .bytes = rows.row_bytes,
                             .memory = memory.get(),
                             .offset = offset + row * (read / rows.rows),
                             .cast = cast});
  }
  memories_.push_back(std::move(memory));
  if (from.stream != 0) foreign_.try_emplace({from.gpu, from.stream}, from);
  return {};
}

void DeviceCopies::cut(Queue& queue) {
  std::ranges::sort(queue.parts, {}, &Part::into);
  std::uint64_t left = 0;
  for (const Part& part : queue.parts) left += part.bytes;
  std::uint64_t limit = 0;  // of the last chunk
  for (const Part& part : queue.parts)
    for (std::uint64_t at = 0; at < part.bytes;) {
      // Between the parts of a chunk there may be bytes of others, which are counted too.
      const auto distance = [&] {
        return static_cast<std::uint64_t>(part.into + at - queue.chunks.back().begin);
      };
      const std::uint64_t element = part.cast.is_none() ? 1 : float_bytes(part.cast.to);
      if (queue.chunks.empty() || queue.chunks.back().parts.size() == kChunkParts ||
          distance() + element > limit) {
        queue.chunks.push_back({.begin = part.into + at,
                                .end = nullptr,
                                .parts = {},
                                .converted_bytes = 0,
                                .outcome = {}});
        limit = chunk_bytes(left);
      }
      Chunk& chunk = queue.chunks.back();
      const std::uint64_t room = (limit - distance()) / element * element;
      const std::uint64_t bytes = std::min(part.bytes - at, room);
      chunk.parts.push_back({.into = part.into + at,
                             .bytes = bytes,
                             .memory = part.memory,
                             .offset = part.offset_of(at),
                             .cast = part.cast});
      if (!part.cast.is_none()) chunk.converted_bytes += aligned(bytes);
      chunk.end = part.into + at + bytes;
      at += bytes;
      left -= bytes;
    }
  queue.parts.clear();
}

Result<> DeviceCopies::start() {
  for (const auto& [stream, bytes] : foreign_)
    if (!planted("gpu_stream_not_awaited")) WSYNC_TRY(bytes.gpus->await_stream(bytes));
  for (auto& [gpu, queue] : queues_) {
    queue.streams = WSYNC_TRY(queue.gpus->take_streams(gpu));
    cut(queue);
    std::uint64_t converted = 0;
    for (const Chunk& chunk : queue.chunks) converted = std::max(converted, chunk.converted_bytes);
    for (TrainerGpus::Lane& lane : queue.streams)
      if (converted > 0)
        WSYNC_TRY(queue.gpus->prepare_to_convert(
            gpu, lane, std::max(converted, kChunkBytes + kChunkParts * kConvertedAlignment)));
    if (region_ != nullptr) queue.gpus->pin(*region_, gpu);
  }
  for (auto& [gpu, queue] : queues_) WSYNC_TRY(submit(queue));
  return {};
}

// In the order of a stream: a lane's memory is overwritten when it has been copied.
Result<> DeviceCopies::submit(const Chunk& chunk, TrainerGpus::Lane& lane) {
  std::vector<device::Piece> pieces;
  std::uint64_t end = 0;
  const auto add = [&](const Part& part) {
    pieces.push_back({.to = lane.converted.get(),
                      .to_offset = end,
                      .from = part.memory,
                      .from_offset = part.offset,
                      .row_bytes = part.offset_of(part.bytes) - part.offset,
                      .cast = part.cast});
    end += aligned(part.bytes);
  };
  for (const Part& part : chunk.parts)
    if (!part.cast.is_none()) add(part);
  if (!pieces.empty()) WSYNC_TRY(lane.stream->copy_pieces(pieces, {}));
  std::size_t next = 0;
  for (const Part& part : chunk.parts) {
    device::Region from{.memory = part.memory, .offset = part.offset, .bytes = part.bytes};
    if (!part.cast.is_none()) {
      from.memory = lane.converted.get();
      from.offset = pieces[next++].to_offset;
    }
    WSYNC_TRY(lane.stream->copy_to_host({part.into, part.bytes}, from));
  }
  return {};
}

Result<> DeviceCopies::submit(Queue& queue) {
  while (queue.submitted < queue.chunks.size()) {
    Chunk& chunk = queue.chunks[queue.submitted];
    TrainerGpus::Lane& lane = queue.streams[queue.submitted % queue.streams.size()];
    WSYNC_TRY(submit(chunk, lane));
    WSYNC_TRY(lane.stream->notify([this, &chunk](const Result<>& outcome) {
      const std::lock_guard lock(mutex_);
      chunk.outcome = outcome;
      changed_.notify_all();
    }));
    ++queue.submitted;
  }
  return {};
}

Result<> DeviceCopies::wait(std::span<const std::byte> bytes) {
  const std::byte* const end = bytes.data() + bytes.size();
  std::unique_lock lock(mutex_);
  for (auto& [gpu, queue] : queues_) {
    auto chunk = std::ranges::upper_bound(queue.chunks, bytes.data(), {}, &Chunk::end);
    for (; chunk != queue.chunks.end() && chunk->begin < end; ++chunk) {
      changed_.wait(lock, [&] { return chunk->outcome.has_value(); });
      WSYNC_TRY(*chunk->outcome);
    }
  }
  return {};
}

Result<WordSum> DeviceCopies::wait_and_sum(std::span<const std::byte> bytes,
                                           const SumPlace& place) {
  if (planted("gpu_bytes_summed_early")) {
    const WordSum early = word_sum(bytes, place);
    WSYNC_TRY(wait(bytes));
    return early;
  }
  WSYNC_TRY(wait(bytes));
  return word_sum(bytes, place);
}

bool DeviceCopies::end() {
  bool is_over = true;
  for (auto& [gpu, queue] : queues_) is_over &= end(gpu, queue);
  queues_.clear();
  return is_over;
}

bool DeviceCopies::end(std::uint32_t gpu, Queue& queue) {
  if (!queue.streams[0].stream) return true;
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    if (queue.submitted == queue.chunks.size() &&
        std::ranges::all_of(queue.chunks, [](const Chunk& chunk) {
          return chunk.outcome && chunk.outcome->has_value();
        })) {
      queue.gpus->give_back(gpu, std::move(queue.streams));
      return true;
    }
    for (const Chunk& chunk : queue.chunks)
      if (chunk.outcome && !*chunk.outcome && !failure) failure = chunk.outcome->error();
  }
  // Destroying a stream cancels what has not begun and waits for the rest, but not without end.
  for (TrainerGpus::Lane& lane : queue.streams) lane.stream.reset();
  if (queue.gpus->is_usable(gpu, failure)) return true;
  // A GPU that hangs or has failed may still write. So nothing else may come into this memory, and
  // the process must be restarted anyway.
  keep_for_ever(target_);
  return false;
}

Result<> copy_to_host(const DeviceBytes& from, std::span<std::byte> into,
                      std::shared_ptr<const void> target) {
  DeviceCopies copies(std::move(target), nullptr);
  WSYNC_TRY(
      copies.add(from, 0, {.into = into.data(), .row_bytes = into.size(), .rows = 1, .stride = 0}));
  WSYNC_TRY(copies.start());
  return copies.wait(into);
}

}  // namespace wsync::publish
