// A GPU as used by this process: its primary context, its kernels, and owners of the driver's
// objects.
//
// The primary context is also used by the CUDA runtime, frameworks and NCCL, so memory made by one
// of them is usable by all. This code only retains and releases the context and never resets it.
// All logical devices on one GPU share one Gpu.
//
// The driver keeps a stack of contexts per thread. A stream's worker is a thread of wsync and sets
// the context once. All other calls come on threads of other code, and their stack must be
// unchanged when the call returns (ContextGuard).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/device/cuda/driver.h"

namespace wsync::device::cuda {

class BatchTablePool;
class BounceRing;

// A reference to a GPU's primary context. Thread: any.
class Context {
 public:
  [[nodiscard]] static Result<std::shared_ptr<const Context>> retain(const Driver& cuda,
                                                                     CUdevice device);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  [[nodiscard]] const Driver& cuda() const noexcept { return cuda_; }
  [[nodiscard]] CUcontext handle() const noexcept { return handle_; }
  [[nodiscard]] CUdevice device() const noexcept { return device_; }

  // Abandons a GPU that does not complete its work. Any driver call that releases an object of this
  // context would wait for that work without end, so from now on nothing is released: owned objects
  // stay until the process ends. `why` is used in error messages; only the first one counts.
  void abandon(std::string why) const;
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_.load(); }
  // Whether a call that releases an object returns: not if this GPU is abandoned and, for a call
  // that waits for running kernels, not if a peer is, because it waits for those of peers, too.
  [[nodiscard]] bool release_returns(bool waits_for_kernels) const noexcept;
  // One context may have access to the memory of the other one from now on.
  static void make_peers(const std::shared_ptr<const Context>& one,
                         const std::shared_ptr<const Context>& other);
  // Returns the reason, or an empty string if the context is not abandoned.
  [[nodiscard]] std::string why_abandoned() const;

 private:
  Context(const Driver& cuda, CUdevice device, CUcontext handle) noexcept
      : cuda_(cuda), device_(device), handle_(handle) {}
  const Driver& cuda_;  // outlives everything made with it
  CUdevice device_;
  CUcontext handle_;
  mutable std::atomic<bool> abandoned_ = false;
  mutable std::atomic<bool> waits_without_end_ = false;
  mutable std::mutex mutex_;
  mutable std::string why_abandoned_;                        // guarded by the mutex
  mutable std::vector<std::weak_ptr<const Context>> peers_;  // guarded by the mutex
};

// Makes a context current for a scope, on one thread.
class ContextGuard {
 public:
  explicit ContextGuard(const Context& context) noexcept
      : context_(context), code_(context.cuda().cuCtxPushCurrent(context.handle())) {}
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  ~ContextGuard();
  // Returns success if the context is current.
  [[nodiscard]] Result<> entered() const {
    return check(context_.cuda(), code_, "the GPU's context cannot be made current");
  }

 private:
  const Context& context_;
  CUresult code_;
};

// Sole owner of one driver object. `Release` names the call that frees it, and says whether that
// waits for running kernels (README.md, "Host memory"). Thread: any.
template <class Handle, class Release>
class Owned {
 public:
  Owned() noexcept = default;
  Owned(std::shared_ptr<const Context> context, Handle handle) noexcept
      : context_(std::move(context)), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : context_(std::move(other.context_)), handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      context_ = std::move(other.context_);
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  ~Owned() { reset(); }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != Handle{}; }
  void reset() noexcept {
    if (handle_ == Handle{}) return;
    if (!context_->release_returns(Release::kWaits)) {
      handle_ = Handle{};
      return;
    }
    const ContextGuard guard(*context_);
    const Driver& cuda = context_->cuda();
    released(cuda, (cuda.*Release::kCall)(std::exchange(handle_, Handle{})), Release::kName);
  }

 private:
  std::shared_ptr<const Context> context_;
  Handle handle_{};
};

struct ReleaseStream {
  static constexpr auto kCall = &Driver::cuStreamDestroy;
  static constexpr const char* kName = "cuStreamDestroy";
  static constexpr bool kWaits = false;
};
struct ReleaseEvent {
  static constexpr auto kCall = &Driver::cuEventDestroy;
  static constexpr const char* kName = "cuEventDestroy";
  static constexpr bool kWaits = false;
};
struct ReleaseModule {
  static constexpr auto kCall = &Driver::cuModuleUnload;
  static constexpr const char* kName = "cuModuleUnload";
  static constexpr bool kWaits = false;
};
struct ReleaseMemory {
  static constexpr auto kCall = &Driver::cuMemFree;
  static constexpr const char* kName = "cuMemFree";
  static constexpr bool kWaits = true;
};
struct ReleasePinned {
  static constexpr auto kCall = &Driver::cuMemFreeHost;
  static constexpr const char* kName = "cuMemFreeHost";
  static constexpr bool kWaits = true;
};
struct ReleaseRegistered {
  static constexpr auto kCall = &Driver::cuMemHostUnregister;
  static constexpr const char* kName = "cuMemHostUnregister";
  static constexpr bool kWaits = true;
};
struct ReleaseHandle {
  static constexpr auto kCall = &Driver::cuMemRelease;
  static constexpr const char* kName = "cuMemRelease";
  static constexpr bool kWaits = false;
};
using OwnedStream = Owned<CUstream, ReleaseStream>;
using OwnedEvent = Owned<CUevent, ReleaseEvent>;
using OwnedModule = Owned<CUmodule, ReleaseModule>;
using OwnedMemory = Owned<CUdeviceptr, ReleaseMemory>;    // that no other process uses
using OwnedPinned = Owned<void*, ReleasePinned>;          // page-locked host memory
using OwnedRegistered = Owned<void*, ReleaseRegistered>;  // pinned host memory of another owner
using OwnedHandle = Owned<CUmemGenericAllocationHandle, ReleaseHandle>;  // of cuMemCreate

