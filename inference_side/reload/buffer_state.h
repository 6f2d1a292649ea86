// The buffers of one device group and their state transitions:
//
//   free -> filling -> ready -> reloading -> free
//
// An H2D buffer is filled from host memory, and drained when its device is the source of a
// broadcast. An IPC buffer is filled by a broadcast, and drained by the engines of its device. Both
// kinds use this table; `reloading` means that at least one reader reads the buffer.
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

// Index of an IPC buffer of a device. On every device the same slot holds the same bucket.
enum class SlotIndex : std::uint32_t {};

// The index as a plain number.
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
// The transition table of one buffer, for the protocol documentation.
[[nodiscard]] TransitionTable buffer_transitions();

enum class BufferKind : std::uint8_t { kH2D, kIpc };

// Identifies one buffer. An H2D buffer has slot 0.
struct BufferId {
  BufferKind kind = BufferKind::kH2D;
  DeviceIndex device{};
  SlotIndex slot{};
};
[[nodiscard]] std::string to_string(const BufferId& id);

// All buffers of a group: for each device one H2D buffer and `ipc_slots` IPC buffers. A transition
// that the table does not allow is refused with kInternal and changes nothing. Thread: confined to
// its owner.
class BufferTable {
 public:
  // Both counts must be at least 1.
  BufferTable(std::uint32_t devices, std::uint32_t ipc_slots);

  // free -> filling, with the bucket that is written into it.
  [[nodiscard]] Result<> fill(const BufferId& id, std::uint64_t bucket);
  // filling -> ready: every byte of the bucket is in place.
  [[nodiscard]] Result<> filled(const BufferId& id);
  // ready -> reloading: `readers` readers were notified. Without a reader the buffer is free at
  // once.
  [[nodiscard]] Result<> begin_reload(const BufferId& id, std::uint32_t readers);
  // One reader has finished with the buffer; the last one makes it free (reloading -> free).
  [[nodiscard]] Result<> reader_done(const BufferId& id);

  [[nodiscard]] BufferState state(const BufferId& id) const noexcept { return at(id).state; }
  // The bucket in the buffer; kNoBucket if the buffer is free.
  [[nodiscard]] std::uint64_t bucket(const BufferId& id) const noexcept { return at(id).bucket; }
  // Whether the slot is free on every device. Only then may a broadcast into it start.
  [[nodiscard]] bool slot_free(SlotIndex slot) const noexcept;

  // Returns kInternal with the first broken rule. Rules: a free buffer holds no bucket and has no
  // reader; a reloading buffer has at least one reader; an H2D buffer holds only buckets of its own
  // device; a slot holds the same bucket on all devices where it is not free, and only buckets of
  // that slot; buffers of at most one slot are being filled.
  [[nodiscard]] Result<> invariants() const;
  // Checks the same rules for one slot and the H2D buffers only, which is cheap enough to do after
  // every transition.
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
