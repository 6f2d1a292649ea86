// The buffers, streams and communicators that the pipeline uses on its devices.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference_side/reload/buffer_rule.h"
#include "inference_side/reload/buffer_state.h"
#include "inference_side/reload/needed_bytes.h"
#include "shared/base/error.h"
#include "shared/base/ipc_buffers.h"
#include "shared/broadcast/communicator.h"
#include "shared/device/device.h"

namespace wsync::reload {

inline constexpr auto kIpcSlots = static_cast<std::uint32_t>(limits::kIpcBufferCount);

struct DeviceGroupOptions {
  // All of one kind; the position is the device index.
  std::vector<std::unique_ptr<device::Device>> devices;
  std::uint64_t buffer_bytes = 0;  // 0: chosen by choose_buffer_bytes()
  bool keep_buffers = true;        // false: no buffers until hold_buffers()
  // Chosen automatically if std::nullopt.
  std::optional<collective::GroupKind> collective = std::nullopt;
};

// A GPU of the group, or the host memory that its host devices share, and how much of it the
// buffers use.
struct DeviceRoom {
  std::string name;           // "GPU 0 (NVIDIA H200)", "host memory"
  std::string uuid;           // GPU only
  std::uint32_t devices = 0;  // devices of the group in this memory
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // now
  std::uint64_t peak_bytes = 0;  // all buffers in it, while they exist
  // GPUs: memory that the group uses in addition to the buffers. The sum of all three is never
  // exceeded.
  std::uint64_t streams_bytes = 0;  // tables and communicators
  bool streams_measured =
      false;  // measured when they were made; otherwise the estimate of streams_take()
  std::uint64_t context_bytes = 0;  // upper limit
};

// Devices of one kind. Separate devices and GPUs have one H2D buffer and two IPC buffers each; a
// device that is alone has the two IPC buffers. The
// buffers either exist as long as the group, so that engines map them once, or are allocated for
// each load. Unified devices have no buffers.
//
// Thread: the driver of the pipeline. ipc_handle(), rooms() and the functions that describe the
// group may be called from any thread. hold_buffers(), free_buffers() and connect() may run at the
// same time as these only.
//
// This class has more than 25 methods, because it also describes the group for plans, metrics and
// refusals.
class DeviceGroup {
 public:
  // Returns kInvalidInput for no device, too many devices, or devices of several kinds;
  // kResourceExhausted as choose_buffer_bytes(); kRefused if NCCL is requested but is not
  // installed, or if NCCL is requested and the devices are not distinct GPUs.
  [[nodiscard]] static Result<std::unique_ptr<DeviceGroup>> create(DeviceGroupOptions options);

  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(members_.size());
  }
  [[nodiscard]] DeviceKind kind() const noexcept { return members_[0].device->kind(); }
  [[nodiscard]] bool unified() const noexcept { return kind() == DeviceKind::kUnified; }
  // One device that has buffers. Nothing is broadcast, and it has no H2D buffer.
  [[nodiscard]] bool alone() const noexcept { return size() == 1 && !unified(); }
  [[nodiscard]] std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
  [[nodiscard]] bool keeps_buffers() const noexcept { return keep_buffers_; }
  // How broadcasts are executed, and why NCCL was not chosen.
  [[nodiscard]] const collective::FittingGroup& collective() const noexcept { return collective_; }
  [[nodiscard]] device::Device& device(DeviceIndex device) const { return *at(device).device; }
  // Each memory once, in the order of the devices.
  [[nodiscard]] Result<std::vector<DeviceRoom>> rooms() const;

  // Allocates the buffers if they do not exist. Returns kResourceExhausted, with the device and its
  // free bytes, before anything is allocated on a GPU that has too little memory. After an error no
  // buffer exists.
  [[nodiscard]] Result<> hold_buffers();
  // Frees the buffers. The caller must know that no operation of this process is running. An engine
  // that still has a buffer mapped keeps its memory, which is free only when the engine unmaps it.
  void free_buffers();
  [[nodiscard]] bool holds_buffers() const noexcept { return holds_buffers_; }

