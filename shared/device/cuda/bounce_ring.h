// BounceRing: copies from and to host memory that cannot be pinned. The driver does it with one
// thread and a small buffer: an H200 gets 8 of its 55 GB/s. Here several threads copy into pinned
// buffers while the GPU reads those that are full: 23 GB/s with four threads on the same machine,
// where the threads are the limit.
//
// Thread: any; copies through one ring take turns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <utility>

#include "shared/base/thread_pool.h"
#include "shared/device/cuda/context.h"

namespace wsync::device::cuda {

class BounceRing {
 public:
  // kResourceExhausted if the buffers cannot be allocated. They take 2 * kTogether * kSlotBytes.
  [[nodiscard]] static Result<std::unique_ptr<BounceRing>> make(
      const std::shared_ptr<const Context>& context);

  // Enqueues the copy on `stream`. When it returns, `source` has been read. kCancelled when `stop`
  // is requested. A GPU that does not complete a copy within `limit` is abandoned: kDeadline.
  [[nodiscard]] Result<> copy(CUdeviceptr to, std::span<const std::byte> source, CUstream stream,
                              std::chrono::nanoseconds limit, const std::stop_token& stop);

  // The other direction. When it returns, `to` has the bytes. `from` is of the GPU of the stream.
  [[nodiscard]] Result<> copy_back(std::span<std::byte> to, CUdeviceptr from, CUstream stream,
                                   std::chrono::nanoseconds limit, const std::stop_token& stop);

  static constexpr std::size_t kSlotBytes = std::size_t{16} << 20U;
  // Slots that are filled at the same time, each by a thread. As many again are read by the GPU.
  static constexpr std::size_t kTogether = 4;

 private:
  struct Slot {
    std::byte* at = nullptr;
    OwnedEvent done;  // the GPU has read it, or has written it
  };
  explicit BounceRing(std::shared_ptr<const Context> context);
  [[nodiscard]] Result<> pass(Slot& slot, CUdeviceptr to, std::span<const std::byte> part,
                              CUstream stream, std::chrono::nanoseconds limit,
                              const std::stop_token& stop);
  // Bytes that the slots of a half take at the same time, in shares.
  struct Batch {
    std::size_t begin = 0;
    std::size_t bytes = 0;
    std::size_t half = 0;
    [[nodiscard]] std::pair<std::size_t, std::size_t> share(std::size_t slot) const;
  };
  [[nodiscard]] Result<> fill(const Batch& batch, CUdeviceptr from, CUstream stream,
                              std::chrono::nanoseconds limit, const std::stop_token& stop);
  [[nodiscard]] Result<> empty(const Batch& batch, std::span<std::byte> to,
                               std::chrono::nanoseconds limit, const std::stop_token& stop);
  [[nodiscard]] Result<> until_done(const Slot& slot, std::chrono::nanoseconds limit,
                                    const std::stop_token& stop) const;

  std::shared_ptr<const Context> context_;
  OwnedPinned memory_;
  std::array<Slot, 2 * kTogether> slots_;
  std::mutex copying_;
  std::size_t next_ = 0;  // under copying_: the half that is filled next
  ThreadPool helpers_;    // in addition to the caller
};

}  // namespace wsync::device::cuda
