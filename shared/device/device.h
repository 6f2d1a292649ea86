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
#include <stop_token>
#include <string>
#include <string_view>

#include "shared/base/bytes.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/unique_fd.h"
#include "shared/device/piece_digest.h"

namespace wsync::device {

// Index of a device among those that one sidecar drives.
enum class DeviceIndex : std::uint32_t {};

// "unified", "separate" or "cuda".
[[nodiscard]] std::string_view device_kind_name(DeviceKind kind) noexcept;

// What another process needs to map a device's memory. Host: a sealed memfd. CUDA: the IPC handles
// of the memory and of the event behind Stream::publish(), with the GPU's UUID and the exporting
// process. Travels over the engine link only.
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

// Rows of bytes that a batch copies, adds to a digest, or both. They lie `from_stride` bytes apart
// in `from`, and one behind the other in `to`.
struct Piece {
  static constexpr std::uint32_t kNoSum = ~std::uint32_t{0};
  Memory* to = nullptr;  // null: nothing is copied
  std::uint64_t to_offset = 0;
  const Memory* from = nullptr;
  std::uint64_t from_offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t from_stride = 0;  // at least row_bytes where there are several rows
  // Which of the batch's sums the bytes count into, as they lie in `to` (or would lie there), and
  // where in what is digested they begin: a multiple of kDigestGranule. Only the piece at the end
  // of what is digested may have a size that is no multiple of it.
  std::uint32_t sum = kNoSum;
  std::uint64_t position = 0;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return row_bytes * rows; }
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
// "H2D stream", "broadcast stream" or "reload stream".
[[nodiscard]] std::string_view stream_role_name(StreamRole role) noexcept;

// Told once how the work before it ended: success, the stream's error, or kCancelled when the
// stream was destroyed first. Runs on a thread of the backend: it must not block, nor call the
// device.
using StreamCallback = std::function<void(const Result<>&)>;

// What work of a communicator finds when its stream's turn comes to it.
class StreamTurn {
 public:
  virtual ~StreamTurn() = default;
  StreamTurn(const StreamTurn&) = delete;
  StreamTurn& operator=(const StreamTurn&) = delete;

  // Requested when the stream is being destroyed: the work then returns soon.
  [[nodiscard]] virtual const std::stop_token& stop() const noexcept = 0;
  // Copies between two addresses that the stream's device can reach (another GPU's, where they are
  // peers) and returns when the bytes are there.
  [[nodiscard]] virtual Result<> copy(std::byte* to, const std::byte* from,
                                      std::uint64_t bytes) = 0;

 protected:
  StreamTurn() = default;
};
using StreamWork = std::function<Result<>(StreamTurn& turn)>;

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
  // One batch: all pieces in one launch (a GPU) or one pass (the host). `sums` is set when the work
  // is complete, each to the sum of its pieces, to be given to finish_digest(); it stays valid
  // until then. kInvalidInput for rows outside their memory and a sum that is not there; `from` and
  // `to` of one batch do not overlap.
  [[nodiscard]] virtual Result<> copy_pieces(std::span<const Piece> pieces,
                                             std::span<PieceDigest> sums) = 0;
  // Readers of `memory`, an own allocation, in other processes are ordered behind the work enqueued
  // so far, once they acquire() it. Host devices: the message that tells of the bytes does that.
  [[nodiscard]] virtual Result<> publish(Memory& memory) = 0;
  // The importer's side: later work of this stream begins after what the owner published last.
  [[nodiscard]] virtual Result<> acquire(const Memory& memory) = 0;
  // For communicators: `work` in this stream's order, on a thread of the stream. What was enqueued
  // before is complete when it begins; its error is the stream's.
  [[nodiscard]] virtual Result<> run(StreamWork work) = 0;
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
  // For people and logs: "separate host device 2", "GPU 0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string name() const = 0;
  // Of the GPU, as the driver's tools print it: "GPU-" and 36 characters. Two devices with the same
  // one share a GPU. Empty for host devices.
  [[nodiscard]] virtual std::string uuid() const = 0;
  // Memory that can be allocated now.
  [[nodiscard]] virtual Result<MemoryInfo> memory_info() const = 0;

  // Exportable memory, touched and mapped; 1 to limits::kBucketBytesMax bytes. kResourceExhausted
  // when there is not enough.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> allocate(std::uint64_t bytes) = 0;
  // Host bytes as this device's own memory, without a copy; they outlive the result. Unified
  // devices only, kRefused on the others.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> alias_host(
      std::span<const std::byte> bytes) = 0;
  // Memory of this process that somebody else allocated on this device (an engine's weights), to be
  // written to; it outlives the result. Not exportable. CUDA: kInvalidInput when the range is not
  // whole inside one allocation of this GPU.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> borrow(std::span<std::byte> range) = 0;
  // Read-only mapping of memory that another process (or this one) exported. kInvalidInput for a
  // handle of another kind, size or GPU; kPeerLost where the memory is gone. CUDA: the exporter
  // keeps its memory until the importers in other processes are gone.
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
  // kCuda: the GPU, as the driver numbers those that this process sees (CUDA_VISIBLE_DEVICES).
  // Several devices may share one.
  std::uint32_t gpu = 0;
};
// The one place that knows every backend. kCuda is loaded at run time (cuda_library.h): kRefused,
// with what is missing, without it, without a driver or without that GPU.
[[nodiscard]] Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options);

}  // namespace wsync::device
