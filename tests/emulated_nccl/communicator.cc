#include "tests/emulated_nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <sys/mman.h>

namespace emulated_nccl {
namespace {

// Often enough that a caller that does not wait for the end is found out.
constexpr std::uint32_t kQuestions = 3;
constexpr std::uint32_t kSpins = 1000;
constexpr auto kRest = std::chrono::microseconds(50);

std::uint32_t number(std::string_view text) {
  return static_cast<std::uint32_t>(std::strtoul(std::string(text).c_str(), nullptr, 10));
}

}  // namespace

std::vector<Fault> faults_of_environment() {
  const char* value = std::getenv("WSYNC_EMULATED_NCCL_FAULT");
  std::vector<Fault> faults;
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    std::string_view text = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    Fault& fault = faults.emplace_back();
    if (const auto at = text.find('@'); at != std::string_view::npos) {
      fault.rank = number(text.substr(at + 1));
      text = text.substr(0, at);
    }
    if (const auto at = text.find(':'); at != std::string_view::npos) {
      fault.broadcast = number(text.substr(at + 1));
      text = text.substr(0, at);
    }
    if (text == "init") fault.kind = Fault::Kind::kInit;
    if (text == "async") fault.kind = Fault::Kind::kAsync;
    if (text == "hang") fault.kind = Fault::Kind::kHang;
    if (text == "abort") fault.kind = Fault::Kind::kAbort;
  }
  return faults;
}

struct Communicator::Work {
  std::shared_ptr<Communicator> communicator;
  Transfer transfer;
  bool hangs = false;
};

Communicator::~Communicator() {
  abort_.store(true);
  if (init_.joinable()) init_.join();
  if (segment_ != nullptr) ::munmap(segment_, sizeof(Segment));
}

std::string Communicator::who() const {
  return "rank " + std::to_string(rank_) + " of " + std::to_string(size_);
}

bool Communicator::faulty(Fault::Kind kind) const {
  const bool always = kind == Fault::Kind::kInit || kind == Fault::Kind::kAbort;
  return std::ranges::any_of(faults_of_environment(), [&](const Fault& fault) {
    return fault.kind == kind && (!fault.rank || *fault.rank == rank_) &&
           (always || fault.broadcast == broadcasts_);
  });
}

