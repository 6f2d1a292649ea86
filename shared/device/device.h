// Devices hold the buffers of the weight pipeline. All backends share one interface. A backend is a
// folder with the same file names (memory, stream, device) and one line in make_device().
//
// Work is enqueued on streams. Work of one stream runs in order; streams run concurrently. A call
// that enqueues returns at once. If work fails later, the stream keeps the error: it skips the work
// that follows, events recorded after it fail, and status() returns the error. A failed stream must
// be replaced; it cannot be repaired.
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
#include "shared/base/float_formats.h"
#include "shared/base/kinds.h"
#include "shared/base/split_sum.h"
#include "shared/base/unique_fd.h"

namespace wsync::device {

// Index of a device among the devices of one sidecar.
enum class DeviceIndex : std::uint32_t {};

// Returns "unified", "separate" or "cuda".
[[nodiscard]] std::string_view device_kind_name(DeviceKind kind) noexcept;

// The data that another process needs to map a device's memory. Host: a sealed memfd. CUDA: a
// descriptor of the memory from the driver, and in `opaque` its size, its GPU's UUID and the
// exporting process. Sent over the engine link only.
struct MemoryHandle {
  DeviceKind kind = DeviceKind::kSeparate;
  std::uint64_t bytes = 0;
  UniqueFd fd;
  Bytes opaque;
};

// One allocation on a device, or a mapping of another process's allocation. The caller owns it. The
// Device must outlive it, and it must outlive the work that uses it.
class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Address as seen by the device. Host kinds: valid in this process. CUDA: the host never
  // dereferences it.
  [[nodiscard]] virtual std::byte* address() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const noexcept = 0;
  // Returns false for imported and aliased memory. Copies into such memory are refused.
  [[nodiscard]] virtual bool writable() const noexcept = 0;
  // Returns the bytes if the host can read them; otherwise (CUDA) an empty span.
  [[nodiscard]] virtual std::span<const std::byte> host_view() const noexcept = 0;
  // Returns a handle that another process can import. May be called several times. kRefused if the
  // memory is not an own allocation.
  [[nodiscard]] virtual Result<MemoryHandle> export_handle() const = 0;

 protected:
  Memory() = default;
};

// A range inside a device's memory.
struct Region {
  Memory* memory = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Rows of bytes that a batch copies, adds to a sum, or both. The rows are `from_stride` bytes apart
// in `from` and contiguous in `to`. Rows without gaps between them are one row.
struct Piece {
  static constexpr std::uint32_t kNoSum = ~std::uint32_t{0};
  Memory* to = nullptr;  // null: no copy
  std::uint64_t to_offset = 0;
  const Memory* from = nullptr;
  std::uint64_t from_offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t from_stride = 0;  // at least row_bytes if there are several rows
  // `sum` is the index of the batch's sum to which the bytes are added. Each row is a range of a
  // tensor: the first one lies at `place`, and every other one as far from it as in `from`. The
  // rows must end at `place.tensor_bytes` at the latest.
  std::uint32_t sum = kNoSum;
  RangePlace place = {};
  // Each element is converted while it is copied; what is added to a sum are the bytes before. With
  // a conversion, rows, their stride and the addresses on both sides are multiples of an element.
  FloatCast cast = {};

  [[nodiscard]] std::uint64_t bytes() const noexcept { return row_bytes * rows; }
  // The size of what is written.
  [[nodiscard]] std::uint64_t written_bytes() const noexcept { return cast.converted(bytes()); }
};

// Words of 64 bits of one tensor that a batch changes in place, within 256 KiB of the tensor: what
// a block of a patch touches of the part of the tensor that a memory holds. What is to be written,
// and where, lies in `from`, memory of the device: for each word its value, in 8 bytes with every
// byte at its place in the word, and two numbers of 32 bits, its head (ChangedWord, changed_word.h)
// and its place (where its first held byte lies, counted from `to_offset`; the other ones lie
// behind it). A word must not be named twice in a batch.
struct WordBlock {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  Memory* to = nullptr;
  std::uint64_t to_offset = 0;
  std::uint64_t to_bytes = 0;  // from to_offset on; every word lies in them
  const Memory* from = nullptr;
  std::uint64_t values_offset = 0;      // at a multiple of 8
  std::uint64_t heads_offset = kNone;   // kNone: dense, all bytes of words 0, 1, 2, ... are written
  std::uint64_t places_offset = kNone;  // kNone: word number n is at byte 8 * n
  std::uint32_t words = 0;
  std::uint32_t sum = 0;       // index of the batch's pair of sums
  std::uint64_t seed = 0;      // of the tensor
  std::uint64_t position = 0;  // of word number 0 in the tensor: a multiple of 8
};

// Rows of bytes at the same places of host memory and of a device's memory.
struct RowShape {
  std::uint64_t row_bytes = 0;  // at least 1
  std::uint64_t stride = 0;     // from row to row; at least row_bytes
};

// A point in a stream's work. It can be reused: each record() moves it. Thread: any.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Returns true if everything before the newest record() is complete, or if nothing was recorded.
  // Returns the stream's error if that work failed.
  [[nodiscard]] virtual Result<bool> query() const = 0;
  // Blocks until query() returns true. kDeadline if this takes longer than `deadline`.
  [[nodiscard]] virtual Result<> wait(TimePoint deadline) const = 0;

