#include "shared/device/host/device.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/device/host/memory.h"
#include "shared/device/host/stream.h"

namespace wsync::device::host {
namespace {

// Creates the page-table entries in advance, so that copies cause no page faults.
class PopulatedRange final : public HostRegistration {
 public:
  explicit PopulatedRange(std::span<const std::byte> range) {
    if (range.empty()) return;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(range.data()) & ~(page - 1);
    const auto end = reinterpret_cast<std::uintptr_t>(range.data()) + range.size();
    if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ) != 0)
      fallback_ =
          fmt::format("pages are mapped by the first copy: madvise: {}", std::strerror(errno));
  }
  [[nodiscard]] bool registered() const noexcept override { return fallback_.empty(); }
  [[nodiscard]] std::string_view fallback() const noexcept override { return fallback_; }

 private:
  std::string fallback_;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(const DeviceOptions& options) : options_(options) {}

  [[nodiscard]] DeviceKind kind() const noexcept override { return options_.kind; }
  [[nodiscard]] DeviceIndex index() const noexcept override { return options_.index; }
  [[nodiscard]] std::string name() const override {
    return fmt::format("{} host device {}", device_kind_name(options_.kind),
                       static_cast<std::uint32_t>(options_.index));
  }
  [[nodiscard]] std::string uuid() const override { return {}; }
  [[nodiscard]] Result<MemoryInfo> memory_info() const override {
    const auto free = available_memory();
    if (!free) return fail(free.error().with_context(name()));
    const auto pages = ::sysconf(_SC_PHYS_PAGES);
    const auto page = ::sysconf(_SC_PAGESIZE);
    return MemoryInfo{.total_bytes = static_cast<std::uint64_t>(pages * page),
                      .free_bytes = free->bytes};
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> allocate(std::uint64_t bytes) override {
    auto memory = HostMemory::allocate(options_.kind, bytes);
    if (!memory) return fail(memory.error().with_context(name()));
    return std::unique_ptr<Memory>(std::move(*memory));
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> alias_host(
      std::span<const std::byte> bytes) override {
    if (options_.kind != DeviceKind::kUnified)
      return fail(ErrorCode::kRefused,
                  name() + ": the device has memory of its own; host bytes must be copied to it");
    return std::unique_ptr<Memory>(HostMemory::alias(options_.kind, bytes));
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> borrow(std::span<std::byte> range) override {
    return std::unique_ptr<Memory>(HostMemory::borrow(options_.kind, range));
  }
  [[nodiscard]] Result<std::unique_ptr<Memory>> import_memory(MemoryHandle handle) override {
    auto memory = HostMemory::import(options_.kind, std::move(handle));
    if (!memory) return fail(memory.error().with_context(name()));
    return std::unique_ptr<Memory>(std::move(*memory));
  }
  [[nodiscard]] Result<std::unique_ptr<HostRegistration>> register_host(
      std::span<const std::byte> range) override {
    return std::unique_ptr<HostRegistration>(std::make_unique<PopulatedRange>(range));
  }
  [[nodiscard]] Result<std::unique_ptr<Stream>> create_stream(StreamRole role) override {
    return std::unique_ptr<Stream>(std::make_unique<HostStream>(
        options_.kind, fmt::format("{} {}", name(), stream_role_name(role))));
  }
  [[nodiscard]] Result<std::unique_ptr<Event>> create_event() override {
    return std::unique_ptr<Event>(std::make_unique<WorkerEvent>());
  }
  [[nodiscard]] Result<> await_stream(std::uintptr_t, TimePoint) override {
    return fail(ErrorCode::kInvalidInput, name() + ": only a GPU has streams of other code");
  }
  void free_unused() noexcept override {}

 private:
  DeviceOptions options_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_host_device(const DeviceOptions& options) {
  return std::unique_ptr<Device>(std::make_unique<HostDevice>(options));
}

}  // namespace wsync::device::host