ncclResult_t Communicator::init(const ncclUniqueId& id) {
  group_.assign(id.internal, sizeof id.internal);
  Hello hello{.size = size_, .rank = rank_, .gpu = {}};
  CUuuid uuid{};
  if (driver()->device_uuid(&uuid, device_) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  static_assert(sizeof uuid.bytes == sizeof hello.gpu);
  std::memcpy(hello.gpu.data(), uuid.bytes, sizeof uuid.bytes);
  questions_ = kQuestions;
  const bool fails = faulty(Fault::Kind::kInit);
  init_ = std::thread([this, id, hello, fails] {
    met_.store(fails ? ncclSystemError : meet(id, hello, abort_, segment_));
  });
  return ncclInProgress;
}

ncclResult_t Communicator::async_error() {
  if (state_ == State::kFailed) return failed_;
  if (questions_ > 0) {
    --questions_;
    return ncclInProgress;
  }
  ncclResult_t now = stream_error_.load();
  if (now == ncclSuccess && state_ == State::kJoining) now = met_.load();
  if (now == ncclSuccess && state_ == State::kEnqueuing) now = enqueue();
  if (state_ == State::kFinalizing && in_flight_.load() > 0) return ncclInProgress;
  if (now == ncclInProgress) return now;
  if (now != ncclSuccess) {
    state_ = State::kFailed;
    failed_ = now;
    return now;
  }
  if (state_ == State::kFinalizing) state_ = State::kFinalized;
  if (state_ == State::kJoining || state_ == State::kEnqueuing) state_ = State::kIdle;
  return ncclSuccess;
}

ncclResult_t Communicator::broadcast(const Transfer& transfer) {
  if (state_ != State::kIdle) {
    driver()->report(("ncclBroadcast: " + who() + " is not ready for it").c_str());
    return ncclInvalidArgument;
  }
  if (transfer.root >= size_) return ncclInvalidArgument;
  if (driver()->stream_device(transfer.stream) != device_) {
    driver()->report(("ncclBroadcast: " + who() + " got a stream of another GPU").c_str());
    return ncclInvalidArgument;
  }
  ++broadcasts_;
  transfer_ = transfer;
  state_ = State::kEnqueuing;
  questions_ = kQuestions;
  return ncclInProgress;
}

ncclResult_t Communicator::enqueue() {
  const bool fails = faulty(Fault::Kind::kAsync);
  auto* work = new Work{.communicator = shared_from_this(),
                        .transfer = transfer_,
                        .hangs = fails || faulty(Fault::Kind::kHang)};
  in_flight_.fetch_add(1);
  const CUresult launched = driver()->enqueue(transfer_.stream, run, skip, work, "ncclBroadcast");
  if (launched != CUDA_SUCCESS) {
    skip(work);
    // NCCL launches on a thread of its own, so its caller does not wait for the driver.
    return launched == CUDA_ERROR_NOT_READY ? ncclInProgress : ncclUnhandledCudaError;
  }
  if (fails) stream_error_.store(ncclRemoteError);
  return ncclSuccess;
}

CUresult Communicator::run(void* work) {
  const std::unique_ptr<Work> own(static_cast<Work*>(work));
  const CUresult result = own->communicator->execute(*own);
  own->communicator->work_is_over();
  return result;
}

void Communicator::skip(void* work) {
  const std::unique_ptr<Work> own(static_cast<Work*>(work));
  own->communicator->work_is_over();
}

void Communicator::work_is_over() { in_flight_.fetch_sub(1); }

bool Communicator::interrupted() const { return abort_.load() || driver()->stopping() != 0; }

bool Communicator::wait_for(const std::atomic<std::uint64_t>& counter, std::uint64_t value) const {
  for (std::uint32_t round = 0; counter.load(std::memory_order_acquire) < value; ++round) {
    if (interrupted()) return false;
    if (round > kSpins) std::this_thread::sleep_for(kRest);
  }
  return true;
}

CUresult Communicator::execute(const Work& work) {
  const Transfer& transfer = work.transfer;
  while (work.hangs && !interrupted()) std::this_thread::sleep_for(kRest);
  if (interrupted()) return CUDA_SUCCESS;
  const auto view = [&](const void* address) {
    return static_cast<std::byte*>(
        driver()->view(transfer.stream, reinterpret_cast<CUdeviceptr>(address), transfer.bytes));
  };
  std::byte* from = rank_ == transfer.root ? view(transfer.from) : nullptr;
  std::byte* to = view(transfer.to);
  if (to == nullptr || (rank_ == transfer.root && from == nullptr)) {
    stream_error_.store(ncclUnhandledCudaError);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return move(from, to, transfer);
}

CUresult Communicator::move(std::byte* from, std::byte* to, const Transfer& transfer) {
  for (std::size_t at = 0; at < transfer.bytes; at += kChunkBytes) {
    const std::size_t bytes = std::min(kChunkBytes, transfer.bytes - at);
    const std::uint64_t chunk = ++chunk_;
    if (rank_ == transfer.root) {
      for (std::uint32_t rank = 0; rank < size_; ++rank)
        if (!wait_for(segment_->consumed[rank], chunk - 1)) return CUDA_SUCCESS;
      std::memcpy(segment_->data.data(), from + at, bytes);
      if (to != from) std::memmove(to + at, from + at, bytes);
      segment_->consumed[rank_].store(chunk, std::memory_order_release);
      segment_->published.store(chunk, std::memory_order_release);
    } else {
      if (!wait_for(segment_->published, chunk)) return CUDA_SUCCESS;
      std::memcpy(to + at, segment_->data.data(), bytes);
      segment_->consumed[rank_].store(chunk, std::memory_order_release);
    }
  }
  return CUDA_SUCCESS;
}

ncclResult_t Communicator::finalize() {
  if (state_ != State::kIdle) {
    driver()->report(("ncclCommFinalize: " + who() + " is not ready for it").c_str());
    return ncclInvalidArgument;
  }
  state_ = State::kFinalizing;
  questions_ = kQuestions;
  return ncclInProgress;
}

bool Communicator::finalized() const { return state_ == State::kFinalized; }

void Communicator::abort() {
  given_back.store(true);
  while (faulty(Fault::Kind::kAbort)) std::this_thread::sleep_for(kRest);
  abort_.store(true);
}

}  // namespace emulated_nccl
