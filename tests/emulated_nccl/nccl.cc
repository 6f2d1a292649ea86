// The functions of nccl.h that are there, and who may call them.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <string>
#include <vector>

#include "tests/emulated_nccl/communicator.h"

namespace emulated_nccl {
namespace {

thread_local std::string last_error;

struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Communicator>> live;
};
Registry& registry() {
  static Registry& one = *new Registry;
  return one;
}

ncclResult_t refused(const std::string& what) {
  last_error = what;
  if (driver() != nullptr) driver()->report(what.c_str());
  return ncclInvalidArgument;
}

// At exit, while the emulated driver still takes reports.
void look_for_leaks() {
  std::map<ncclComm_t, std::shared_ptr<Communicator>> left;
  {
    const std::lock_guard lock(registry().mutex);
    left.swap(registry().live);
  }
  for (const auto& [key, communicator] : left) {
    if (communicator->given_back) continue;
    communicator->abort();
    driver()->report((communicator->who() + ": an NCCL communicator was neither destroyed nor "
                                            "aborted")
                         .c_str());
  }
  stop_listening();
}

// One call on a communicator. Nothing is called when it is not live, or another thread is in it.
class Call {
 public:
  Call(ncclComm_t key, const char* name) {
    const std::lock_guard lock(registry().mutex);
    const auto at = registry().live.find(key);
    if (at == registry().live.end()) {
      result_ = refused(std::string(name) + ": not a communicator, or one that is gone");
      return;
    }
    if (at->second->entered.exchange(true)) {
      result_ = refused(std::string(name) + ": " + at->second->who() +
                        " is called by two threads at once");
      return;
    }
    communicator_ = at->second;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (communicator_) communicator_->entered.store(false);
  }
  explicit operator bool() const { return communicator_ != nullptr; }
  Communicator* operator->() const { return communicator_.get(); }
  Communicator& operator*() const { return *communicator_; }
  ncclResult_t result() const { return result_; }

 private:
  std::shared_ptr<Communicator> communicator_;
  ncclResult_t result_ = ncclSuccess;
};

// Keys are never used again, so that a call on one that is gone is seen.
void take(ncclComm_t key) {
  const std::lock_guard lock(registry().mutex);
  registry().live.erase(key);
}

// NCCL keeps what ranks of one process have until the last of them is destroyed, whose caller frees
// it for all, on their GPUs. A rank that was aborted keeps the others' as it is.
void reclaim(const Communicator& communicator) {
  static auto& groups = *new std::map<std::string, std::vector<CUdevice>>;
  const std::lock_guard lock(registry().mutex);
  auto& gone = groups[communicator.group()];
  gone.push_back(communicator.device());
  if (gone.size() < communicator.size()) return;
  for (const CUdevice device : gone) {
    if (driver()->is_retained(device) == 1) continue;
    driver()->report(("ncclCommDestroy: " + communicator.who() +
                      " frees the communicators of all ranks, but the context of GPU " +
                      std::to_string(device) + " is gone")
                         .c_str());
  }
  groups.erase(communicator.group());
}

ncclComm_t put(std::shared_ptr<Communicator> communicator) {
  static std::uintptr_t next = 0;
  const std::lock_guard lock(registry().mutex);
  if (next == 0) std::atexit(look_for_leaks);
  const auto key = reinterpret_cast<ncclComm_t>(next += 64);
  registry().live.emplace(key, std::move(communicator));
  return key;
}

}  // namespace
}  // namespace emulated_nccl

using emulated_nccl::Call;
using emulated_nccl::Communicator;

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* said = std::getenv("WSYNC_EMULATED_NCCL_VERSION");
  *version = said == nullptr ? NCCL_VERSION_CODE : std::atoi(said);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclNumResults:
      break;
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t /*communicator*/) {
  return emulated_nccl::last_error.c_str();
}

// Every group of wsync is in one process. Where ranks meet on an interface of the network, a filter
// or the loss of that interface ends the group.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const char* interface = std::getenv("NCCL_SOCKET_IFNAME");
  if (interface == nullptr || std::strcmp(interface, "lo") != 0)
    return emulated_nccl::refused(
        "ncclGetUniqueId: NCCL_SOCKET_IFNAME is not lo, so ranks of one process would meet on an "
        "interface of the network");
  return emulated_nccl::make_unique_id(*id);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *made = nullptr;
  const auto* driver = emulated_nccl::driver();
  if (driver == nullptr) {
    emulated_nccl::last_error = "the emulated NCCL needs the emulated driver";
    return ncclUnhandledCudaError;
  }
  CUdevice device = 0;
  if (!emulated_nccl::current_device(*driver, device)) {
    (void)emulated_nccl::refused("ncclCommInitRankConfig: no context is current on this thread");
    return ncclUnhandledCudaError;
  }
  if (config == nullptr || config->blocking != 0)
    return emulated_nccl::refused("ncclCommInitRankConfig: only communicators that do not block");
  if (config->maxCTAs < 1 || config->maxCTAs > 32)
    return emulated_nccl::refused(
        "ncclCommInitRankConfig: maxCTAs is not set, so a broadcast takes up to 32 multiprocessors "
        "from the engines");
  if (size < 1 || size > static_cast<int>(emulated_nccl::kMaxRanks) || rank < 0 || rank >= size)
    return emulated_nccl::refused("ncclCommInitRankConfig: a rank out of range");
  auto communicator = std::make_shared<Communicator>(static_cast<std::uint32_t>(rank),
                                                     static_cast<std::uint32_t>(size), device);
  const ncclResult_t begun = communicator->init(id);
  if (begun == ncclInProgress) *made = emulated_nccl::put(std::move(communicator));
  return begun;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t key, ncclResult_t* error) {
  const Call call(key, "ncclCommGetAsyncError");
  if (!call) return call.result();
  *error = call->async_error();
  emulated_nccl::last_error =
      *error == ncclInvalidUsage ? "Duplicate GPU detected: two ranks on one CUDA device" : "";
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t key, cudaStream_t stream) {
  const Call call(key, "ncclBroadcast");
  if (!call) return call.result();
  if (type != ncclUint8)
    return emulated_nccl::refused("ncclBroadcast: the emulated NCCL moves bytes only");
  return call->broadcast({.from = from,
                          .to = to,
                          .bytes = count,
                          .root = static_cast<std::uint32_t>(root),
                          .stream = stream});
}

ncclResult_t ncclCommFinalize(ncclComm_t key) {
  const Call call(key, "ncclCommFinalize");
  return call ? call->finalize() : call.result();
}

ncclResult_t ncclCommDestroy(ncclComm_t key) {
  const Call call(key, "ncclCommDestroy");
  if (!call) return call.result();
  if (!call->finalized())
    return emulated_nccl::refused("ncclCommDestroy: " + call->who() +
                                  " has not been finalized, or not to the end");
  emulated_nccl::reclaim(*call);
  emulated_nccl::take(key);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t key) {
  const Call call(key, "ncclCommAbort");
  if (!call) return call.result();
  call->abort();
  emulated_nccl::take(key);
  return ncclSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
