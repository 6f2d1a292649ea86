// A table of NCCL's functions that does what a test says, on host devices: what NCCL reports, and
// when, without a GPU. It moves no bytes.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shared/base/format.h"
#include "shared/broadcast/nccl/communicator.h"
#include "shared/broadcast/nccl/handle.h"
#include "shared/broadcast/nccl/library.h"

namespace wsync::collective::nccl {

// One at a time: NCCL's functions carry no context.
class ScriptedNccl {
 public:
  struct Rank {
    ncclResult_t init = ncclInProgress;     // what ncclCommInitRankConfig returns
    ncclResult_t joined = ncclSuccess;      // what the rendezvous comes to
    ncclResult_t enqueue = ncclSuccess;     // what enqueuing a broadcast comes to
    ncclResult_t running = ncclSuccess;     // asynchronous error, once a broadcast is enqueued
    ncclResult_t idle_error = ncclSuccess;  // asynchronous error between broadcasts
    ncclResult_t finalize = ncclSuccess;    // what leaving comes to
    bool completes = true;                  // the stream, once a broadcast is enqueued
    bool never_ends = false;                // destroy and abort, until let_end()
  };

  ScriptedNccl() { current() = this; }
  ~ScriptedNccl() { current() = nullptr; }
  ScriptedNccl(const ScriptedNccl&) = delete;
  ScriptedNccl& operator=(const ScriptedNccl&) = delete;

  // To be set before what it is about, or under change().
  Rank& rank(std::uint32_t number) { return script_[number]; }
  template <class Change>
  void change(Change change) {
    const std::lock_guard lock(mutex_);
    change();
  }

  [[nodiscard]] Nccl table() const {
    Nccl nccl;
    nccl.path = "scripted";
    nccl.version = 22707;
    nccl.ncclGetVersion = [](int* version) {
      *version = 22707;
      return ncclSuccess;
    };
    nccl.ncclGetErrorString = [](ncclResult_t code) {
      return code == ncclRemoteError ? "remote error" : "some error";
    };
    nccl.ncclGetLastError = [](ncclComm_t) { return "its last words"; };
    nccl.ncclGetUniqueId = [](ncclUniqueId* id) {
      *id = {};
      id->internal[0] = 'u';
      return ncclSuccess;
    };
    nccl.ncclCommInitRankConfig = [](ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                     ncclConfig_t* config) {
      return current()->init(made, size, id, rank, *config);
    };
    nccl.ncclCommGetAsyncError = [](ncclComm_t key, ncclResult_t* error) {
      return current()->async_error(key, *error);
    };
    nccl.ncclBroadcast = [](const void* from, void* to, size_t bytes, ncclDataType_t type, int root,
                            ncclComm_t key, cudaStream_t stream) {
      EXPECT_EQ(type, ncclUint8);
      return current()->broadcast(key, {from, to, bytes, static_cast<std::uint32_t>(root), stream});
    };
    nccl.ncclCommFinalize = [](ncclComm_t key) { return current()->finalize(key); };
    nccl.ncclCommDestroy = [](ncclComm_t key) { return current()->end(key, "destroy"); };
    nccl.ncclCommAbort = [](ncclComm_t key) { return current()->end(key, "abort"); };
    return nccl;
  }
  // For streams of host devices.
  [[nodiscard]] Hardware hardware() {
    return {.native = [](device::Stream& stream) -> Result<void*> { return &stream; },
            .idle = [this](void* stream) { return idle(stream); },
            .gpu = [](const device::Device& device) -> Result<std::string> {
              return fmt::format("GPU-{}", static_cast<std::uint32_t>(device.index()));
            },
            .of = [this](device::Stream&) -> Gpu {
              return {.enter = [this] { ++entered; },
                      .abandoned = [this] { return gpu_hangs.load(); },
                      .abandon = [this](const std::string&) { ++abandoned; }};
            }};
  }

