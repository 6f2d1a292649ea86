#include "inference_side/reload/buffer_state.h"

#include <array>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::reload {
namespace {

constexpr std::array<Transition<BufferState>, 4> kBufferTransitions = {{
    {BufferState::kFree, "a bucket begins to arrive", BufferState::kFilling, "note the bucket"},
    {BufferState::kFilling, "every byte of the bucket is in place", BufferState::kReady, ""},
    {BufferState::kReady, "the readers are notified", BufferState::kReloading, "count them"},
    {BufferState::kReloading, "the last reader has finished", BufferState::kFree,
     "forget the bucket"},
}};

}  // namespace

std::string_view buffer_state_name(BufferState state) noexcept {
  switch (state) {
    case BufferState::kFree:
      return "free";
    case BufferState::kFilling:
      return "filling";
    case BufferState::kReady:
      return "ready";
    case BufferState::kReloading:
      return "reloading";
  }
  return "unknown";
}

bool is_legal(BufferState from, BufferState to) noexcept {
  return allows<BufferState>(kBufferTransitions, from, to);
}

TransitionTable buffer_transitions() {
  return describe<BufferState>("BufferTable",
                               "One H2D buffer or IPC buffer of a device during a switch.",
                               kBufferTransitions, buffer_state_name);
}

std::string to_string(const BufferId& id) {
  if (id.kind == BufferKind::kH2D)
    return fmt::format("H2D buffer of device {}", index_of(id.device));
  return fmt::format("IPC buffer {} of device {}", index_of(id.slot), index_of(id.device));
}

BufferTable::BufferTable(std::uint32_t devices, std::uint32_t ipc_slots)
    : devices_(devices),
      ipc_slots_(ipc_slots),
      h2d_(devices),
      ipc_(static_cast<std::size_t>(devices) * ipc_slots) {
  WSYNC_CHECK(devices > 0 && ipc_slots > 0, "a buffer table needs a device and an IPC slot");
}

BufferTable::Buffer& BufferTable::at(const BufferId& id) noexcept {
  return const_cast<Buffer&>(std::as_const(*this).at(id));
}

const BufferTable::Buffer& BufferTable::at(const BufferId& id) const noexcept {
  WSYNC_CHECK(index_of(id.device) < devices_, to_string(id) + " does not exist");
  if (id.kind == BufferKind::kH2D) return h2d_[index_of(id.device)];
  WSYNC_CHECK(index_of(id.slot) < ipc_slots_, to_string(id) + " does not exist");
  return ipc_[index_of(id.slot) * devices_ + index_of(id.device)];
}

Result<> BufferTable::move(const BufferId& id, BufferState to) {
  Buffer& buffer = at(id);
  if (!is_legal(buffer.state, to))
    return fail(ErrorCode::kInternal,
                fmt::format("{} (bucket {}) cannot go from {} to {}", to_string(id),
                            buffer.bucket == kNoBucket ? "none" : std::to_string(buffer.bucket),
                            buffer_state_name(buffer.state), buffer_state_name(to)));
  buffer.state = to;
  return {};
}

Result<> BufferTable::fill(const BufferId& id, std::uint64_t bucket) {
  WSYNC_TRY(move(id, BufferState::kFilling));
  at(id).bucket = bucket;
  return {};
}

Result<> BufferTable::filled(const BufferId& id) { return move(id, BufferState::kReady); }

Result<> BufferTable::begin_reload(const BufferId& id, std::uint32_t readers) {
  WSYNC_TRY(move(id, BufferState::kReloading));
  at(id).readers = readers;
  if (readers != 0) return {};
  at(id).bucket = kNoBucket;
  return move(id, BufferState::kFree);
}

Result<> BufferTable::reader_done(const BufferId& id) {
  Buffer& buffer = at(id);
  if (buffer.state != BufferState::kReloading || buffer.readers == 0)
    return fail(ErrorCode::kInternal, fmt::format("{} has no reader that could finish, it is {}",
                                                  to_string(id), buffer_state_name(buffer.state)));
  if (--buffer.readers != 0) return {};
  buffer.bucket = kNoBucket;
  return move(id, BufferState::kFree);
}

bool BufferTable::slot_free(SlotIndex slot) const noexcept {
  for (std::uint32_t d = 0; d < devices_; ++d)
    if (state({.kind = BufferKind::kIpc, .device = DeviceIndex{d}, .slot = slot}) !=
        BufferState::kFree)
      return false;
  return true;
}

Result<> BufferTable::check_buffer(const BufferId& id) const {
  const Buffer& buffer = at(id);
  const bool is_free = buffer.state == BufferState::kFree;
  if (is_free != (buffer.bucket == kNoBucket))
    return fail(ErrorCode::kInternal, fmt::format("{} is {} and its bucket is {}", to_string(id),
                                                  buffer_state_name(buffer.state), buffer.bucket));
  if ((buffer.state == BufferState::kReloading) != (buffer.readers > 0))
    return fail(ErrorCode::kInternal, fmt::format("{} is {} and has {} readers", to_string(id),
                                                  buffer_state_name(buffer.state), buffer.readers));
  if (is_free) return {};
  const bool own = id.kind == BufferKind::kH2D ? buffer.bucket % devices_ == index_of(id.device)
                                               : buffer.bucket % ipc_slots_ == index_of(id.slot);
  if (!own)
    return fail(ErrorCode::kInternal,
                fmt::format("{} holds bucket {}, not its own", to_string(id), buffer.bucket));
  return {};
}

Result<> BufferTable::invariants_of(SlotIndex slot) const {
  std::uint64_t bucket = kNoBucket;
  for (std::uint32_t d = 0; d < devices_; ++d) {
    const BufferId h2d{.kind = BufferKind::kH2D, .device = DeviceIndex{d}};
    WSYNC_TRY(check_buffer(h2d));
    const BufferId ipc{.kind = BufferKind::kIpc, .device = DeviceIndex{d}, .slot = slot};
    WSYNC_TRY(check_buffer(ipc));
    const std::uint64_t held = at(ipc).bucket;
    if (held == kNoBucket) continue;
    if (bucket == kNoBucket) bucket = held;
    if (bucket != held)
      return fail(
          ErrorCode::kInternal,
          fmt::format("{} holds bucket {} while another device holds bucket {} in this slot",
                      to_string(ipc), held, bucket));
  }
  return {};
}

Result<> BufferTable::invariants() const {
  std::uint64_t filling = kNoBucket;
  for (std::uint32_t s = 0; s < ipc_slots_; ++s) {
    WSYNC_TRY(invariants_of(SlotIndex{s}));
    for (std::uint32_t d = 0; d < devices_; ++d) {
      const Buffer& buffer = ipc_[static_cast<std::size_t>(s) * devices_ + d];
      if (buffer.state != BufferState::kFilling) continue;
      if (filling == kNoBucket) filling = buffer.bucket;
      if (filling != buffer.bucket)
        return fail(ErrorCode::kInternal,
                    fmt::format("buckets {} and {} are broadcast at once", filling, buffer.bucket));
    }
  }
  return {};
}

}  // namespace wsync::reload