 protected:
  Event() = default;
};

// The purpose of a stream. A backend maps it to a priority.
enum class StreamRole : std::uint8_t { kHostToDevice, kBroadcast, kReload, kDeviceToHost };
// Returns "H2D stream", "broadcast stream", "reload stream" or "D2H stream".
[[nodiscard]] std::string_view stream_role_name(StreamRole role) noexcept;

// Called once with the result of the preceding work: success, the stream's error, or kCancelled if
// the stream was destroyed first. Runs on a thread of the backend. It must not block and must not
// call the device.
using StreamCallback = std::function<void(const Result<>&)>;

// The interface that work of a communicator uses while the stream executes it.
class StreamTurn {
 public:
  virtual ~StreamTurn() = default;
  StreamTurn(const StreamTurn&) = delete;
  StreamTurn& operator=(const StreamTurn&) = delete;

  // Requested when the stream is being destroyed. The work must then return soon.
  [[nodiscard]] virtual const std::stop_token& stop() const noexcept = 0;
  // Copies between two addresses that the stream's device can access (including a peer GPU's).
  // Returns when the bytes have arrived.
  [[nodiscard]] virtual Result<> copy(std::byte* to, const std::byte* from,
                                      std::uint64_t bytes) = 0;

 protected:
  StreamTurn() = default;
};
using StreamWork = std::function<Result<>(StreamTurn& turn)>;

// An ordered queue of asynchronous work on one device. Every function may be called from any
// thread; work runs in the order of the calls. Destroying a stream cancels work that has not
// started, notifies its callbacks, and waits for running work.
//
// A process that has imported memory reads there what the owner's stream had written before
// notify() called back or an event completed, if it learns of that by a message. On every kind of
// device, the host has then seen the end of the work, so work that is enqueued after the message
// arrived sees the bytes. Nothing else orders the work of two processes.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Copies from host to device. `source` must stay valid until the copy is complete; to.bytes ==
  // source.size().
  [[nodiscard]] virtual Result<> copy_to_device(const Region& to,
                                                std::span<const std::byte> source) = 0;
  // Copies rows from host to device: the first one begins where `source` and `to` begin, the last
  // one ends where they end. What lies between the rows may be copied too. to.bytes ==
  // source.size(), and `source` must stay valid until the copy is complete. kInvalidInput for a
  // size that such rows do not have.
  [[nodiscard]] virtual Result<> copy_rows_to_device(const Region& to,
                                                     std::span<const std::byte> source,
                                                     const RowShape& rows) = 0;
  // Copies from device to host. `to` must stay valid until the copy is complete; from.bytes ==
  // to.size().
  [[nodiscard]] virtual Result<> copy_to_host(std::span<std::byte> to, const Region& from) = 0;
  // Copies between memories of this process's devices of the same kind. The sizes must be equal.
  [[nodiscard]] virtual Result<> copy_on_device(const Region& to, const Region& from) = 0;
  // Executes one batch: all pieces in one launch (GPU) or one pass (host). When the work is
  // complete, each element of `sums` is the SplitSum of its pieces' rows; `sums` must stay valid
  // until then. `from` and `to` of one batch must not overlap. kInvalidInput for rows outside their
  // memory or their tensor, for an invalid sum index, or for elements that cannot be converted.
  [[nodiscard]] virtual Result<> copy_pieces(std::span<const Piece> pieces,
                                             std::span<SplitSum> sums) = 0;
  // Executes one batch: all blocks in one launch (GPU) or one pass (host). Each word is read,
  // written, and read again. When the work is complete, sums[2 * i] is the SplitSum of the words
  // with sum index i as they were, and sums[2 * i + 1] that of the same words as they are; `sums`
  // must stay valid until then. kInvalidInput for memory of another size or kind, or for an invalid
  // sum index. The heads and places lie in the device's memory and are not checked.
  [[nodiscard]] virtual Result<> change_words(std::span<const WordBlock> blocks,
                                              std::span<SplitSum> sums) = 0;
  // For communicators: executes `work` in this stream's order, on a thread of the stream. Work
  // enqueued before is complete when it starts. An error of `work` becomes the stream's error.
  [[nodiscard]] virtual Result<> run(StreamWork work) = 0;
  // Makes `event` represent all work enqueued so far. The event must be of the same device kind.
  [[nodiscard]] virtual Result<> record(Event& event) = 0;
  // Makes later work of this stream wait for the event's newest record, on any stream.
  [[nodiscard]] virtual Result<> wait(const Event& event) = 0;
  // Calls back after all work enqueued so far.
  [[nodiscard]] virtual Result<> notify(StreamCallback callback) = 0;
  // Returns the first error of the stream's work, including errors that no callback reported.
  [[nodiscard]] virtual Result<> status() const = 0;

 protected:
  Stream() = default;
};