  // "init 0", "broadcast 1", "finalize 0", "destroy 0", "abort 1", in their order.
  [[nodiscard]] std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  [[nodiscard]] std::size_t count(const std::string& call) const {
    const auto all = calls();
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), call));
  }
  void wait_for(const std::string& call) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::count(calls_.begin(), calls_.end(), call) > 0; });
  }
  [[nodiscard]] Handle::Transfer transfer(std::uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    return transfers_.at(rank);
  }
  // Communicators that were neither destroyed nor aborted.
  [[nodiscard]] std::size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }
  // Lets what never ends come to its end, and waits for it.
  void let_end() {
    std::unique_lock lock(mutex_);
    for (auto& [rank, script] : script_) script.never_ends = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return ending_ == 0; });
  }
  std::atomic<bool> gpu_hangs = false;
  std::atomic<std::uint32_t> entered = 0;    // threads that made a GPU current
  std::atomic<std::uint32_t> abandoned = 0;  // GPUs

 private:
  enum class Doing : std::uint8_t { kJoining, kNothing, kEnqueuing, kRunning, kFinalizing };
  struct Live {
    std::uint32_t rank = 0;
    Doing doing = Doing::kJoining;
    std::uint32_t questions = 2;
  };

  static ScriptedNccl*& current() {
    static ScriptedNccl* one = nullptr;
    return one;
  }
  void note(const char* what, std::uint32_t rank) {
    calls_.push_back(fmt::format("{} {}", what, rank));
    changed_.notify_all();
  }
  Live& at(ncclComm_t key) {
    EXPECT_TRUE(live_.contains(key)) << "a communicator that is gone is used";
    return live_[key];
  }

  ncclResult_t init(ncclComm_t* made, int size, const ncclUniqueId& id, int rank,
                    const ncclConfig_t& config) {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(config.blocking, 0);
    EXPECT_EQ(id.internal[0], 'u');
    EXPECT_LT(rank, size);
    const auto number = static_cast<std::uint32_t>(rank);
    note("init", number);
    *made = nullptr;
    const ncclResult_t result = script_[number].init;
    if (result != ncclInProgress && result != ncclSuccess) return result;
    *made = reinterpret_cast<ncclComm_t>(next_ += 64);
    live_[*made].rank = number;
    return result;
  }
  ncclResult_t async_error(ncclComm_t key, ncclResult_t& error) {
    const std::lock_guard lock(mutex_);
    Live& live = at(key);
    const Rank& script = script_[live.rank];
    error = ncclInProgress;
    if (live.questions > 0) {
      --live.questions;
      return ncclSuccess;
    }
    switch (live.doing) {
      case Doing::kJoining:
        error = script.joined;
        if (error == ncclSuccess) live.doing = Doing::kNothing;
        break;
      case Doing::kNothing:
        error = script.idle_error;
        break;
      case Doing::kEnqueuing:
        error = script.enqueue;
        if (error == ncclSuccess) live.doing = Doing::kRunning;
        break;
      case Doing::kRunning:
        error = script.running;
        break;
      case Doing::kFinalizing:
        error = script.finalize;
        break;
    }
    return ncclSuccess;
  }
  ncclResult_t broadcast(ncclComm_t key, const Handle::Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    Live& live = at(key);
    EXPECT_TRUE(live.doing == Doing::kNothing || live.doing == Doing::kRunning);
    live.doing = Doing::kEnqueuing;
    live.questions = 2;
    transfers_[live.rank] = transfer;
    note("broadcast", live.rank);
    return ncclInProgress;
  }
  ncclResult_t finalize(ncclComm_t key) {
    const std::lock_guard lock(mutex_);
    Live& live = at(key);
    live.doing = Doing::kFinalizing;
    note("finalize", live.rank);
    return ncclInProgress;
  }
  ncclResult_t end(ncclComm_t key, const char* how) {
    std::unique_lock lock(mutex_);
    const std::uint32_t rank = at(key).rank;
    note(how, rank);
    ++ending_;
    changed_.wait(lock, [&] { return !script_[rank].never_ends; });
    live_.erase(key);
    --ending_;
    changed_.notify_all();
    return ncclSuccess;
  }
  // The stream is its own handle; the rank is found by the newest broadcast on it.
  Result<bool> idle(void* stream) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, live] : live_) {
      const auto transfer = transfers_.find(live.rank);
      if (transfer == transfers_.end() || transfer->second.stream != stream) continue;
      EXPECT_NE(live.doing, Doing::kEnqueuing) << "the stream was asked before the enqueuing ended";
      return script_[live.rank].completes;
    }
    return true;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Rank> script_;
  std::map<ncclComm_t, Live> live_;
  std::map<std::uint32_t, Handle::Transfer> transfers_;
  std::vector<std::string> calls_;
  std::uintptr_t next_ = 0;
  std::uint32_t ending_ = 0;
};

}  // namespace wsync::collective::nccl