  // A handle to one IPC buffer, for an engine on that device. Returns kRefused on unified devices,
  // and if there are no buffers.
  [[nodiscard]] Result<device::MemoryHandle> ipc_handle(DeviceIndex device, SlotIndex slot) const;

  // Creates streams and communicators if they do not exist; called before each run. GPUs that have
  // their buffers then broadcast some bytes, once from each GPU, and the memory that all this needs
  // is measured. Returns kResourceExhausted if this memory and the buffers do not fit together into
  // the memory that choose_buffer_bytes() found. After this error no stream and no communicator
  // exists.
  [[nodiscard]] Result<> connect(TimePoint deadline);
  // Whether streams and communicators exist. Unified devices need none. Any thread.
  [[nodiscard]] bool connected() const noexcept { return unified() || connected_; }
  // Aborts all running operations, and destroys streams and communicators. When it returns, only
  // engines may still read the buffers, and every callback has been called.
  void break_up(const Error& reason);
  // The first error of a stream or communicator, including errors that no callback has reported.
  [[nodiscard]] Result<> health() const;

  // Copies into the device's H2D buffer, or into the IPC buffer `slot`; `done` as Stream::notify.
  [[nodiscard]] Result<> copy_in(DeviceIndex device, std::optional<SlotIndex> slot,
                                 std::span<const std::byte> bytes, device::StreamCallback done);
  // What one rank or several ones need of a bucket. Thread: any.
  struct NeededCopy {
    DeviceIndex device{};
    SlotIndex slot{};
    std::uint64_t bucket = 0;
    std::span<const std::byte> bytes;  // of the bucket
    std::span<const std::shared_ptr<const NeededBytes>> needed;
  };
  // Copies that into the device's own IPC buffer, to the places that it has in the bucket; `done`
  // as Stream::notify. Returns the number of bytes.
  [[nodiscard]] Result<std::uint64_t> copy_needed(const NeededCopy& copy,
                                                  device::StreamCallback done);
  // One device's part of a broadcast from the source's H2D buffer into the device's own IPC buffer.
  struct Share {
    DeviceIndex device{};
    DeviceIndex source{};
    SlotIndex slot{};
    std::uint64_t bytes = 0;
    TimePoint deadline{};
  };
  // Calls `done` when the bytes have arrived and are visible to engines that are then told of them.
  [[nodiscard]] Result<> broadcast(const Share& share, device::StreamCallback done);

 private:
  // Streams must be destroyed before the memory that their work uses.
  struct Member {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<device::Memory> h2d;  // null: the device is alone
    std::array<std::unique_ptr<device::Memory>, kIpcSlots> ipc;
    std::unique_ptr<device::Stream> h2d_stream;
    // Null if the device is alone.
    std::unique_ptr<collective::Communicator> communicator;
    std::unique_ptr<device::Stream> broadcast_stream;
  };
  // The memory of a GPU.
  struct Measured {
    std::string uuid;
    std::uint64_t free_at_start = 0;  // when the buffer size was chosen
    std::uint64_t context_bytes = 0;
    std::optional<std::uint64_t> streams_bytes;
  };
  DeviceGroup() = default;
  [[nodiscard]] bool by_nccl() const noexcept {
    return collective_.kind == collective::GroupKind::kNccl;
  }
  [[nodiscard]] Result<> check_room() const;
  [[nodiscard]] Result<> connect_measured(TimePoint deadline);
  [[nodiscard]] Result<> measure(const std::vector<DeviceRoom>& before);
  [[nodiscard]] Result<> allocate_buffers(Member& member);
  [[nodiscard]] Result<> connect_members(TimePoint deadline);
  [[nodiscard]] Result<> warm_up(TimePoint deadline);
  [[nodiscard]] const Member& at(DeviceIndex device) const;

  std::vector<Member> members_;  // neither grows nor moves after create()
  std::uint64_t buffer_bytes_ = 0;
  bool keep_buffers_ = true;
  std::atomic<bool> holds_buffers_ = false;
  std::atomic<bool> connected_ = false;
  mutable std::mutex measured_mutex_;
  std::vector<Measured> measured_;  // one entry for each distinct GPU
  collective::FittingGroup collective_;
};

}  // namespace wsync::reload
