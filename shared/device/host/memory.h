// Memory of a host device: a sealed memfd (own allocation), a read-only mapping of one (import), or
// a borrowed host range (alias).
#pragma once

#include <memory>
#include <span>

#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"
#include "shared/device/device.h"

namespace wsync::device::host {

class HostMemory final : public Memory {
 public:
  // Allocates new memory and touches every page. The memory is sealed: its size is fixed, and no
  // other process can map it for writing.
  [[nodiscard]] static Result<std::unique_ptr<HostMemory>> allocate(DeviceKind kind,
                                                                    std::uint64_t bytes);
  // Maps an exported handle read-only, after checking kind, size and seals.
  [[nodiscard]] static Result<std::unique_ptr<HostMemory>> import(DeviceKind kind,
                                                                  MemoryHandle handle);
  // Borrows a host range.
  [[nodiscard]] static std::unique_ptr<HostMemory> alias(DeviceKind kind,
                                                         std::span<const std::byte> range);
  // Like alias(), but writable.
  [[nodiscard]] static std::unique_ptr<HostMemory> borrow(DeviceKind kind,
                                                          std::span<std::byte> range);
  [[nodiscard]] std::byte* address() const noexcept override { return address_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] bool writable() const noexcept override {
    return origin_ == Origin::kOwn || origin_ == Origin::kBorrowed;
  }
  [[nodiscard]] std::span<const std::byte> host_view() const noexcept override {
    return {address_, bytes_};
  }
  [[nodiscard]] Result<MemoryHandle> export_handle() const override;

 private:
  enum class Origin : std::uint8_t { kOwn, kImported, kAliased, kBorrowed };
  HostMemory(DeviceKind kind, Origin origin, MappedRegion region, UniqueFd fd)
      : kind_(kind),
        origin_(origin),
        address_(region.bytes().data()),
        bytes_(region.bytes().size()),
        region_(std::move(region)),
        fd_(std::move(fd)) {}
  HostMemory(DeviceKind kind, Origin origin, std::byte* address, std::uint64_t bytes)
      : kind_(kind), origin_(origin), address_(address), bytes_(bytes) {}

  DeviceKind kind_;
  Origin origin_;
  std::byte* address_;
  std::uint64_t bytes_;
  MappedRegion region_;  // empty for alias() and borrow()
  UniqueFd fd_;
};

}  // namespace wsync::device::host
