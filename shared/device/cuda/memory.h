// GPU memory of three kinds: an own allocation that other processes can import, an imported one, or
// a range that other code of this process allocated.
//
// Only another process can import memory, because CUDA cannot open a handle in the process that
// made it. Within the same process, a handle therefore resolves to the allocation itself, which
// lives until its importers are gone. Across processes CUDA gives no such guarantee: the exporter
// may free memory only after the importers have closed it (README.md, "IPC").
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "shared/device/cuda/context.h"
#include "shared/device/cuda/ipc_handle.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {

// The driver may place small allocations in a larger block, and IPC then shares the whole block
// (CUDA programming guide, "Interprocess Communication"). Memory in whole multiples of this size is
// shared alone, and its handle refers to its first byte.
inline constexpr std::uint64_t kSharedGranuleBytes = std::uint64_t{2} << 20U;

// An own allocation, and the event that orders importers after new bytes. Thread: any.
class Allocation {
 public:
  // kInvalidInput unless `bytes` is 1 to limits::kBucketBytesMax; kResourceExhausted, with the free
  // memory, if it does not fit.
  [[nodiscard]] static Result<std::shared_ptr<Allocation>> make(std::shared_ptr<const Gpu> gpu,
                                                                std::uint64_t bytes);
  // Returns this process's allocation with this number, or null if it was freed.
  [[nodiscard]] static std::shared_ptr<Allocation> find(std::uint64_t id);

  [[nodiscard]] const Gpu& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] CUdeviceptr address() const noexcept { return memory_.get(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  // Returns the interprocess event (without timing), which the first call makes. kRefused on a GPU
  // that cannot share memory between processes.
  [[nodiscard]] Result<CUevent> published();

 private:
  Allocation(std::shared_ptr<const Gpu> gpu, OwnedMemory memory, std::uint64_t bytes,
             std::uint64_t id)
      : gpu_(std::move(gpu)), memory_(std::move(memory)), bytes_(bytes), id_(id) {}
  std::shared_ptr<const Gpu> gpu_;
  OwnedMemory memory_;
  std::uint64_t bytes_;
  std::uint64_t id_;  // counted from 1 in this process
  std::mutex mutex_;
  OwnedEvent published_;
};

class CudaMemory final : public Memory {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> allocate(
      const std::shared_ptr<const Gpu>& gpu, std::uint64_t bytes);
  // kInvalidInput for bytes that are not a handle, or for a handle of another kind, size or GPU;
  // kPeerLost if the memory no longer exists; otherwise the driver's error.
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
  [[nodiscard]] bool own() const noexcept { return origin_ == Origin::kOwn; }
  // Returns the event that publish() records and acquire() waits for. It lives as long as this
  // memory. kInvalidInput for a borrowed range, which has no event.
  [[nodiscard]] Result<CUevent> published() const;

 private:
  enum class Origin : std::uint8_t { kOwn, kImported, kBorrowed };
  CudaMemory(std::shared_ptr<const Gpu> gpu, Origin origin, CUdeviceptr address,
             std::uint64_t bytes)
      : gpu_(std::move(gpu)), origin_(origin), address_(address), bytes_(bytes) {}
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> open(
      const std::shared_ptr<const Gpu>& gpu, const IpcHandle& handle);

  std::shared_ptr<const Gpu> gpu_;
  Origin origin_;
  CUdeviceptr address_;
  std::uint64_t bytes_;
  std::shared_ptr<Allocation> allocation_;  // allocated by this process
  OwnedMapping mapping_;                    // of another process
  OwnedEvent event_;                        // of the other process, opened here
};

}  // namespace wsync::device::cuda
