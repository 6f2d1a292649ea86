// What the emulated driver remembers: contexts, memory, streams, events and modules of this
// process, under one mutex. Handles are numbers that are never given out twice and no addresses, so
// that what was destroyed is known when it is used again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "tests/emulated_cuda/emulated_cuda.h"
#include "tests/emulated_cuda/settings.h"

namespace emulated_cuda {

class Stream;
struct EventState;

// Compute capability of every emulated GPU.
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;

struct Context {
  std::uint64_t id = 0;
  int device = 0;
  std::atomic<int> error = CUDA_SUCCESS;  // sticky: every later call returns it
  std::set<std::uint64_t> peers;          // contexts whose memory its kernels reach
};

// What queued work can be using. Freed while that is so, it is an error of the program.
struct Usable {
  std::atomic<int> in_use = 0;
  virtual ~Usable() = default;
};

// Marks something as used for as long as it lives.
class Hold {
 public:
  explicit Hold(std::shared_ptr<Usable> what) : what_(std::move(what)) {
    if (what_) ++what_->in_use;
  }
  ~Hold() {
    if (what_) --what_->in_use;
  }
  Hold(Hold&& other) noexcept : what_(std::move(other.what_)) { other.what_ = nullptr; }
  Hold& operator=(Hold&&) = delete;

 private:
  std::shared_ptr<Usable> what_;
};

// The first page of the memfd behind an allocation: by it another process knows a descriptor.
struct SharedPage {
  static constexpr std::size_t kBytes = 4096;
  static constexpr std::uint64_t kMagic = 0x6375'6465'6d75'6c65;
  std::uint64_t magic = kMagic;
  std::uint64_t bytes = 0;
  unsigned char gpu[16] = {};  // UUID of the GPU
};
static_assert(sizeof(SharedPage) <= SharedPage::kBytes);

// A mapped memfd: the shared page, and the bytes behind it. They are there as long as a Storage or
// a descriptor of any process refers to them.
class Storage : public Usable {
 public:
  ~Storage() override;
  // A new memfd of that many bytes, on GPU `number` of the machine; null when there is no memory.
  static std::shared_ptr<Storage> create(int number, std::uint64_t bytes);
  // The one that a descriptor refers to, which stays the caller's; null when that is no memory of
  // an emulated GPU.
  static std::shared_ptr<Storage> open(int fd);

  [[nodiscard]] SharedPage& page() const { return *static_cast<SharedPage*>(base_); }
  [[nodiscard]] std::byte* bytes() const {
    return static_cast<std::byte*>(base_) + SharedPage::kBytes;
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  Storage(int fd, void* base, std::size_t mapped) : fd_(fd), base_(base), mapped_(mapped) {}
  int fd_;
  void* base_;
  std::size_t mapped_;
};

// Memory of a GPU that this process is charged for, until nothing of the process refers to it.
struct Charge {
  Charge(int gpu, std::uint64_t count) : number(gpu), bytes(count) {}
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge();
  int number;
  std::uint64_t bytes;
};

// Memory of cuMemCreate or cuMemImportFromShareableHandle, as its handle names it.
struct Physical {
  std::shared_ptr<Storage> storage;
  std::shared_ptr<Charge> charge;  // null: of another process
  int device = 0;
  bool has_descriptors = false;
};

enum class Access : std::uint8_t { kNone, kRead, kReadWrite };

// One mapping of such memory, which queued work uses.
struct Mapping : Usable {
  Mapping(std::shared_ptr<Storage> memory, std::shared_ptr<Charge> cost)
      : storage(std::move(memory)), charge(std::move(cost)) {}
  std::shared_ptr<Storage> storage;
  std::shared_ptr<Charge> charge;
  std::map<int, Access> access;  // of devices; nobody has any at first
};

// Addresses of cuMemAddressReserve.
struct Reservation {
  std::uint64_t bytes = 0;
  bool freed = false;  // the addresses are not used again
};

// Device memory as the program sees it: addresses behind which nothing can be read.
struct Block {
  std::uint64_t id = 0;
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
  int device = 0;
  std::uint64_t context = 0;           // 0: of no context, because it was mapped
  std::shared_ptr<Storage> storage;    // null once it is freed or unmapped
  std::shared_ptr<Mapping> mapping{};  // of memory that was mapped; null: of cuMemAlloc
  bool was_mapped = false;
  [[nodiscard]] std::shared_ptr<Usable> usable() const {
    return mapping != nullptr ? std::shared_ptr<Usable>(mapping) : storage;
  }
};

// Pinned host memory.
struct HostRange : Usable {
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
  bool allocated = false;  // by cuMemAllocHost, else registered
  bool read_only = false;
  std::uint64_t context = 0;
};

struct Module {
  std::uint64_t context = 0;
};
struct Function {
  std::uint64_t module = 0;
  int kernel = 0;  // index in kernels()
};

struct State {
  std::mutex mutex;
  std::shared_mutex launches;  // shared by what enqueues; taken before `mutex`
  int process = 0;
  bool initialized = false;
  std::uint64_t next_id = 1;
  std::vector<std::shared_ptr<Context>> primary;  // of each device; null: nobody retains it
  std::vector<int> retained;
  std::map<std::uint64_t, std::shared_ptr<Context>> contexts;
  std::map<std::uint64_t, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> draining;  // destroyed, with work left
  std::map<std::uint64_t, std::shared_ptr<EventState>> events;
  std::map<std::uint64_t, Module> modules;
  std::map<std::uint64_t, Function> functions;
  std::map<CUdeviceptr, Block> blocks;         // freed ones too
  std::map<std::uint64_t, Physical> physical;  // by the number of the handle
  std::map<CUdeviceptr, Reservation> reservations;
  std::map<std::uintptr_t, std::shared_ptr<HostRange>> pinned;
  std::atomic<bool> stopping = false;
};
// Never destroyed.
[[nodiscard]] State& state();

// ---- handles ----

enum class HandleKind : std::uint64_t {
  kContext = 1,
  kStream,
  kEvent,
  kModule,
  kFunction,
  kMemory  // CUmemGenericAllocationHandle, which is a number
};

// No address of a process on x86-64 or AArch64 begins like this.
constexpr std::uint64_t handle_bits(HandleKind kind) {
  return (0xE0U + static_cast<std::uint64_t>(kind)) << 48U;
}
template <class Handle>
Handle make_handle(HandleKind kind, std::uint64_t id) {
  return reinterpret_cast<Handle>(handle_bits(kind) | (id << 4U));
}
// 0 for what is no handle of that kind.
template <class Handle>
std::uint64_t id_of(HandleKind kind, Handle handle) {
  const auto bits = reinterpret_cast<std::uint64_t>(handle);
  return (bits & ~((std::uint64_t{1} << 48U) - 1)) == handle_bits(kind)
             ? (bits & ((std::uint64_t{1} << 48U) - 1)) >> 4U
             : 0;
}

}  // namespace emulated_cuda
