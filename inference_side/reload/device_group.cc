#include "inference_side/reload/device_group.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::reload {
namespace {

constexpr std::uint64_t kBuffersPerDevice = 1 + kIpcSlots;

Result<> check_devices(const std::vector<std::unique_ptr<device::Device>>& devices) {
  if (devices.empty() || devices.size() > limits::kDeviceCount)
    return fail(ErrorCode::kInvalidInput, fmt::format("a group of {} devices, expected 1 to {}",
                                                      devices.size(), limits::kDeviceCount));
  for (const auto& device : devices)
    if (device->kind() != devices.front()->kind())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} and {} cannot form one group: all devices of a group are of one "
                              "kind",
                              devices.front()->name(), device->name()));
  return {};
}

// Host devices share one memory; a GPU has its own.
Result<> check_memory(const std::vector<std::unique_ptr<device::Device>>& devices,
                      std::uint64_t buffer_bytes) {
  const bool shared = devices.front()->kind() == device::DeviceKind::kSeparate;
  const std::uint64_t buffers = kBuffersPerDevice * (shared ? devices.size() : 1);
  for (const auto& device : devices) {
    const auto info = device->memory_info();
    if (!info) return fail(info.error());
    const std::uint64_t usable = info->free_bytes / 100 * limits::kDeviceMemoryPercent;
    if (buffer_bytes <= usable / buffers) continue;
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{}: {} buffers of {} bytes do not fit into {} % of its {} free bytes; "
                            "choose buffers of at most {} bytes",
                            device->name(), buffers, buffer_bytes, limits::kDeviceMemoryPercent,
                            info->free_bytes, usable / buffers));
  }
  return {};
}

Result<> allocate(device::Device& device, std::uint64_t bytes,
                  std::unique_ptr<device::Memory>& memory) {
  auto made = device.allocate(bytes);
  if (!made) return fail(std::move(made).error());
  memory = std::move(*made);
  return {};
}

Result<> make_stream(device::Device& device, device::StreamRole role,
                     std::unique_ptr<device::Stream>& stream) {
  auto made = device.create_stream(role);
  if (!made) return fail(std::move(made).error());
  stream = std::move(*made);
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::create(
    std::vector<std::unique_ptr<device::Device>> devices, std::uint64_t buffer_bytes) {
  WSYNC_TRY(check_devices(devices));
  const bool unified = devices.front()->kind() == device::DeviceKind::kUnified;
  if (!unified) WSYNC_TRY(check_memory(devices, buffer_bytes));
  std::vector<Member> members;
  for (auto& device : devices) {
    Member member;
    member.device = std::move(device);
    if (!unified) {
      WSYNC_TRY(allocate(*member.device, buffer_bytes, member.h2d));
      for (auto& ipc : member.ipc) WSYNC_TRY(allocate(*member.device, buffer_bytes, ipc));
    }
    members.push_back(std::move(member));
  }
  return std::unique_ptr<DeviceGroup>(new DeviceGroup(std::move(members), buffer_bytes));
}

const DeviceGroup::Member& DeviceGroup::at(DeviceIndex device) const {
  const auto index = static_cast<std::size_t>(device);
  WSYNC_CHECK(index < members_.size(), fmt::format("device {} is not in the group", index));
  return members_[index];
}

Result<device::MemoryHandle> DeviceGroup::ipc_handle(DeviceIndex device, SlotIndex slot) const {
  const auto index = static_cast<std::size_t>(slot);
  if (static_cast<std::size_t>(device) >= members_.size() || index >= kIpcSlots)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("IPC buffer {} of device {} does not exist: {} devices, {} buffers each", index,
                    static_cast<std::size_t>(device), members_.size(), kIpcSlots));
  if (unified())
    return fail(ErrorCode::kRefused,
                "unified devices have no IPC buffers: engines map the staged version itself");
  return at(device).ipc[index]->export_handle();
}

Result<> DeviceGroup::connect(TimePoint deadline) {
  if (unified() || members_[0].communicator) return {};
  auto connected = connect_members(deadline);
  if (!connected) break_up(connected.error());
  return connected;
}

Result<> DeviceGroup::connect_members(TimePoint deadline) {
  std::vector<device::Device*> devices;
  for (Member& member : members_) {
    devices.push_back(member.device.get());
    WSYNC_TRY(make_stream(*member.device, device::StreamRole::kHostToDevice, member.h2d_stream));
    WSYNC_TRY(make_stream(*member.device, device::StreamRole::kBroadcast, member.broadcast_stream));
  }
  auto joined = collective::join_all(collective::fitting_group(devices), devices, deadline);
  if (!joined) return fail(std::move(joined).error());
  for (std::size_t d = 0; d < members_.size(); ++d)
    members_[d].communicator = std::move((*joined)[d]);
  return {};
}

void DeviceGroup::break_up(const Error& reason) {
  for (Member& member : members_)
    if (member.communicator) member.communicator->abort(reason);
  for (Member& member : members_) {
    member.h2d_stream.reset();
    member.broadcast_stream.reset();
  }
  for (Member& member : members_) member.communicator.reset();
}

Result<> DeviceGroup::health() const {
  for (const Member& member : members_) {
    if (!member.communicator) continue;
    WSYNC_TRY(member.communicator->health());
    WSYNC_TRY(member.h2d_stream->status());
    WSYNC_TRY(member.broadcast_stream->status());
  }
  return {};
}

Result<> DeviceGroup::copy_in(DeviceIndex device, std::span<const std::byte> bytes,
                              device::StreamCallback done) {
  const Member& member = at(device);
  WSYNC_TRY(member.h2d_stream->copy_to_device(
      {.memory = member.h2d.get(), .offset = 0, .bytes = bytes.size()}, bytes));
  return member.h2d_stream->notify(std::move(done));
}

Result<> DeviceGroup::broadcast(const Share& share, device::StreamCallback done) {
  const Member& member = at(share.device);
  const auto slot = static_cast<std::size_t>(share.slot);
  WSYNC_CHECK(slot < kIpcSlots, fmt::format("IPC slot {} does not exist", slot));
  WSYNC_TRY(member.communicator->broadcast(
      {.source = {.memory = at(share.source).h2d.get(), .offset = 0, .bytes = share.bytes},
       .destination = {.memory = member.ipc[slot].get(), .offset = 0, .bytes = share.bytes},
       .root = collective::Rank{static_cast<std::uint32_t>(share.source)},
       .deadline = share.deadline},
      *member.broadcast_stream));
  return member.broadcast_stream->notify(std::move(done));
}

}  // namespace wsync::reload
