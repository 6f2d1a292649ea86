#include "tests/emulated_cuda/stream.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>

#include "tests/emulated_cuda/call.h"

namespace emulated_cuda {
namespace {

void join_finished(std::vector<std::shared_ptr<Stream>>& draining) {
  std::erase_if(draining, [](const std::shared_ptr<Stream>& stream) {
    if (!stream->finished()) return false;
    stream->join();
    return true;
  });
}

// A thread that takes no signals: those are the program's.
std::thread quiet_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

Stream::Stream(std::uint64_t id, std::shared_ptr<Context> context)
    : context_(std::move(context)),
      random_(static_cast<std::minstd_rand::result_type>(settings().seed * 7919U + id)) {}

Stream::~Stream() { join(); }

void Stream::push(Op op) {
  const std::shared_lock launch(state().launches);
  enqueue(std::move(op));
}

bool Stream::try_push(Op& op) {
  const std::shared_lock launch(state().launches, std::try_to_lock);
  if (launch.owns_lock()) enqueue(std::move(op));
  return launch.owns_lock();
}

void Stream::enqueue(Op op) {
  const std::scoped_lock lock(mutex_);
  queue_.push_back(std::move(op));
  if (!thread_.joinable()) thread_ = quiet_thread([this] { serve(); });
  changed_.notify_all();
}

bool Stream::idle() {
  const std::scoped_lock lock(mutex_);
  return queue_.empty() && !busy_;
}

void Stream::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void Stream::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  if (!thread_.joinable()) finished_ = true;
  changed_.notify_all();
}

void Stream::join() {
  close();
  if (thread_.joinable()) thread_.join();
}

void Stream::serve() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
    if (state().stopping) queue_.clear();
    if (queue_.empty()) break;
    {
      Op op = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      execute(op);
    }  // what it holds is let go before the stream is seen to be idle
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
  finished_ = true;
}

// Nothing but the end of the process is waited for.
constexpr std::chrono::milliseconds kHangPause{5};

void Stream::execute(Op& op) {
  if (const std::uint64_t max = settings().delay_us; max > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % (max + 1)));
  const Injected fault = injected(op.kind, "work");
  while (fault.hang && pause_unless_stopping(kHangPause)) {
  }
  if (state().stopping) return;
  if (fault.error != CUDA_SUCCESS) context_->error = fault.error;
  if (context_->error != CUDA_SUCCESS && !op.always) {
    if (op.skipped) op.skipped();
    return;
  }
  std::byte* written = nullptr;
  const CUresult result = op.work(written);
  int none = CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) context_->error.compare_exchange_strong(none, result);
  if (fault.flip && written != nullptr) *written ^= std::byte{1};
}

CUresult find_stream(const char* name, CUstream handle, std::shared_ptr<Stream>& stream) {
  const auto context = current();
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  const std::uint64_t id = id_of(HandleKind::kStream, handle);
  if (id == 0)
    return misuse(name, CUDA_ERROR_INVALID_HANDLE,
                  "no stream (the default streams are not emulated)");
  const auto found = all.streams.find(id);
  if (found == all.streams.end())
    return misuse(name, CUDA_ERROR_INVALID_HANDLE, "the stream has been destroyed");
  if (context == nullptr || found->second->context().id != context->id)
    return misuse(name, CUDA_ERROR_INVALID_HANDLE, "the stream is of another context");
  stream = found->second;
  return CUDA_SUCCESS;
}

void wait_for_kernels(int device, const std::unique_lock<std::shared_mutex>& /*locked*/) {
  State& all = state();
  std::vector<std::shared_ptr<Stream>> waited_for;
  {
    const std::scoped_lock lock(all.mutex);
    const auto add = [&](const std::shared_ptr<Stream>& stream) {
      const Context& context = stream->context();
      const auto own = device < 0 ? nullptr : all.primary[static_cast<std::size_t>(device)];
      if (device < 0 || context.device == device ||
          (own != nullptr && (own->peers.contains(context.id) || context.peers.contains(own->id))))
        waited_for.push_back(stream);
    };
    for (const auto& [id, stream] : all.streams) add(stream);
    for (const auto& stream : all.draining) add(stream);
  }
  for (const auto& stream : waited_for) stream->wait_idle();
}

bool pause_unless_stopping(std::chrono::microseconds pause) {
  std::this_thread::sleep_for(pause);
  return !state().stopping;
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  constexpr const char* kName = "cuStreamCreateWithPriority";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "flags " + std::to_string(flags));
    // The driver clamps it; who asks for one outside of the range has not asked for the range.
    if (priority > kLowestPriority || priority < kGreatestPriority)
      report(std::string(kName) + ": priority " + std::to_string(priority) + " is out of range");
    auto context = current();
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    join_finished(all.draining);
    const std::uint64_t id = all.next_id++;
    all.streams[id] = std::make_shared<Stream>(id, std::move(context));
    *stream = make_handle<CUstream>(HandleKind::kStream, id);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy(CUstream handle) {
  constexpr const char* kName = "cuStreamDestroy_v2";
  return call(kName, Needs::kRelease, [&]() -> CUresult {
    std::shared_ptr<Stream> stream;
    if (const CUresult bad = find_stream(kName, handle, stream)) return bad;
    stream->close();
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    join_finished(all.draining);
    all.streams.erase(id_of(HandleKind::kStream, handle));
    all.draining.push_back(std::move(stream));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return call("cuStreamQuery", Needs::kContext, [&]() -> CUresult {
    std::shared_ptr<Stream> stream;
    if (const CUresult bad = find_stream("cuStreamQuery", handle, stream)) return bad;
    if (!stream->idle()) return CUDA_ERROR_NOT_READY;
    return static_cast<CUresult>(stream->context().error.load());
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return call("cuStreamSynchronize", Needs::kContext, [&]() -> CUresult {
    std::shared_ptr<Stream> stream;
    if (const CUresult bad = find_stream("cuStreamSynchronize", handle, stream)) return bad;
    stream->wait_idle();
    return static_cast<CUresult>(stream->context().error.load());
  });
}

CUresult emulated_cuda_enqueue(CUstream handle, EmulatedCudaWork work, void (*skipped)(void*),
                               void* argument, const char* name) {
  State& all = state();
  std::shared_ptr<Stream> stream;
  {
    const std::scoped_lock lock(all.mutex);
    const auto found = all.streams.find(id_of(HandleKind::kStream, handle));
    if (found != all.streams.end()) stream = found->second;
  }
  if (stream == nullptr) return misuse(name, CUDA_ERROR_INVALID_HANDLE, "no stream, or no longer");
  if (const int failed = stream->context().error) return static_cast<CUresult>(failed);
  Op op{.kind = name, .work = [work, argument](std::byte*&) { return work(argument); }};
  if (skipped != nullptr) op.skipped = [skipped, argument] { skipped(argument); };
  return stream->try_push(op) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

int emulated_cuda_stopping() { return state().stopping ? 1 : 0; }

int emulated_cuda_stream_device(CUstream handle) {
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.streams.find(id_of(HandleKind::kStream, handle));
  return found == all.streams.end() ? -1 : found->second->context().device;
}

}  // extern "C"
