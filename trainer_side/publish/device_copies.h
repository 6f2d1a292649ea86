// DeviceCopies: copies from the memory of GPUs to host memory. All copies are added first. start()
// then submits them in the order of their addresses on the host, in chunks, and returns. wait()
// returns when given bytes have arrived, so that one chunk is summed while the next ones travel.
//
// Elements that are converted are converted by the GPU, chunk by chunk, before they travel. So an
// F32 that is published as BF16 is half as long on its way.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "trainer_side/publish/trainer_gpus.h"

namespace wsync::publish {

// Thread: wait() may be called from any thread, and several at a time. The other functions belong
// to one thread.
class DeviceCopies {
 public:
  // `target`: keeps the host memory. If a GPU hangs, it is never released: the GPU could still
  // write there. `region`: the mapping that has the memory, which is pinned for the GPUs; may be
  // null.
  DeviceCopies(std::shared_ptr<const void> target, const MappedRegion* region)
      : target_(std::move(target)), region_(region) {}
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;
  ~DeviceCopies() { (void)end(); }

  // Cancels what has not begun, and waits for the rest. Returns whether nothing is written after
  // that: a GPU that hangs or has failed may still write. Nothing else may be called afterwards;
  // the destructor does the same.
  [[nodiscard]] bool end();

  // Where the rows of the bytes go: `rows` rows of `row_bytes` bytes each, `stride` bytes apart.
  struct Rows {
    std::byte* into = nullptr;
    std::uint64_t row_bytes = 0;
    std::uint64_t rows = 1;
    std::uint64_t stride = 0;
  };
  // Adds a copy of the rows, which follow one another in `from`, the first one at `offset`. With a
  // conversion the rows have converted elements, and addresses on both sides are aligned to
  // elements. Checks that all of `from` is still memory of its GPU; errors as TrainerGpus::bytes().
  [[nodiscard]] Result<> add(const DeviceBytes& from, std::uint64_t offset, const Rows& rows,
                             const FloatCast& cast = {});
  [[nodiscard]] bool empty() const noexcept { return queues_.empty(); }
  // Waits for the streams of other code that the bytes name, then submits all copies. The memory on
  // the host must be writable.
  [[nodiscard]] Result<> start();
  // Waits until the copies into these bytes are complete; only after start() has succeeded. The
  // error of the copy, with the GPU's name.
  [[nodiscard]] Result<> wait(std::span<const std::byte> bytes);
  // The same, and returns the sum of the bytes.
  [[nodiscard]] Result<WordSum> wait_and_sum(std::span<const std::byte> bytes,
                                             const SumPlace& place);

 private:
  struct Part {
    std::byte* into = nullptr;
    std::uint64_t bytes = 0;
    device::Memory* memory = nullptr;
    std::uint64_t offset = 0;  // in `memory`
    FloatCast cast;            // `bytes` are those of converted elements
    [[nodiscard]] std::uint64_t offset_of(std::uint64_t at) const noexcept {
      return offset + at / float_bytes(cast.to) * float_bytes(cast.from);
    }
  };
  // Parts of consecutive addresses on the host that one stream copies.
  struct Chunk {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    std::vector<Part> parts;
    std::uint64_t converted_bytes = 0;  // of memory of the GPU for what it converts
    std::optional<Result<>> outcome;    // under mutex_
  };
  // Of one GPU.
  struct Queue {
    std::shared_ptr<TrainerGpus> gpus;
    std::vector<Part> parts;
    std::vector<Chunk> chunks;
    TrainerGpus::Streams streams;
    std::size_t submitted = 0;  // chunks
  };
  static void cut(Queue& queue);
  [[nodiscard]] Result<> submit(Queue& queue);
  [[nodiscard]] static Result<> submit(const Chunk& chunk, TrainerGpus::Lane& lane);
  [[nodiscard]] bool end(std::uint32_t gpu, Queue& queue);

  const std::shared_ptr<const void> target_;
  const MappedRegion* const region_;
  std::vector<std::shared_ptr<device::Memory>> memories_;
  std::map<std::pair<std::uint32_t, std::uintptr_t>, DeviceBytes> foreign_;  // by GPU and stream
  std::map<std::uint32_t, Queue> queues_;                                    // by GPU
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Copies bytes of a GPU to memory of the host, and waits. `target` as for DeviceCopies. Errors as
// there.
[[nodiscard]] Result<> copy_to_host(const DeviceBytes& from, std::span<std::byte> into,
                                    std::shared_ptr<const void> target);

}  // namespace wsync::publish
