#include "inference_side/engine_link/device_patch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "inference_side/engine_link/patch_words.h"
#include "shared/base/format.h"
#include "shared/base/word_sum.h"
#include "shared/weights/patch/format.h"

namespace wsync::engine {
namespace {

static_assert(patch::kBlockBytes / kSumWordBytes * PatchWords::kWordBytesMax <=
                  DevicePatch::kBufferBytes,
              "a buffer holds any block");

// The first of `blocks` that fit into one buffer, whatever their parts hold of them.
std::span<const RankBlock> first_batch(const patch::Layout& layout,
                                       std::span<const RankBlock> blocks) {
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; count < std::min(blocks.size(), DevicePatch::kBatchBlocks); ++count) {
    bytes += PatchWords::words_max(layout, *blocks[count].view) * PatchWords::kWordBytesMax;
    if (bytes > DevicePatch::kBufferBytes) break;
  }
  return blocks.first(count);
}

// Copies values one behind the other, and returns where they begin.
class Writer {
 public:
  Writer(std::span<std::byte> to, std::uint64_t at) : to_(to), at_(at) {}
  template <class T>
  std::uint64_t write(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    std::memcpy(to_.data() + at_, bytes.data(), bytes.size());
    return std::exchange(at_, at_ + bytes.size());
  }

 private:
  std::span<std::byte> to_;
  std::uint64_t at_;
};

// Every block of words begins at a multiple of 8.
std::uint64_t size_of(const BlockWords& words) {
  return (words.values.size() + words.heads.size_bytes() + words.places.size_bytes() + 7) / 8 * 8;
}

}  // namespace

Result<std::unique_ptr<DevicePatch>> DevicePatch::create(device::Device& device) {
  std::unique_ptr<DevicePatch> made(new DevicePatch);
  for (Buffer& buffer : made->buffers_) {
    buffer.host = WSYNC_TRY(
        PrivateMemory::allocate(kBufferBytes, "the words of patches for " + device.name()));
    auto memory = device.allocate(kBufferBytes);
    if (!memory)
      return fail(memory.error().with_context(
          fmt::format("{}: {} bytes for the words of patches", device.name(), kBufferBytes)));
    buffer.memory = std::move(*memory);
    buffer.pinned = WSYNC_TRY(device.register_host(buffer.host.bytes()));
    buffer.done = WSYNC_TRY(device.create_event());
  }
  return made;
}

void DevicePatch::fill(Buffer& buffer, const PatchTargets& targets,
                       std::span<const RankBlock> blocks,
                       std::span<device::Memory* const> destinations, ThreadPool* helpers) const {
  buffer.batch.clear();
  buffer.first_tensor = blocks.front().tensor;
  buffer.sums.assign(std::size_t{2} * (blocks.back().tensor - buffer.first_tensor + 1), SplitSum{});
  std::mutex mutex;  // guards buffer.batch
  std::atomic<std::uint64_t> used = 0;
  std::atomic<std::uint64_t> written = 0;
  std::atomic<std::size_t> next = 0;
  const std::size_t threads = helpers == nullptr ? 1 : helpers->size() + 1;
  for_each_index(helpers, std::min(threads, blocks.size()), [&](std::size_t /*thread*/) {
    PatchWords words(*targets.layout);
    for (std::size_t i = next++; i < blocks.size(); i = next++) {
      const RankBlock& block = blocks[i];
      words.expand(*block.view, targets.parts[block.tensor]);
      written += words.written_bytes();
      std::vector<device::WordBlock> made;
      for (const BlockWords& one : words.blocks()) {
        Writer writer(buffer.host.bytes(), used.fetch_add(size_of(one)));
        device::WordBlock to{.to = destinations[block.tensor],
                             .to_offset = one.to_offset,
                             .to_bytes = one.to_bytes,
                             .from = buffer.memory.get(),
                             .values_offset = writer.write(one.values),
                             .words = one.words,
                             .sum = block.tensor - buffer.first_tensor,
                             .seed = targets.layout->tensor(block.view->place.tensor).seed,
                             .position = one.position};
        if (!one.heads.empty()) to.heads_offset = writer.write(one.heads);
        if (!one.places.empty()) to.places_offset = writer.write(one.places);
        made.push_back(to);
      }
      const std::lock_guard lock(mutex);
      buffer.batch.insert(buffer.batch.end(), made.begin(), made.end());
    }
  });
  buffer.used = used;
  buffer.written = written;
}

Result<> DevicePatch::enqueue(Buffer& buffer, device::Stream& stream) {
  buffer.is_busy = true;
  WSYNC_TRY(
      stream.copy_to_device({.memory = buffer.memory.get(), .offset = 0, .bytes = buffer.used},
                            buffer.host.bytes().first(buffer.used)));
  WSYNC_TRY(stream.change_words(buffer.batch, buffer.sums));
  return stream.record(*buffer.done);
}

Result<> DevicePatch::finish(Buffer& buffer, TimePoint deadline, PatchedSums& sums) {
  if (!std::exchange(buffer.is_busy, false)) return {};
  WSYNC_TRY(buffer.done->wait(deadline));
  for (std::size_t i = 0; i < buffer.sums.size() / 2; ++i) {
    sums.before[buffer.first_tensor + i] += buffer.sums[2 * i];
    sums.after[buffer.first_tensor + i] += buffer.sums[2 * i + 1];
  }
  sums.written_bytes += buffer.written;
  return {};
}

Result<PatchedSums> DevicePatch::apply(device::Stream& stream, const PatchTargets& targets,
                                       std::span<device::Memory* const> destinations,
                                       ThreadPool* helpers, TimePoint deadline) {
  // Those of a patch that has failed: its stream is gone.
  for (Buffer& buffer : buffers_) buffer.is_busy = false;
  PatchedSums sums{.before = std::vector<SplitSum>(targets.parts.size()),
                   .after = std::vector<SplitSum>(targets.parts.size()),
                   .read_before = {},
                   .read_after = {}};
  std::size_t turn = 0;
  for (auto left = targets.blocks; !left.empty(); ++turn) {
    Buffer& buffer = buffers_[turn % buffers_.size()];
    WSYNC_TRY(finish(buffer, deadline, sums));
    const auto batch = first_batch(*targets.layout, left);
    left = left.subspan(batch.size());
    fill(buffer, targets, batch, destinations, helpers);
    // Submitted work cannot be cancelled, and the sidecar gives the load up at its deadline.
    if (now() > deadline)
      return fail(ErrorCode::kDeadline, "the deadline passed while the patch was being written");
    WSYNC_TRY(enqueue(buffer, stream));
  }
  for (Buffer& buffer : buffers_) WSYNC_TRY(finish(buffer, deadline, sums));
  return sums;
}

}  // namespace wsync::engine
