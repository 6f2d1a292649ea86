#include "inference_side/reload/device_group.h"

#include <algorithm>
#include <map>

#include "inference_side/reload/buffer_limits.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/broadcast/nccl_library.h"

namespace wsync::reload {
namespace {

constexpr std::uint64_t kWarmUpBytes = 4 * limits::kMiB;
constexpr std::uint64_t kMeasuredMax = 4;  // factor of the estimate

static_assert(buffers_per_device(2) == 1 + kIpcSlots);

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

// If the user requests NCCL by name, anything that prevents its use is an error.
Result<> check_nccl(const std::vector<std::unique_ptr<device::Device>>& devices) {
  for (const auto& device : devices)
    if (device->kind() != DeviceKind::kCuda)
      return fail(
          ErrorCode::kRefused,
          fmt::format("NCCL supports only GPUs, not {}; set devices.collective to auto or local",
                      device->name()));
  if (devices.size() < 2)
    return fail(ErrorCode::kRefused,
                "NCCL needs several devices, but there is only one; set devices.collective to auto "
                "or local");
  const auto backend = WSYNC_TRY(collective::nccl_backend());
  const auto facts = WSYNC_TRY(backend->facts());
  if (facts.ranks_share_gpus) return {};
  std::map<std::string, std::string> names;  // of GPUs
  for (const auto& device : devices) {
    const auto [other, fresh] = names.emplace(device->uuid(), device->name());
    if (!fresh)
      return fail(ErrorCode::kRefused,
                  fmt::format("NCCL {} allows each GPU only once, but {} and {} are both {}; {}",
                              collective::nccl_version_text(facts.version), other->second,
                              device->name(), device->uuid(), collective::kShareGpuAdvice));
  }
  return {};
}

Result<> make_stream(device::Device& device, device::StreamRole role,
                     std::unique_ptr<device::Stream>& stream) {
  stream = WSYNC_TRY(device.create_stream(role));
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::create(DeviceGroupOptions options) {
  WSYNC_TRY(check_devices(options.devices));
  if (options.collective == collective::GroupKind::kNccl) WSYNC_TRY(check_nccl(options.devices));
  auto group = std::unique_ptr<DeviceGroup>(new DeviceGroup());
  group->keep_buffers_ = options.keep_buffers;
  std::vector<device::Device*> devices;
  for (auto& device : options.devices) {
    devices.push_back(device.get());
    group->members_.emplace_back().device = std::move(device);
  }
  if (group->unified()) return group;
  group->collective_ =
      options.collective ? collective::FittingGroup{.kind = *options.collective, .why_not_nccl = {}}
                         : collective::fitting_group(devices);
  const auto rooms = WSYNC_TRY(group->rooms());
  std::vector<BufferRoom> free;
  for (const DeviceRoom& room : rooms) {
    free.push_back({.name = room.name,
                    .devices = room.devices,
                    .free_bytes = room.free_bytes,
                    .reserved_bytes = streams_take(group->kind(), room.devices, group->by_nccl())});
    // On an empty GPU all used memory belongs to the context. On a shared GPU this is an upper
    // limit for the context.
    group->measured_.push_back(
        {.uuid = room.uuid,
         .free_at_start = room.free_bytes,
         .context_bytes = std::min(kContextBytes, room.total_bytes - room.free_bytes),
         .streams_bytes = std::nullopt});
  }
  const auto bytes = WSYNC_TRY(choose_buffer_bytes(group->kind(), free, options.buffer_bytes));
  group->buffer_bytes_ = bytes;
  if (group->keep_buffers_) WSYNC_TRY(group->hold_buffers());
  return group;
}

Result<std::vector<DeviceRoom>> DeviceGroup::rooms() const {
  std::vector<DeviceRoom> rooms;
  for (const Member& member : members_) {
    const std::string uuid = member.device->uuid();  // the same for all host devices
    const auto same = std::ranges::find(rooms, uuid, &DeviceRoom::uuid);
    if (same != rooms.end()) {
      ++same->devices;
      continue;
    }
    const auto info = WSYNC_TRY(member.device->memory_info());
    rooms.push_back({.name = uuid.empty() ? "host memory" : member.device->name(),
                     .uuid = uuid,
                     .devices = 1,
                     .total_bytes = info.total_bytes,
                     .free_bytes = info.free_bytes});
  }
  const std::lock_guard lock(measured_mutex_);
  for (DeviceRoom& room : rooms) {
    room.peak_bytes = unified() ? 0 : buffers_take(kind(), room.devices, size(), buffer_bytes_);
    if (kind() != DeviceKind::kCuda) continue;
    room.streams_bytes = streams_take(kind(), room.devices, by_nccl());
    const auto measured = std::ranges::find(measured_, room.uuid, &Measured::uuid);
    if (measured == measured_.end()) continue;
    room.context_bytes = measured->context_bytes;
    if (!measured->streams_bytes) continue;
    room.streams_bytes = *measured->streams_bytes;
    room.streams_measured = true;
  }
  return rooms;
}

// Checks the free memory again, because engines may have allocated memory since the size was
// chosen.
Result<> DeviceGroup::check_room() const {
  if (kind() != DeviceKind::kCuda) return {};
  const auto now = WSYNC_TRY(rooms());
  for (const DeviceRoom& room : now)
    if (room.free_bytes < room.peak_bytes)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("{}: {} buffers of {} bytes take {} bytes, but {} are free: lower "
                              "devices.buffer_bytes, or free memory there",
                              room.name, buffers_per_device(size()) * room.devices, buffer_bytes_,
                              room.peak_bytes, room.free_bytes));
  return {};
}

Result<> DeviceGroup::hold_buffers() {
  if (unified() || holds_buffers_) return {};
  WSYNC_TRY(check_room());
  for (Member& member : members_) {
    auto made = allocate_buffers(member);
    if (made) continue;
    free_buffers();
    return made;
  }
  holds_buffers_ = true;
  return {};
}

Result<> DeviceGroup::allocate_buffers(Member& member) {
  std::vector<std::unique_ptr<device::Memory>*> all;
  if (!alone()) all.push_back(&member.h2d);
  for (auto& ipc : member.ipc) all.push_back(&ipc);
  for (auto* memory : all) {
    auto made = member.device->allocate(buffer_bytes_);
    if (made) {
      *memory = std::move(*made);
      continue;
    }
    return fail(made.error().code(),
                fmt::format("{}; the device needs {} buffers of {} bytes: lower "
                            "devices.buffer_bytes, or free memory there",
                            made.error().message(), all.size(), buffer_bytes_));
  }
  return {};
}

void DeviceGroup::free_buffers() {
  holds_buffers_ = false;
  for (Member& member : members_) {
    member.h2d.reset();
    for (auto& ipc : member.ipc) ipc.reset();
  }
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
  if (!holds_buffers_)
    return fail(ErrorCode::kRefused,
                "there are no IPC buffers between loads (keep_buffers: false)");
  return at(device).ipc[index]->export_handle();
}

Result<> DeviceGroup::connect(TimePoint deadline) {
  if (connected()) return {};
  auto connected =
      kind() == DeviceKind::kCuda ? connect_measured(deadline) : connect_members(deadline);
  if (connected)
    connected_ = true;
  else
    break_up(connected.error());
  return connected;
}

Result<> DeviceGroup::connect_measured(TimePoint deadline) {
  const auto before = WSYNC_TRY(rooms());
  WSYNC_TRY(connect_members(deadline));
  if (!holds_buffers_) return {};
  WSYNC_TRY(warm_up(deadline));
  return measure(before);
}

// The driver reports the memory of all processes together. If the difference is far above the
// estimate, an engine has allocated memory meanwhile, so the estimate is kept.
Result<> DeviceGroup::measure(const std::vector<DeviceRoom>& before) {
  const auto after = WSYNC_TRY(rooms());
  for (std::size_t i = 0; i < after.size(); ++i) {
    const DeviceRoom& room = after[i];
    const std::uint64_t estimate = streams_take(kind(), room.devices, by_nccl());
    const std::uint64_t was = before[i].free_bytes;
    const std::uint64_t taken = was - std::min(was, room.free_bytes);
    if (taken > kMeasuredMax * estimate) continue;
    const std::lock_guard lock(measured_mutex_);
    Measured& measured = measured_[i];
    measured.streams_bytes = taken;
    const std::uint64_t limit = measured.free_at_start / 100 * limits::kDeviceMemoryPercent;
    if (taken + room.peak_bytes > limit)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("{}: streams and communicators take {} bytes, but {} were reserved: "
                              "together with {} bytes of buffers this is more than {} % of the {} "
                              "bytes that were free; lower devices.buffer_bytes",
                              room.name, taken, estimate, room.peak_bytes,
                              limits::kDeviceMemoryPercent, measured.free_at_start));
  }
  return {};
}

// NCCL connects its ranks at their first broadcast from each root, and allocates memory for that.
// Do it here, because during a pause it would lengthen the pause and distort the measurement of
// stages.
Result<> DeviceGroup::warm_up(TimePoint deadline) {
  if (alone()) return {};
  for (std::uint32_t source = 0; source < size(); ++source) {
    for (std::uint32_t d = 0; d < size(); ++d)
      WSYNC_TRY(broadcast({.device = DeviceIndex{d},
                           .source = DeviceIndex{source},
                           .bytes = std::min(buffer_bytes_, kWarmUpBytes),
                           .deadline = deadline},
                          [](const Result<>&) {}));
    for (const Member& member : members_) {
      auto done = WSYNC_TRY(member.device->create_event());
      WSYNC_TRY(member.broadcast_stream->record(*done));
      WSYNC_TRY(done->wait(deadline));
    }
  }
  return {};
}

Result<> DeviceGroup::connect_members(TimePoint deadline) {
  std::vector<device::Device*> devices;
  for (Member& member : members_) {
    devices.push_back(member.device.get());
    WSYNC_TRY(make_stream(*member.device, device::StreamRole::kHostToDevice, member.h2d_stream));
    if (alone()) return {};
    WSYNC_TRY(make_stream(*member.device, device::StreamRole::kBroadcast, member.broadcast_stream));
  }
  auto joined = WSYNC_TRY(collective::join_all(collective_.kind, devices, deadline));
  for (std::size_t d = 0; d < members_.size(); ++d) members_[d].communicator = std::move(joined[d]);
  return {};
}

void DeviceGroup::break_up(const Error& reason) {
  connected_ = false;
  for (Member& member : members_)
    if (member.communicator) member.communicator->abort(reason);
  for (Member& member : members_) {
    member.h2d_stream.reset();
    member.broadcast_stream.reset();
  }
  // Together, so that a group of many GPUs ends within one deadline.
  for (Member& member : members_)
    if (member.communicator) member.communicator->part();
  for (Member& member : members_) member.communicator.reset();
}

Result<> DeviceGroup::health() const {
  for (const Member& member : members_) {
    if (member.h2d_stream) WSYNC_TRY(member.h2d_stream->status());
    if (!member.communicator) continue;
    WSYNC_TRY(member.communicator->health());
    WSYNC_TRY(member.broadcast_stream->status());
  }
  return {};
}

Result<> DeviceGroup::copy_in(DeviceIndex device, std::optional<SlotIndex> slot,
                              std::span<const std::byte> bytes, device::StreamCallback done) {
  const Member& member = at(device);
  WSYNC_CHECK(slot.has_value() == alone(), "only a device that is alone is filled directly");
  WSYNC_CHECK(!slot || index_of(*slot) < kIpcSlots, "no such IPC slot");
  device::Memory* to = slot ? member.ipc[index_of(*slot)].get() : member.h2d.get();
  WSYNC_TRY(
      member.h2d_stream->copy_to_device({.memory = to, .offset = 0, .bytes = bytes.size()}, bytes));
  return member.h2d_stream->notify(std::move(done));
}

Result<std::uint64_t> DeviceGroup::copy_needed(const NeededCopy& copy,
                                               device::StreamCallback done) {
  const Member& member = at(copy.device);
  WSYNC_CHECK(index_of(copy.slot) < kIpcSlots, "no such IPC slot");
  device::Memory* to = member.ipc[index_of(copy.slot)].get();
  std::uint64_t bytes = 0;
  for (const auto& needed : copy.needed)
    for (const NeededRows& rows : needed->of_bucket(copy.bucket)) {
      const device::Region region{.memory = to, .offset = rows.from, .bytes = rows.span_bytes()};
      const auto source = copy.bytes.subspan(rows.from, rows.span_bytes());
      bytes += rows.bytes();
      WSYNC_TRY(rows.rows == 1
                    ? member.h2d_stream->copy_to_device(region, source)
                    : member.h2d_stream->copy_rows_to_device(
                          region, source, {.row_bytes = rows.row_bytes, .stride = rows.stride}));
    }
  WSYNC_TRY(member.h2d_stream->notify(std::move(done)));
  return bytes;
}

Result<> DeviceGroup::broadcast(const Share& share, device::StreamCallback done) {
  WSYNC_CHECK(static_cast<std::size_t>(share.device) < members_.size(), "no such device");
  Member& member = members_[static_cast<std::size_t>(share.device)];
  const auto slot = static_cast<std::size_t>(share.slot);
  WSYNC_CHECK(slot < kIpcSlots, fmt::format("IPC slot {} does not exist", slot));
  device::Stream& stream = *member.broadcast_stream;
  device::Memory& memory = *member.ipc[slot];
  WSYNC_TRY(member.communicator->broadcast(
      {.source = {.memory = at(share.source).h2d.get(), .offset = 0, .bytes = share.bytes},
       .destination = {.memory = &memory, .offset = 0, .bytes = share.bytes},
       .root = collective::Rank{static_cast<std::uint32_t>(share.source)},
       .deadline = share.deadline},
      stream));
  return stream.notify(std::move(done));
}

}  // namespace wsync::reload
