// Devices: where the buffers of the weight pipeline live. One interface for every backend; a
// backend is a folder with the same file names (memory, stream, device) and one line in
// make_device().
//
// Work is enqueued on streams and runs in order there; streams run beside each other. A call that
// enqueues returns at once; an error that happens later sticks to the stream: the work behind it is
// skipped, events recorded behind it fail, and status() tells. A stream that failed is replaced,
// not repaired.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/bytes.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::device {

// Index of a device among those that one sidecar drives.
enum class DeviceIndex : std::uint32_t {};

enum class DeviceKind : std::uint8_t {
  kUnified,   // host device without memory of its own: a staged bucket is its IPC buffer
  kSeparate,  // host device with memory of its own and real copies; stands for a GPU
  kCuda,      // a GPU
};
[[nodiscard]] std::string_view device_kind_name(DeviceKind kind) noexcept;
// "unified", "separate" or "cuda"; anything else is kInvalidInput naming the choices.
[[nodiscard]] Result<DeviceKind> parse_device_kind(std::string_view text);

// What another process needs to map a device's memory. Host: a sealed memfd. CUDA: the opaque IPC
// handle. Travels over the engine link only.
struct MemoryHandle {
  DeviceKind kind = DeviceKind::kSeparate;
  std::uint64_t bytes = 0;
  UniqueFd fd;
  Bytes opaque;
};

// One allocation on a device, or a mapping of another process's. Owned by the caller; must not
// outlive its Device, and must outlive the work that uses it.
class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Address as the device sees it. Host kinds: valid in this process. CUDA: never dereferenced by
  // the host.
  [[nodiscard]] virtual std::byte* address() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const noexcept = 0;
  // False for imported and aliased memory: copies into it are refused.
  [[nodiscard]] virtual bool writable() const noexcept = 0;
  // The bytes as the host can read them; empty where it cannot (CUDA).
  [[nodiscard]] virtual std::span<const std::byte> host_view() const noexcept = 0;
  // A handle that another process imports; may be called several times. kRefused for memory that
  // is not an own allocation.
  [[nodiscard]] virtual Result<MemoryHandle> export_handle() const = 0;

 protected:
  Memory() = default;
};

// A place inside a device's memory.
struct Region {
  Memory* memory = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A point in a stream's work. Made once and used again: record() moves it. Any thread.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // True when everything before the newest record() is complete, or none was made; the stream's
  // error when that failed.
  [[nodiscard]] virtual Result<bool> query() const = 0;
  // Blocks until query() is true; kDeadline when it is not by then.
  [[nodiscard]] virtual Result<> wait(TimePoint deadline) const = 0;

 protected:
  Event() = default;
};

// What a stream is for; a backend maps it to a priority.
enum class StreamRole : std::uint8_t { kHostToDevice, kBroadcast, kReload };

// Told once how the work before it ended: success, the stream's error, or kCancelled when the
// stream was destroyed first. Runs on a thread of the backend: it must not block, nor call the
// device.
using StreamCallback = std::function<void(const Result<>&)>;

// An ordered queue of asynchronous work on one device. Every function may be called from any
// thread; the order is that of the calls. Destroying a stream cancels what has not run, tells its
// callbacks and waits for what runs.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Host to device. `source` stays valid until the copy is complete; to.bytes == source.size().
  [[nodiscard]] virtual Result<> copy_to_device(const Region& to,
                                                std::span<const std::byte> source) = 0;
  // Device to host. `to` stays valid until the copy is complete; from.bytes == to.size().
  [[nodiscard]] virtual Result<> copy_to_host(std::span<std::byte> to, const Region& from) = 0;
  // Between memories of this process's devices of the same kind; equal sizes.
  [[nodiscard]] virtual Result<> copy_on_device(const Region& to, const Region& from) = 0;
  // Makes `event` mean "all work enqueued so far". An event of the same device kind.
  [[nodiscard]] virtual Result<> record(Event& event) = 0;
  // Later work of this stream waits for the event's newest record, of whichever stream.
  [[nodiscard]] virtual Result<> wait(const Event& event) = 0;
  // Calls back after all work enqueued so far.
  [[nodiscard]] virtual Result<> notify(StreamCallback callback) = 0;
  // The first error of the stream's work, also one that no callback can report.
  [[nodiscard]] virtual Result<> status() const = 0;

 protected:
  Stream() = default;
};

// Host memory made ready for copies straight from it: pinned (CUDA), mapped page by page (host).
// Undone when destroyed; the range must outlive it.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;
  // False when the backend fell back to unregistered copies; why, in words, in fallback().
  [[nodiscard]] virtual bool registered() const noexcept = 0;
  [[nodiscard]] virtual std::string_view fallback() const noexcept = 0;

 protected:
  HostRegistration() = default;
};

struct MemoryInfo {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};

// One device. Every function may be called from any thread. Outlives what it made.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual DeviceKind kind() const noexcept = 0;
  [[nodiscard]] virtual DeviceIndex index() const noexcept = 0;
  // For people and logs: "separate host device 2".
  [[nodiscard]] virtual std::string name() const = 0;
  // Memory that can be allocated now.
  [[nodiscard]] virtual Result<MemoryInfo> memory_info() const = 0;

  // Exportable memory, touched and mapped; 1 to limits::kBucketBytesMax bytes. kResourceExhausted
  // when there is not enough.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> allocate(std::uint64_t bytes) = 0;
  // Host bytes as this device's own memory, without a copy; they outlive the result. Unified
  // devices only, kRefused on the others.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> alias_host(
      std::span<const std::byte> bytes) = 0;
  // Read-only mapping of memory that another process (or this one) exported. kInvalidInput for a
  // handle of another kind or size.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> import_memory(MemoryHandle handle) = 0;
  // Makes a host range ready for copies; a failed registration is a fallback, not an error.
  [[nodiscard]] virtual Result<std::unique_ptr<HostRegistration>> register_host(
      std::span<const std::byte> range) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> create_stream(StreamRole role) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Event>> create_event() = 0;

 protected:
  Device() = default;
};

struct DeviceOptions {
  DeviceKind kind = DeviceKind::kUnified;
  DeviceIndex index{};
};
// The one place that knows every backend. kRefused, with what is missing, for a kind that this
// build does not have.
[[nodiscard]] Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options);

}  // namespace wsync::device
