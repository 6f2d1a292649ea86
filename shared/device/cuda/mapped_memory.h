// Memory of a GPU that cuMemCreate has made, here or in another process, and its mapping in this
// process. Other processes get a file descriptor of it. The kernel counts who refers to the memory:
// it is freed when the last handle, mapping and descriptor of any process is gone, also by the end
// of a process.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/device/cuda/context.h"

namespace wsync::device::cuda {

// Sole owner of a reserved range of addresses and of what is mapped there. cuMemUnmap does not wait
// for running work, so the work that uses the range must be complete before this is destroyed.
// Thread: any.
class MappedRange {
 public:
  MappedRange() noexcept = default;
  // Maps `handle`, of which `bytes` bytes are mapped, and gives access to `gpu` alone
  // (CU_MEM_ACCESS_FLAGS_PROT_READ) or to it and its peers (CU_MEM_ACCESS_FLAGS_PROT_READWRITE).
  [[nodiscard]] static Result<MappedRange> map(const Gpu& gpu, CUmemGenericAllocationHandle handle,
                                               std::uint64_t bytes, CUmemAccess_flags flags);
  MappedRange(MappedRange&& other) noexcept { *this = std::move(other); }
  MappedRange& operator=(MappedRange&& other) noexcept {
    if (this == &other) return *this;
    reset();
    context_ = std::move(other.context_);
    address_ = std::exchange(other.address_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_ = std::exchange(other.mapped_, false);
    return *this;
  }
  ~MappedRange() { reset(); }

  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }

 private:
  void reset() noexcept;

  std::shared_ptr<const Context> context_;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
  bool mapped_ = false;
};

// Thread: any.
class MappedMemory {
 public:
  MappedMemory() noexcept = default;
  // Makes `bytes` bytes, whole blocks (kGpuBlockBytes), that this GPU and its peers read and write.
  // kResourceExhausted if there is not enough memory.
  [[nodiscard]] static Result<MappedMemory> make(const Gpu& gpu, std::uint64_t bytes);
  // Maps memory of another process for reading. `fd` is borrowed. kInvalidInput if it is not a
  // descriptor of so much GPU memory.
  [[nodiscard]] static Result<MappedMemory> import(const Gpu& gpu, int fd, std::uint64_t bytes);

  [[nodiscard]] CUdeviceptr address() const noexcept { return range_.address(); }
  // Returns a new descriptor of own memory, close-on-exec.
  [[nodiscard]] Result<UniqueFd> descriptor() const;

 private:
  MappedMemory(std::shared_ptr<const Context> context, OwnedHandle handle, MappedRange range)
      : context_(std::move(context)), handle_(std::move(handle)), range_(std::move(range)) {}

  std::shared_ptr<const Context> context_;
  OwnedHandle handle_;  // own memory only; a mapping needs no handle
  MappedRange range_;   // unmapped before the handle is released
};

// kRefused if the GPU cannot share memory by descriptors, or allocates in other blocks than
// kGpuBlockBytes.
[[nodiscard]] Result<> check_shares_memory(const Driver& cuda, CUdevice device);

}  // namespace wsync::device::cuda