// Host memory prepared for direct copies: pinned (CUDA), or with all pages mapped (host). The
// destructor undoes it. The range must outlive the registration.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;
  // Returns false if the backend fell back to unregistered copies. fallback() returns the reason.
  [[nodiscard]] virtual bool registered() const noexcept = 0;
  [[nodiscard]] virtual std::string_view fallback() const noexcept = 0;

 protected:
  HostRegistration() = default;
};

// GPU memory is allocated in whole blocks of this size, the granularity of the driver on every GPU
// that it runs on. Other GPUs are refused (make_device).
inline constexpr std::uint64_t kGpuBlockBytes = std::uint64_t{2} << 20U;
// Returns the size of the blocks that `bytes` bytes of GPU memory take.
[[nodiscard]] constexpr std::uint64_t whole_blocks(std::uint64_t bytes) noexcept {
  return (bytes + kGpuBlockBytes - 1) / kGpuBlockBytes * kGpuBlockBytes;
}

struct MemoryInfo {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};

// One device. Every function may be called from any thread. The device must outlive everything that
// it made.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual DeviceKind kind() const noexcept = 0;
  [[nodiscard]] virtual DeviceIndex index() const noexcept = 0;
  // Name for people and logs: "separate host device 2", "GPU 0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string name() const = 0;
  // UUID of the GPU as printed by the driver's tools: "GPU-" and 36 characters. Devices with the
  // same UUID share a GPU. Empty for host devices.
  [[nodiscard]] virtual std::string uuid() const = 0;
  // Returns the memory that can be allocated now.
  [[nodiscard]] virtual Result<MemoryInfo> memory_info() const = 0;

  // Allocates exportable memory, with all pages touched and mapped; 1 to limits::kBucketBytesMax
  // bytes. kResourceExhausted if there is not enough memory.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> allocate(std::uint64_t bytes) = 0;
  // Uses host bytes as this device's own memory, without a copy. The bytes must outlive the result.
  // Unified devices only; kRefused on others.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> alias_host(
      std::span<const std::byte> bytes) = 0;
  // Wraps memory of this process that another component allocated on this device (an engine's
  // weights), for writing. The memory must outlive the result. It cannot be exported. CUDA:
  // kInvalidInput unless the range lies inside one allocation of this GPU.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> borrow(std::span<std::byte> range) = 0;
  // Maps memory that another process (or this one) exported, read-only. kInvalidInput for a handle
  // of another kind, size or GPU, or without a descriptor of such memory; kPeerLost if this process
  // exported the memory and has freed it. The memory exists as long as the exporter, a descriptor
  // or an importer refers to it, so the exporter may free it, or end, at any time.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> import_memory(MemoryHandle handle) = 0;
  // Prepares a host range for copies. A failed registration leads to a fallback, not to an error.
  [[nodiscard]] virtual Result<std::unique_ptr<HostRegistration>> register_host(
      std::span<const std::byte> range) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> create_stream(StreamRole role) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Event>> create_event() = 0;
  // Waits until the work is complete that other code of this process has submitted so far to a
  // stream of its own. `native`, CUDA: a CUstream of the GPU's primary context, as a number; 1 is
  // the legacy default stream, 2 the default stream of the calling thread. Errors are those of that
  // work; kDeadline if it is not complete at `deadline`. Host devices have none: kInvalidInput.
  [[nodiscard]] virtual Result<> await_stream(std::uintptr_t native, TimePoint deadline) = 0;
  // Frees memory that streams which have ended have left for those to come. It waits for the
  // kernels that run on the GPU and its peers, so no run of the pipeline may be on (memory_gate.h).
  virtual void free_unused() noexcept = 0;

 protected:
  Device() = default;
};

struct DeviceOptions {
  DeviceKind kind = DeviceKind::kUnified;
  DeviceIndex index{};
  // kCuda: number of the GPU among those that this process sees (CUDA_VISIBLE_DEVICES), as counted
  // by the driver. Several devices may share one.
  std::uint32_t gpu = 0;
};
// The only function that knows every backend. kCuda is loaded at run time (cuda_library.h).
// kRefused, naming what is missing, without the library, a driver or that GPU, and for a GPU that
// cannot share its memory with other processes.
[[nodiscard]] Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options);

}  // namespace wsync::device
