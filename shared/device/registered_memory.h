// RegisteredMemory: host memory that is registered (pinned) with devices for as long as it is
// mapped. Registering takes tens of milliseconds per GiB, so memory that is used again stays
// registered.
//
// The memory is registered in slices. Each slice is unregistered by itself while no run of the
// pipeline is on (memory_gate.h).
//
// Thread: any.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shared/device/device.h"

namespace wsync::device {

class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  ~RegisteredMemory() { end(); }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  // Registers the bytes with the device, which must outlive end(). Returns an empty text, or why
  // the device does not register them: it copies them all the same, but more slowly.
  [[nodiscard]] Result<std::string> register_with(Device& device, std::span<const std::byte> bytes);
  void add(std::unique_ptr<HostRegistration> slice);
  // Unregisters everything, while the devices and the memory still exist. When it returns, nothing
  // is registered, also if another thread has called it first. It waits for the end of a run.
  void end();
  [[nodiscard]] bool ended() const;
  [[nodiscard]] std::size_t slices() const;
  // Whether every slice is registered with every device.
  [[nodiscard]] bool complete() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<HostRegistration>> slices_;  // under mutex_
  bool complete_ = true;
  bool ended_ = false;
};

// Calls end() when it is destroyed. For MappedRegion::accompany(): it goes with the mapping, and
// unregisters the memory just before that is unmapped.
[[nodiscard]] std::shared_ptr<const void> end_of_mapping(std::shared_ptr<RegisteredMemory> memory);

}  // namespace wsync::device
