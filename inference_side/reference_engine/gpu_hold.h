// GpuHold: the tensors of one rank in GPU memory. Each of its few allocations holds whole tensors.
//
// Thread: write(), read() and take() belong to the loading thread, sample() to the serving thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/control/messages.h"
#include "shared/device/device.h"

namespace wsync::engine::reference {

// Placement of tensors in allocations of at most `limit` bytes. Tensors stay in order, and each
// begins at a multiple of kPieceAlignBytes. Pure.
struct GpuPacking {
  struct Place {
    std::uint32_t allocation = 0;
    std::uint64_t offset = 0;
  };
  std::vector<Place> places;               // place of each tensor; an empty tensor has no place
  std::vector<std::uint64_t> allocations;  // bytes of each allocation
  [[nodiscard]] std::uint64_t bytes() const noexcept;
};
// `bytes`: size of each tensor, at most `limit`.
[[nodiscard]] GpuPacking pack_tensors(std::span<const std::uint64_t> bytes, std::uint64_t limit);

class GpuHold {
 public:
  // `bytes`: size of each of `tensors`. `max_samples`: the maximum number of samples in one call of
  // sample(). The memory is not zeroed. Returns kInvalidInput, with the name of the tensor, if a
  // tensor is larger than the largest possible allocation; kResourceExhausted, with the required
  // and the free bytes, if memory is short. `device` is borrowed and outlives the result.
  [[nodiscard]] static Result<std::unique_ptr<GpuHold>> create(
      device::Device& device, std::span<const control::EngineTensor> tensors,
      std::span<const std::uint64_t> bytes, std::size_t max_samples);

  // The tensor's address range on the GPU; empty for a tensor of zero bytes.
  [[nodiscard]] std::span<std::byte> range(std::size_t tensor) const;
  // Total size of all allocations.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // Staging memory of this size, with which write() and read() copy fastest. It belongs to the
  // loading thread.
  static constexpr std::uint64_t kChunkBytes = 4 * limits::kMiB;
  [[nodiscard]] std::span<std::byte> chunk() noexcept { return chunk_; }

  // Both calls block until the copy is complete. The range must be inside the tensor. Errors are
  // those of the device; kDeadline after kWait.
  [[nodiscard]] Result<> write(std::size_t tensor, std::uint64_t offset,
                               std::span<const std::byte> bytes);
  [[nodiscard]] Result<> read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out);
  // The bytes of a whole tensor, at another place on the same GPU.
  struct Source {
    std::size_t tensor = 0;
    std::span<const std::byte> bytes;
  };
  // Copies them into the tensors. Blocks until all copies are complete, so the sources may be freed
  // then. Errors as write(), and those of Device::borrow.
  [[nodiscard]] Result<> take(std::span<const Source> sources);

  static constexpr std::uint64_t kSampleBytes = 64;  // maximum size of one sample
  struct Sample {
    std::size_t tensor = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  // 1 to kSampleBytes
  };
  // Copies bytes of many tensors to the host with one kernel launch. The bytes of sample i begin at
  // i * kSampleBytes. The result is valid until the next call. Errors as read().
  [[nodiscard]] Result<std::span<const std::byte>> sample(std::span<const Sample> samples);
  static constexpr std::chrono::seconds kWait{10};

 private:
  // A stream and the event recorded behind its newest work.
  struct Lane {
    std::unique_ptr<device::Event> event;
    std::unique_ptr<device::Stream> stream;  // null before first use and after a failure
  };
  explicit GpuHold(device::Device& device) : device_(device) {}
  [[nodiscard]] Result<> allocate(const GpuPacking& packing);
  [[nodiscard]] Result<> make_buffers(std::size_t max_samples);
  [[nodiscard]] device::Region region(std::size_t tensor, std::uint64_t offset,
                                      std::uint64_t bytes) const;
  // Enqueues operations with `work`, then waits until they are complete.
  template <class Work>
  [[nodiscard]] Result<> run(Lane& lane, Work work);

  device::Device& device_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> sizes_;  // size of each tensor
  std::vector<GpuPacking::Place> places_;
  std::vector<std::unique_ptr<device::Memory>> allocations_;
  std::unique_ptr<device::Memory> gathered_;  // packed samples on the GPU
  std::vector<std::byte> samples_;            // packed samples on the host
  std::vector<std::byte> chunk_;
  // Pinned: samples_ and chunk_.
  std::vector<std::unique_ptr<device::HostRegistration>> registered_;
  Lane loading_;
  Lane serving_;
};

}  // namespace wsync::engine::reference
