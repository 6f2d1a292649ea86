// What the pipeline works with on its devices: buffers, streams and communicators.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "inference_side/reload/buffer_state.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/collective/communicator.h"
#include "shared/device/device.h"

namespace wsync::reload {

inline constexpr auto kIpcSlots = static_cast<std::uint32_t>(limits::kIpcBufferCount);

// Devices of one kind. Separate devices and GPUs: one H2D buffer and two IPC buffers on each, kept
// for the life of the group, so that engines map them once. Unified devices: no buffer at all.
// Thread: the pipeline's driver; ipc_handle() from any thread.
class DeviceGroup {
 public:
  // kInvalidInput for no device, too many, or devices of several kinds; kResourceExhausted when
  // three buffers of `buffer_bytes` do not fit into limits::kDeviceMemoryPercent of the smallest
  // free memory.
  [[nodiscard]] static Result<std::unique_ptr<DeviceGroup>> create(
      std::vector<std::unique_ptr<device::Device>> devices, std::uint64_t buffer_bytes);

  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(members_.size());
  }
  [[nodiscard]] device::DeviceKind kind() const noexcept { return members_[0].device->kind(); }
  [[nodiscard]] bool unified() const noexcept { return kind() == device::DeviceKind::kUnified; }
  [[nodiscard]] std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
  [[nodiscard]] device::Device& device(DeviceIndex device) const { return *at(device).device; }

  // A handle to one IPC buffer, for an engine on that device. kRefused on unified devices.
  [[nodiscard]] Result<device::MemoryHandle> ipc_handle(DeviceIndex device, SlotIndex slot) const;

  // Makes streams and communicators, unless they are there: before each run.
  [[nodiscard]] Result<> connect(TimePoint deadline);
  // Ends everything that runs and takes streams and communicators down. When it returns nothing
  // reads or writes the buffers any more, engines aside, and every callback has been called.
  void break_up(const Error& reason);
  // The first error of a stream or communicator that may not have reached a callback.
  [[nodiscard]] Result<> health() const;

  // Copies into the device's H2D buffer; `done` as Stream::notify.
  [[nodiscard]] Result<> copy_in(DeviceIndex device, std::span<const std::byte> bytes,
                                 device::StreamCallback done);
  // One device's part of a broadcast from the source's H2D buffer into its own IPC buffer.
  struct Share {
    DeviceIndex device{};
    DeviceIndex source{};
    SlotIndex slot{};
    std::uint64_t bytes = 0;
    TimePoint deadline{};
  };
  [[nodiscard]] Result<> broadcast(const Share& share, device::StreamCallback done);

 private:
  // Streams are destroyed before what their work uses.
  struct Member {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<device::Memory> h2d;
    std::array<std::unique_ptr<device::Memory>, kIpcSlots> ipc;
    std::unique_ptr<collective::Communicator> communicator;
    std::unique_ptr<device::Stream> h2d_stream;
    std::unique_ptr<device::Stream> broadcast_stream;
  };
  DeviceGroup(std::vector<Member> members, std::uint64_t buffer_bytes)
      : members_(std::move(members)), buffer_bytes_(buffer_bytes) {}
  [[nodiscard]] Result<> connect_members(TimePoint deadline);
  [[nodiscard]] const Member& at(DeviceIndex device) const;

  std::vector<Member> members_;
  std::uint64_t buffer_bytes_;
};

}  // namespace wsync::reload