// Allocates `bytes` bytes of device memory that is not shared (mapped_memory.h has memory that is),
// or of pinned host memory. kResourceExhausted if there is not enough.
[[nodiscard]] Result<OwnedMemory> allocate_memory(const std::shared_ptr<const Context>& context,
                                                  std::uint64_t bytes);
[[nodiscard]] Result<OwnedPinned> allocate_pinned(const std::shared_ptr<const Context>& context,
                                                  std::uint64_t bytes);

// Loads the kernels that fit the context's GPU (choose_kernel_image). kRefused, with both compute
// capabilities or both CUDA releases: the GPU is older than all images, or the driver is too old to
// compile the PTX.
[[nodiscard]] Result<OwnedModule> load_kernels(const std::shared_ptr<const Context>& context);

// Returns the UUID as printed by the driver's tools: "GPU-", or "MIG-" for a part of a GPU, and 36
// characters. `name` distinguishes the two: for a MIG device the driver puts "MIG" and the size of
// the part into it.
[[nodiscard]] std::string uuid_text(const CUuuid& uuid, const std::string& name);

// Thread: any.
class Gpu {
 public:
  // Returns this process's object of the GPU. The first caller opens it; it is closed when the last
  // reference is released. kRefused if this process does not see the GPU, has abandoned it, or has
  // no kernels for it, or if the GPU cannot share memory with other processes.
  [[nodiscard]] static Result<std::shared_ptr<const Gpu>> open(const Driver& cuda,
                                                               std::uint32_t number);
  // Returns the GPU if this process has it open; otherwise null.
  [[nodiscard]] static std::shared_ptr<const Gpu> find(const Driver& cuda, std::uint32_t number);

  [[nodiscard]] const Driver& cuda() const noexcept { return context_->cuda(); }
  [[nodiscard]] const std::shared_ptr<const Context>& context() const noexcept { return context_; }
  // Number of the GPU among those that this process sees, as counted by the driver.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] const std::string& uuid() const noexcept { return uuid_; }
  // Returns "GPU 0 (NVIDIA H200)".
  [[nodiscard]] std::string name() const;
  // kRefused if this process has abandoned the GPU.
  [[nodiscard]] Result<> usable() const;
  [[nodiscard]] CUfunction copy_pieces() const noexcept { return copy_pieces_; }
  [[nodiscard]] CUfunction convert_pieces() const noexcept { return convert_pieces_; }
  [[nodiscard]] CUfunction change_words() const noexcept { return change_words_; }
  [[nodiscard]] std::uint32_t multiprocessors() const noexcept { return multiprocessors_; }
  // Returns the other open GPUs of this process that can use this GPU's memory directly.
  [[nodiscard]] std::vector<std::shared_ptr<const Gpu>> peers() const;
  // Returns true if the GPU can read registered host memory that this process has mapped read-only.
  [[nodiscard]] bool registers_read_only() const noexcept { return registers_read_only_; }
  // Makes the ring for memory that cannot be pinned, unless it exists.
  [[nodiscard]] Result<> make_bounce_ring() const;
  // Returns nullptr if it has not been made.
  [[nodiscard]] BounceRing* bounce_ring() const;
  // Tables of batches that no stream uses at present.
  [[nodiscard]] BatchTablePool& batch_tables() const noexcept { return *batch_tables_; }

 private:
  Gpu(std::shared_ptr<const Context> context, std::uint32_t number);
  [[nodiscard]] static Result<std::shared_ptr<Gpu>> make(const Driver& cuda, std::uint32_t number);
  [[nodiscard]] Result<> read_properties();
  [[nodiscard]] Result<> load_kernels();
  void add_peer(const std::shared_ptr<const Gpu>& peer) const;

  std::shared_ptr<const Context> context_;
  std::uint32_t number_;
  std::string model_;
  std::string uuid_;
  std::uint32_t multiprocessors_ = 0;
  bool registers_read_only_ = false;
  OwnedModule module_;
  CUfunction copy_pieces_ = nullptr;
  CUfunction convert_pieces_ = nullptr;
  CUfunction change_words_ = nullptr;
  const std::shared_ptr<BatchTablePool> batch_tables_;
  mutable std::mutex bounce_mutex_;
  mutable std::shared_ptr<BounceRing> bounce_ring_;  // guarded by the mutex; never replaced
  mutable std::mutex peers_mutex_;
  mutable std::vector<std::weak_ptr<const Gpu>> peers_;  // guarded by the mutex
};

// Returns the number of GPUs that this process sees.
[[nodiscard]] Result<std::uint32_t> gpu_count(const Driver& cuda);
// Returns an attribute; kIo with its number if the driver does not know it.
[[nodiscard]] Result<int> attribute(const Driver& cuda, CUdevice_attribute which, CUdevice device);
// Returns "NVIDIA H200".
[[nodiscard]] Result<std::string> model_name(const Driver& cuda, CUdevice device);
[[nodiscard]] Result<std::string> read_uuid(const Driver& cuda, CUdevice device);

}  // namespace wsync::device::cuda
