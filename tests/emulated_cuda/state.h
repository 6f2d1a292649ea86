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
#include <string>
#include <vector>

#include "tests/emulated_cuda/emulated_cuda.h"
#include "tests/emulated_cuda/settings.h"

namespace emulated_cuda {

class Stream;
struct EventState;

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

// The first page of the memfd behind an allocation or an interprocess event: what processes share.
struct SharedPage {
  static constexpr std::size_t kBytes = 4096;
  static constexpr int kMaxImporters = 64;
  std::uint64_t id = 0;
  std::uint64_t random = 0;
  std::uint64_t bytes = 0;
  std::atomic<std::uint32_t> freed = 0;         // by its owner
  std::atomic<int> importers[kMaxImporters]{};  // processes that have it mapped
  std::atomic<std::uint64_t> recorded = 0;      // of an event: as in EventState
  std::atomic<std::uint64_t> completed = 0;
};
static_assert(sizeof(SharedPage) <= SharedPage::kBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A mapped memfd: the shared page, and the bytes behind it.
class Storage : public Usable {
 public:
  ~Storage() override;
  // A new memfd of that many bytes; null when there is no memory.
  static std::shared_ptr<Storage> create(std::uint64_t id, std::uint64_t bytes);
  // Another process's, of which `fd` is taken over; null when it cannot be mapped, or is not the
  // one with this id and random number.
  static std::shared_ptr<Storage> open(int fd, std::uint64_t id, std::uint64_t random);

  [[nodiscard]] SharedPage& page() const { return *static_cast<SharedPage*>(base_); }
  [[nodiscard]] std::byte* bytes() const {
    return static_cast<std::byte*>(base_) + SharedPage::kBytes;
  }
  [[nodiscard]] int fd() const { return fd_; }
  // Notes that this process has it mapped, or no longer has.
  void import(bool mapped);
  // Living processes that have it mapped.
  [[nodiscard]] int importers() const;

 private:
  Storage(int fd, void* base, std::size_t mapped) : fd_(fd), base_(base), mapped_(mapped) {}
  int fd_;
  void* base_;
  std::size_t mapped_;
};

// Device memory as the program sees it: addresses behind which nothing can be read.
struct Block {
  std::uint64_t id = 0;
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
  int device = 0;
  std::uint64_t context = 0;
  std::shared_ptr<Storage> storage;  // null once it is freed; the addresses are not used again
  int opens = 0;                     // imported: how often; 0: an own allocation
  bool was_imported = false;
  int exporter = 0;
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
  std::map<CUdeviceptr, Block> blocks;  // freed ones too
  std::map<std::uintptr_t, std::shared_ptr<HostRange>> pinned;
  std::atomic<bool> stopping = false;
};
// Never destroyed.
[[nodiscard]] State& state();

// ---- handles ----

enum class HandleKind : std::uint64_t { kContext = 1, kStream, kEvent, kModule, kFunction };

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
