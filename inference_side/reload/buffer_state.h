// The buffers of one device group and the only moves they make:
//
//   free -> filling -> ready -> reloading -> free
//
// An H2D buffer is filled from host memory and drained by its device's turn as broadcast source; an
// IPC buffer is filled by a broadcast and drained by the engines of its device. Both kinds are
// buffers of this table; `reloading` means that somebody reads the buffer.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/device/device.h"

namespace wsync::reload {

using device::DeviceIndex;

// Which IPC buffer of a device; the same bucket lies in the same slot on every device.
enum class SlotIndex : std::uint32_t {};

// The number in a strong type, as an index.
[[nodiscard]] constexpr std::size_t index_of(DeviceIndex device) noexcept {
  return static_cast<std::size_t>(device);
}
[[nodiscard]] constexpr std::size_t index_of(SlotIndex slot) noexcept {
  return static_cast<std::size_t>(slot);
}

enum class BufferState : std::uint8_t { kFree, kFilling, kReady, kReloading };
inline constexpr std::uint64_t kNoBucket = std::numeric_limits<std::uint64_t>::max();

[[nodiscard]] std::string_view buffer_state_name(BufferState state) noexcept;
// Whether the transition table has a row from one state to the other.
[[nodiscard]] bool is_legal(BufferState from, BufferState to) noexcept;
// The transition table of one buffer, for the page of the protocol.
[[nodiscard]] TransitionTable buffer_transitions();

enum class BufferKind : std::uint8_t { kH2D, kIpc };

// Names one buffer; an H2D buffer has slot 0.
struct BufferId {
  BufferKind kind = BufferKind::kH2D;
  DeviceIndex device{};
  SlotIndex slot{};
};
[[nodiscard]] std::string to_string(const BufferId& id);

// All buffers of a group: one H2D buffer and `ipc_slots` IPC buffers for each device.
// Thread: confined to its owner. Every move is refused with kInternal when the table does not allow
// it, and then changes nothing.
class BufferTable {
 public:
  // Both counts at least 1.
  BufferTable(std::uint32_t devices, std::uint32_t ipc_slots);

  // free -> filling, with the bucket that is written into it.
  [[nodiscard]] Result<> fill(const BufferId& id, std::uint64_t bucket);
  // filling -> ready: every byte of the bucket is in place.
  [[nodiscard]] Result<> filled(const BufferId& id);
  // ready -> reloading: `readers` readers were notified; without a reader it is free at once.
  [[nodiscard]] Result<> begin_reload(const BufferId& id, std::uint32_t readers);
  // One reader has finished with the buffer; the last one makes it free (reloading -> free).
  [[nodiscard]] Result<> reader_done(const BufferId& id);

  [[nodiscard]] BufferState state(const BufferId& id) const noexcept { return at(id).state; }
  // The bucket in it; kNoBucket when free.
  [[nodiscard]] std::uint64_t bucket(const BufferId& id) const noexcept { return at(id).bucket; }
  // Whether a slot is free on every device: only then may a broadcast be started into it.
  [[nodiscard]] bool slot_free(SlotIndex slot) const noexcept;

  // kInternal with the first broken rule. A free buffer holds no bucket and has no reader; a
  // reloading buffer has at least one reader. An H2D buffer holds only buckets of its own device. A
  // slot holds one bucket on all devices where it is not free, and only buckets of that slot.
  // Buffers of one slot at most are being filled.
  [[nodiscard]] Result<> invariants() const;
  // The same rules for one slot and the H2D buffers only: cheap enough to run after every move.
  [[nodiscard]] Result<> invariants_of(SlotIndex slot) const;

  [[nodiscard]] std::uint32_t devices() const noexcept { return devices_; }
  [[nodiscard]] std::uint32_t ipc_slots() const noexcept { return ipc_slots_; }

 private:
  struct Buffer {
    BufferState state = BufferState::kFree;
    std::uint32_t readers = 0;
    std::uint64_t bucket = kNoBucket;
  };
  [[nodiscard]] Buffer& at(const BufferId& id) noexcept;
  [[nodiscard]] const Buffer& at(const BufferId& id) const noexcept;
  [[nodiscard]] Result<> move(const BufferId& id, BufferState to);
  [[nodiscard]] Result<> check_buffer(const BufferId& id) const;

  std::uint32_t devices_;
  std::uint32_t ipc_slots_;
  std::vector<Buffer> h2d_;  // by device
  std::vector<Buffer> ipc_;  // slot * devices + device
};

}  // namespace wsync::reload
