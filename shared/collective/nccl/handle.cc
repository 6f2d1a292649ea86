#include "shared/collective/nccl/handle.h"

#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::collective::nccl {

static_assert(sizeof(ncclUniqueId) == kUniqueIdBytes);

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
    case HandleState::kLeaving:
      return "leaving";
    case HandleState::kBroken:
      return "broken";
    case HandleState::kGone:
      return "gone";
  }
  return "unknown";
}

Handle::~Handle() { abort(); }

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

Result<> Handle::begin(const NcclUniqueId& id) {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(needs(HandleState::kNew, "ncclCommInitRankConfig"));
  ncclUniqueId unique;
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  become(HandleState::kJoining);
  return asked(nccl_.ncclCommInitRankConfig(&communicator_, static_cast<int>(place_.size), unique,
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
  WSYNC_TRY(poll());
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

Result<> Handle::finalize() {
  const std::lock_guard lock(mutex_);
  WSYNC_TRY(needs(HandleState::kReady, "ncclCommFinalize"));
  become(HandleState::kLeaving);
  return asked(nccl_.ncclCommFinalize(communicator_), "ncclCommFinalize");
}

void Handle::destroy() {
  const std::lock_guard lock(mutex_);
  if (state_ != HandleState::kLeaving) return;
  // Its result says nothing that could be acted upon: the communicator is not used any more.
  (void)nccl_.ncclCommDestroy(communicator_);
  communicator_ = nullptr;
  become(HandleState::kGone);
}

void Handle::abort() {
  const std::lock_guard lock(mutex_);
  if (state_ == HandleState::kGone) return;
  if (communicator_ != nullptr) (void)nccl_.ncclCommAbort(communicator_);
  communicator_ = nullptr;
  become(HandleState::kGone);
}

void Handle::forsake() {
  const std::lock_guard lock(mutex_);
  if (state_ == HandleState::kGone) return;
  communicator_ = nullptr;
  become(HandleState::kGone);
}

HandleState Handle::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace wsync::collective::nccl
