// A device that says that it is a GPU, in host memory: what the engine library does with a GPU can
// be tested without any CUDA. The host can read its memory, so a test sees what is there.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shared/device/device.h"

namespace wsync {

// Memory that was freed, as the test says, is not borrowed. Thread: as Device, but gone().
class GpuLikeDevice final : public device::Device {
 public:
  // From now on, none of the range is memory of the device. Call it while nothing is borrowed.
  void free_range(std::span<const std::byte> range) { gone_.push_back(range); }
  // It is again.
  void allocate_again() { gone_.clear(); }
  // From now on, nothing can be allocated, or it can again.
  void fill_up(bool full) { full_ = full; }

  [[nodiscard]] DeviceKind kind() const noexcept override { return DeviceKind::kCuda; }
  [[nodiscard]] device::DeviceIndex index() const noexcept override { return host_->index(); }
  [[nodiscard]] std::string name() const override { return "GPU in host memory"; }
  [[nodiscard]] std::string uuid() const override { return "GPU-in-host-memory"; }
  [[nodiscard]] Result<device::MemoryInfo> memory_info() const override {
    return host_->memory_info();
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> allocate(std::uint64_t bytes) override {
    if (full_) return fail(ErrorCode::kResourceExhausted, name() + ": no memory is free");
    return host_->allocate(bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> alias_host(
      std::span<const std::byte> bytes) override {
    return host_->alias_host(bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> borrow(
      std::span<std::byte> range) override {
    const auto overlaps = [&](std::span<const std::byte> gone) {
      return gone.data() < range.data() + range.size() && range.data() < gone.data() + gone.size();
    };
    if (std::ranges::any_of(gone_, overlaps))
      return fail(ErrorCode::kInvalidInput, name() + ": no memory of it is there");
    return host_->borrow(range);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> import_memory(
      device::MemoryHandle handle) override {
    handle.kind = host_->kind();
    return host_->import_memory(std::move(handle));
  }
  [[nodiscard]] Result<std::unique_ptr<device::HostRegistration>> register_host(
      std::span<const std::byte> range) override {
    return host_->register_host(range);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Stream>> create_stream(
      device::StreamRole role) override {
    return host_->create_stream(role);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Event>> create_event() override {
    return host_->create_event();
  }
  [[nodiscard]] Result<> await_stream(std::uintptr_t native, TimePoint deadline) override {
    return host_->await_stream(native, deadline);
  }
  void free_unused() noexcept override { host_->free_unused(); }

 private:
  std::unique_ptr<device::Device> host_ =
      device::make_device({.kind = DeviceKind::kSeparate}).value();
  std::vector<std::span<const std::byte>> gone_;
  bool full_ = false;
};

}  // namespace wsync
