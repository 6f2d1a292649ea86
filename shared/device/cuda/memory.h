// GPU memory of three kinds: an own allocation that other processes can import, an imported one, or
// a range that other code of this process allocated.
//
// Within the process that made it, a handle resolves to the allocation itself, which lives until
// its importers are gone. Other processes map the memory a second time, for reading only. It exists
// until the last process has unmapped it (README.md, "Memory of several processes").
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "shared/device/cuda/allocation_description.h"
#include "shared/device/cuda/context.h"
#include "shared/device/cuda/mapped_memory.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {

// An own allocation. Thread: any.
class Allocation {
 public:
  // kInvalidInput unless `bytes` is 1 to limits::kBucketBytesMax; kResourceExhausted, with the free
  // memory, if it does not fit.
  [[nodiscard]] static Result<std::shared_ptr<Allocation>> make(std::shared_ptr<const Gpu> gpu,
                                                                std::uint64_t bytes);
  // Returns this process's allocation with this number, or null if it was freed.
  [[nodiscard]] static std::shared_ptr<Allocation> find(std::uint64_t id);

  [[nodiscard]] const Gpu& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] CUdeviceptr address() const noexcept { return memory_.address(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  // Returns the handle with which other processes, and this one, import the memory.
  [[nodiscard]] Result<MemoryHandle> export_handle() const;

 private:
  Allocation(std::shared_ptr<const Gpu> gpu, MappedMemory memory, std::uint64_t bytes,
             std::uint64_t id)
      : gpu_(std::move(gpu)), memory_(std::move(memory)), bytes_(bytes), id_(id) {}
  std::shared_ptr<const Gpu> gpu_;
  MappedMemory memory_;
  std::uint64_t bytes_;
  std::uint64_t id_;  // counted from 1 in this process
};

class CudaMemory final : public Memory {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> allocate(
      const std::shared_ptr<const Gpu>& gpu, std::uint64_t bytes);
  // kInvalidInput for bytes that are not a handle, for a handle of another kind, size or GPU, and
  // for one without a descriptor of GPU memory; kPeerLost if this process has freed the memory;
  // otherwise the driver's error.
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> import(
      const std::shared_ptr<const Gpu>& gpu, const MemoryHandle& handle);
  // kInvalidInput unless the whole range lies inside one allocation of this GPU. Memory that was
  // mapped piece by piece (cuMemMap, the "expandable segments" of frameworks) counts as one
  // allocation.
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> borrow(
      const std::shared_ptr<const Gpu>& gpu, std::span<std::byte> range);

  [[nodiscard]] std::byte* address() const noexcept override {
    return reinterpret_cast<std::byte*>(address_);
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] bool writable() const noexcept override { return origin_ != Origin::kImported; }
  [[nodiscard]] std::span<const std::byte> host_view() const noexcept override { return {}; }
  [[nodiscard]] Result<MemoryHandle> export_handle() const override;

  [[nodiscard]] const Gpu& gpu() const noexcept { return *gpu_; }

 private:
  enum class Origin : std::uint8_t { kOwn, kImported, kBorrowed };
  CudaMemory(std::shared_ptr<const Gpu> gpu, Origin origin, CUdeviceptr address,
             std::uint64_t bytes)
      : gpu_(std::move(gpu)), origin_(origin), address_(address), bytes_(bytes) {}
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> open(
      const std::shared_ptr<const Gpu>& gpu, const AllocationDescription& said, int fd);

  std::shared_ptr<const Gpu> gpu_;
  Origin origin_;
  CUdeviceptr address_;
  std::uint64_t bytes_;
  std::shared_ptr<Allocation> allocation_;  // allocated by this process
  MappedMemory mapping_;                    // of another process's memory
};

}  // namespace wsync::device::cuda
