// GpuHold: the tensors of one rank in the memory of a GPU, whole tensors in a few allocations.
//
// Thread: write() and read() belong to the thread that loads, sample() to the one that serves.
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

// Where tensors lie in allocations of at most `limit` bytes, in order, each at a multiple of
// kPieceAlignBytes. Pure.
struct GpuPacking {
  struct Place {
    std::uint32_t allocation = 0;
    std::uint64_t offset = 0;
  };
  std::vector<Place> places;               // of each tensor; one without a byte has none
  std::vector<std::uint64_t> allocations;  // bytes of each
  [[nodiscard]] std::uint64_t bytes() const noexcept;
};
// `bytes` of each tensor; all at most `limit`.
[[nodiscard]] GpuPacking pack_tensors(std::span<const std::uint64_t> bytes, std::uint64_t limit);

class GpuHold {
 public:
  // `bytes` of each of `tensors`; `most_samples`: of one call of sample(). Not set to zero.
  // kInvalidInput, naming it, for a tensor that is larger than an allocation can be;
  // kResourceExhausted with what is needed and what is free. `device` is borrowed and outlives the
  // result.
  [[nodiscard]] static Result<std::unique_ptr<GpuHold>> create(
      device::Device& device, std::span<const control::EngineTensor> tensors,
      std::span<const std::uint64_t> bytes, std::size_t max_samples);

  // Addresses on the GPU; empty for a tensor without a byte.
  [[nodiscard]] std::span<std::byte> range(std::size_t tensor) const;
  // Of all its allocations.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // The memory that write() and read() copy fastest with, of this size; the loading thread's.
  static constexpr std::uint64_t kChunkBytes = 4 * limits::kMiB;
  [[nodiscard]] std::span<std::byte> chunk() noexcept { return chunk_; }

  // Both return when the copy is complete. Ranges are inside the tensor. Errors of the device;
  // kDeadline after kWait.
  [[nodiscard]] Result<> write(std::size_t tensor, std::uint64_t offset,
                               std::span<const std::byte> bytes);
  [[nodiscard]] Result<> read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out);

  static constexpr std::uint64_t kSampleBytes = 64;  // at most
  struct Sample {
    std::size_t tensor = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  // 1 to kSampleBytes
  };
  // Bytes of many tensors with one launch: those of sample i begin at i * kSampleBytes. Valid until
  // the next call. Errors as read().
  [[nodiscard]] Result<std::span<const std::byte>> sample(std::span<const Sample> samples);
  static constexpr std::chrono::seconds kWait{10};

 private:
  // A stream with the event behind its newest work.
  struct Lane {
    std::unique_ptr<device::Event> event;
    std::unique_ptr<device::Stream> stream;  // null: the last one failed, or there was none yet
  };
  explicit GpuHold(device::Device& device) : device_(device) {}
  [[nodiscard]] Result<> allocate(const GpuPacking& packing);
  [[nodiscard]] Result<> make_buffers(std::size_t max_samples);
  [[nodiscard]] device::Region region(std::size_t tensor, std::uint64_t offset,
                                      std::uint64_t bytes) const;
  // Enqueues with `work`, and waits until it is complete.
  template <class Work>
  [[nodiscard]] Result<> run(Lane& lane, Work work);

  device::Device& device_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> sizes_;  // of the tensors
  std::vector<GpuPacking::Place> places_;
  std::vector<std::unique_ptr<device::Memory>> allocations_;
  std::unique_ptr<device::Memory> gathered_;  // samples, one behind the other
  std::vector<std::byte> samples_;            // the same on the host
  std::vector<std::byte> chunk_;
  std::vector<std::unique_ptr<device::HostRegistration>> registered_;  // samples_, chunk_
  Lane loading_;
  Lane serving_;
};

}  // namespace wsync::engine::reference
