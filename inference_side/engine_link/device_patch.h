// DevicePatch: writes the blocks of a patch into weights on a GPU. The host turns them into words
// (patch_words.h), several threads at once, in one of two buffers, while the GPU copies the words
// of the other one and changes its weights by them. So a patch needs no more memory than these
// buffers, however large it is: 2 * kBufferBytes of pinned host memory and as much of the GPU's.
//
// Thread: confined to one thread, but for the threads of its pool.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "inference_side/engine_link/patched_sums.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/private_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/device/device.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/tensor_part.h"

namespace wsync::engine {

// A block that lies in a part of one of the rank's tensors, at least partly.
struct RankBlock {
  std::uint32_t tensor = 0;  // of the rank
  const patch::BlockView* view = nullptr;
};

// What is written where. Borrowed for the call that it is given to.
struct PatchTargets {
  const patch::Layout* layout = nullptr;
  std::span<const patch::TensorPart> parts;  // of each of the rank's tensors
  std::span<const RankBlock> blocks;         // in ascending order of their tensors
};

class DevicePatch {
 public:
  // Allocates and pins the buffers. kResourceExhausted, with the device, if there is not enough
  // memory. The device is borrowed and must outlive the result.
  [[nodiscard]] static Result<std::unique_ptr<DevicePatch>> create(device::Device& device);

  // Writes what lies in the rank's parts. `destinations`: the memory of each part, null for one
  // without a byte. When it returns a value, all work is complete. After an error, `stream` may
  // still have work that uses the buffers and the sums, so it has to be destroyed: kDeadline if the
  // deadline passes, otherwise that of the stream. Some blocks may be written then.
  [[nodiscard]] Result<PatchedSums> apply(device::Stream& stream, const PatchTargets& targets,
                                          std::span<device::Memory* const> destinations,
                                          ThreadPool* helpers, TimePoint deadline);

  static constexpr std::uint64_t kBufferBytes = std::uint64_t{8} << 20U;
  // Blocks of a patch that one launch changes, at most.
  static constexpr std::size_t kBatchBlocks = 4096;

 private:
  DevicePatch() = default;
  // One of the two buffers, and the batch that is in it.
  struct Buffer {
    PrivateMemory host;
    std::unique_ptr<device::HostRegistration> pinned;  // of `host`
    std::unique_ptr<device::Memory> memory;
    std::unique_ptr<device::Event> done;
    bool is_busy = false;
    std::uint32_t first_tensor = 0;
    std::vector<device::WordBlock> batch;
    std::vector<SplitSum> sums;  // two for each tensor from first_tensor on
    std::uint64_t used = 0;
    std::uint64_t written = 0;  // bytes of values
  };
  // Puts the words of these blocks into the buffer.
  void fill(Buffer& buffer, const PatchTargets& targets, std::span<const RankBlock> blocks,
            std::span<device::Memory* const> destinations, ThreadPool* helpers) const;
  [[nodiscard]] static Result<> enqueue(Buffer& buffer, device::Stream& stream);
  // Waits until the batch of the buffer is complete, and adds its sums.
  [[nodiscard]] static Result<> finish(Buffer& buffer, TimePoint deadline, PatchedSums& sums);

  std::array<Buffer, 2> buffers_;
};

}  // namespace wsync::engine
