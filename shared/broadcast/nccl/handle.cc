#include "shared/broadcast/nccl/handle.h"

#include <thread>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/broadcast/nccl/ending.h"

namespace wsync::collective::nccl {

namespace {

constexpr auto kLeavePoll = std::chrono::microseconds(200);
// Blocks of a broadcast's kernel, each of which occupies a multiprocessor. Engines compute on the
// same GPU, and what the sidecar broadcasts comes over PCIe, so NCCL's choice (up to 32, to fill
// NVLink) would take more than it needs. Not measured: no machine with several GPUs was at hand.
constexpr int kMaxCtas = 16;

// Returns true if NCCL has finalized the communicator before the deadline.
bool finalized(const Nccl& nccl, ncclComm_t communicator, TimePoint deadline) {
  const auto goes_on = [](ncclResult_t code) {
    return code == ncclSuccess || code == ncclInProgress;
  };
  if (!goes_on(nccl.ncclCommFinalize(communicator))) return false;
  for (; now() < deadline; std::this_thread::sleep_for(kLeavePoll)) {
    ncclResult_t reported = ncclInProgress;
    if (nccl.ncclCommGetAsyncError(communicator, &reported) != ncclSuccess) return false;
    if (reported != ncclInProgress) return reported == ncclSuccess;
  }
  return false;
}

}  // namespace

const char* handle_state_name(HandleState state) noexcept {
  switch (state) {
    case HandleState::kNew:
      return "new";
    case HandleState::kJoining:
      return "joining";
    case HandleState::kReady:
      return "ready";
    case HandleState::kBusy:
      return "busy";
    case HandleState::kBroken:
      return "broken";
    case HandleState::kGone:
      return "gone";
  }
  return "unknown";
}

Handle::~Handle() { (void)abort(); }

void Handle::become(HandleState state) {
  WSYNC_CHECK(may_become(state_, state),
              fmt::format("rank {}'s communicator is {} and cannot become {}", place_.rank,
                          handle_state_name(state_), handle_state_name(state)));
  state_ = state;
}

std::string Handle::sentence(const char* what) const {
  return fmt::format("rank {} of {}: {}", place_.rank, place_.size, what);
}

Result<> Handle::needs(HandleState state, const char* what) const {
  if (state_ == state) return {};
  if (state_ == HandleState::kBroken) return fail(*error_);
  return fail(ErrorCode::kCancelled,
              fmt::format("{}: the communicator is {}", sentence(what), handle_state_name(state_)));
}

Result<> Handle::asked(ncclResult_t code, const char* what) {
  auto outcome = check(nccl_, code, sentence(what));
  if (outcome) return outcome;
  error_ = outcome.error();
  become(HandleState::kBroken);
  return outcome;
}

Result<> Handle::begin(const ncclUniqueId& id) {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(needs(HandleState::kNew, "ncclCommInitRankConfig"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMaxCtas;
  become(HandleState::kJoining);
  return asked(nccl_.ncclCommInitRankConfig(&communicator_, static_cast<int>(place_.size), id,
                                            static_cast<int>(place_.rank), &config),
               "ncclCommInitRankConfig");
}

Result<bool> Handle::settled() {
  const std::lock_guard lock(mutex_);
  if (state_ == HandleState::kNew) return false;
  if (state_ == HandleState::kBroken) return fail(*error_);
  if (state_ == HandleState::kGone)
    return fail(ErrorCode::kCancelled, sentence("the communicator is gone"));
  return poll();
}

Result<bool> Handle::poll() {
  ncclResult_t reported = ncclSuccess;
  WSYNC_TRY(asked(nccl_.ncclCommGetAsyncError(communicator_, &reported), "ncclCommGetAsyncError"));
  if (reported == ncclInProgress) return false;
  WSYNC_TRY(asked(reported, "NCCL reports an error"));
  if (state_ == HandleState::kJoining) become(HandleState::kReady);
  return true;
}

Result<> Handle::look() {
  const std::lock_guard lock(mutex_);
  if (communicator_ == nullptr || state_ == HandleState::kBroken) return {};
  (void)WSYNC_TRY(poll());
  return {};
}

Result<> Handle::broadcast(const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(needs(HandleState::kReady, "ncclBroadcast"));
  become(HandleState::kBusy);
  return asked(nccl_.ncclBroadcast(transfer.from, transfer.to, transfer.bytes, ncclUint8,
                                   static_cast<int>(transfer.root), communicator_,
                                   static_cast<cudaStream_t>(transfer.stream)),
               "ncclBroadcast");
}

void Handle::finished() {
  const std::lock_guard lock(mutex_);
  if (state_ == HandleState::kBusy) become(HandleState::kReady);
}

bool Handle::ready() const {
  const std::lock_guard lock(mutex_);
  return state_ == HandleState::kReady || state_ == HandleState::kBusy;
}

ncclComm_t Handle::take() {
  if (state_ != HandleState::kGone) become(HandleState::kGone);
  return std::exchange(communicator_, nullptr);
}

// The results of the last two calls are ignored, because the communicator is not used any more.
bool Handle::end(ncclComm_t communicator, bool orderly) const {
  if (communicator == nullptr) return true;
  const TimePoint leave_until = now() + place_.leave_time;
  return ends_in_time(
      [&nccl = nccl_, enter = place_.enter, communicator, orderly, leave_until] {
        enter();
        if (orderly && finalized(nccl, communicator, leave_until))
          (void)nccl.ncclCommDestroy(communicator);
        else
          (void)nccl.ncclCommAbort(communicator);
      },
      (orderly ? leave_until : now()) + place_.end_time);
}

bool Handle::abort() {
  ncclComm_t communicator = nullptr;
  {
    const std::lock_guard lock(mutex_);
    communicator = take();
  }
  return end(communicator, false);
}

bool Handle::leave() {
  ncclComm_t communicator = nullptr;
  bool orderly = false;
  {
    const std::lock_guard lock(mutex_);
    orderly = state_ == HandleState::kReady;
    communicator = take();
  }
  return end(communicator, orderly);
}

void Handle::forsake() {
  const std::lock_guard lock(mutex_);
  (void)take();
}

}  // namespace wsync::collective::nccl
