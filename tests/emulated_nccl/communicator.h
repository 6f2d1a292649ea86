// One emulated communicator: what ncclComm_t points to. Its functions are those of nccl.h without
// the prefix; nccl.cc checks who calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated_nccl/driver.h"
#include "tests/emulated_nccl/rendezvous.h"

namespace emulated_nccl {

// What the environment asks to go wrong (README.md).
struct Fault {
  enum class Kind : std::uint8_t { kInit, kAsync, kHang, kAbort };
  Kind kind{};
  std::uint32_t broadcast = 0;  // the how manyth of a communicator, from 1
  std::optional<std::uint32_t> rank;
};
std::vector<Fault> faults_of_environment();

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(std::uint32_t rank, std::uint32_t size, CUdevice device)
      : rank_(rank), size_(size), device_(device) {}
  ~Communicator();

  ncclResult_t init(const ncclUniqueId& id);
  // ncclInProgress for some calls after each of the others.
  ncclResult_t async_error();
  struct Transfer {
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    std::uint32_t root = 0;
    CUstream stream = nullptr;
  };
  ncclResult_t broadcast(const Transfer& transfer);
  ncclResult_t finalize();
  // False when finalize() is not over.
  bool finalized() const;
  // Does not come back while the environment asks for that.
  void abort();

  std::string who() const;
  CUdevice device() const { return device_; }
  std::uint32_t size() const { return size_; }
  // Of the unique id that its ranks met by.
  const std::string& group() const { return group_; }
  std::atomic<bool> entered = false;     // a thread is in one of its functions
  std::atomic<bool> given_back = false;  // ncclCommAbort has been called

 private:
  struct Work;
  static CUresult run(void* work);
  static void skip(void* work);
  CUresult execute(const Work& work);
  CUresult move(std::byte* from, std::byte* to, const Transfer& transfer);
  bool wait_for(const std::atomic<std::uint64_t>& counter, std::uint64_t value) const;
  bool interrupted() const;
  bool faulty(Fault::Kind kind) const;
  void work_is_over();
  ncclResult_t enqueue();

  const std::uint32_t rank_;
  const std::uint32_t size_;
  const CUdevice device_;
  std::string group_;
  std::thread init_;
  std::atomic<bool> abort_ = false;
  std::atomic<ncclResult_t> met_ = ncclInProgress;
  Segment* segment_ = nullptr;  // set before met_ is
  // ---- of the one thread that may be in it ----
  enum class State : std::uint8_t { kJoining, kIdle, kEnqueuing, kFinalizing, kFinalized, kFailed };
  State state_ = State::kJoining;
  ncclResult_t failed_ = ncclSuccess;
  std::uint32_t questions_ = 0;  // to be answered with ncclInProgress
  std::uint32_t broadcasts_ = 0;
  Transfer transfer_;
  // ---- of streams ----
  std::atomic<std::uint32_t> in_flight_ = 0;
  std::atomic<ncclResult_t> stream_error_ = ncclSuccess;
  std::uint64_t chunk_ = 0;  // newest; broadcasts of one communicator run one after the other
};

}  // namespace emulated_nccl
