#include "deploy/python/extension/polled_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <thread>
#include <utility>

#include "trainer_side/plugin/wsync/trainer.h"

namespace wsync::python {
namespace {

using Clock = std::chrono::steady_clock;

// How long a refusal that is about other processes, not about a tensor, may last before a poll ends
// with it: the process in the way may be about to end, as one that its supervisor starts again.
constexpr auto kOthersMayEnd = std::chrono::seconds(10);

constexpr const char* kCallbackNames[] = {"pause",  "load_begin",  "load_layer",   "commit",
                                          "resume", "read_tensor", "check_version"};

}  // namespace

Failure PolledEngine::create() {
  if (options_.socket.empty() || options_.socket.front() != '/')
    return {WSYNC_INVALID_INPUT, "socket is '" + options_.socket +
                                     "', expected the absolute path of a sidecar's engine socket"};
  if (options_.replica.empty() || options_.replica.size() > 128)
    return {WSYNC_INVALID_INPUT, "the name of a replica has 1 to 128 bytes, '" + options_.replica +
                                     "' has " + std::to_string(options_.replica.size())};
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return {WSYNC_IO, std::string("eventfd: ") + std::strerror(errno)};
  const wsync_engine_options options{
      .socket_path = options_.socket.c_str(),
      .replica = options_.replica.c_str(),
      .rank = options_.rank,
      .world_size = options_.world_size,
      .leader = options_.leader ? 1 : 0,
      .device = options_.device,
      .take = static_cast<wsync_take>(options_.take),
      .serving = options_.serving ? 1 : 0,
      .callbacks = callbacks(options_),
      .user = this,
      .weights_on = options_.gpu ? WSYNC_DEVICE_CUDA : WSYNC_DEVICE_HOST,
      .gpu = static_cast<int>(options_.gpu.value_or(0)),
      .any_layout = options_.any_layout ? 1 : 0,
      .has_controller = options_.has_controller ? 1 : 0,
      .led_steps = options_.led_steps ? 1 : 0,
      .changed_layers = options_.changed_layers ? 1 : 0};
  engine_ = wsync_engine_create(&options);
  if (engine_ == nullptr)
    return {WSYNC_RESOURCE_EXHAUSTED, "the engine cannot be created: there is no memory"};
  return {};
}

Failure PolledEngine::add_tensor(const std::string& name, const std::string& dtype,
                                 const std::vector<std::uint64_t>& shape,
                                 const std::vector<wsync_range>& ranges, std::uintptr_t destination,
                                 const std::optional<std::string>& destination_dtype) {
  const wsync_tensor tensor{
      .name = name.c_str(),
      .dtype = dtype.c_str(),
      .shape = shape.data(),
      .shape_count = shape.size(),
      .ranges = ranges.data(),
      .range_count = ranges.size(),
      .destination = reinterpret_cast<void*>(destination),
      .destination_dtype = destination_dtype ? destination_dtype->c_str() : nullptr};
  return failure_of(wsync_engine_add_tensor(engine_, &tensor));
}

Failure PolledEngine::attach() {
  if (const Failure failure = with_engine(&wsync_engine_attach)) return failure;
  fd_ = wsync_engine_fd(engine_);
  const WithoutSignals blocked;
  is_running_ = true;
  std::thread([self = shared_from_this()] { self->serve(); }).detach();
  return {};
}

Failure PolledEngine::check() {
  if (!is_here()) return is_forked();
  const std::lock_guard lock(mutex_);
  if (is_closing_) return {kClosed, "the replica has been closed"};
  if (!is_running_) return {kEngineRefused, "the replica is not attached"};
  return {};
}

std::tuple<Failure, bool> PolledEngine::begin_poll(std::optional<Clock::time_point> end) {
  if (Failure failure = check()) return {std::move(failure), false};
  bool goes_on = false;
  {
    const std::lock_guard lock(mutex_);
    goes_on = is_polling_ && poller_ == std::this_thread::get_id() && !(call_ && is_taken_);
    if (is_polling_ && !goes_on)
      return {Failure{WSYNC_BUSY,
                      "another thread polls this replica, or one of its callbacks "
                      "does; poll it from one thread, outside of the callbacks"},
              false};
    pollfd events{.fd = fd_, .events = POLLIN, .revents = 0};
    if (!goes_on && end && *end <= Clock::now() && ::poll(&events, 1, 0) == 0)
      return {Failure{}, false};
    is_polling_ = true;
    poller_ = std::this_thread::get_id();
    if (!goes_on) has_polled_ = false;
    end_early_ = false;
    poll_end_ = end;
    if (!goes_on) poll_failure_ = {};
  }
  changed_.notify_all();
  if (goes_on) (void)::eventfd_write(wake_fd_, 1);  // it waits with its old time
  return {Failure{}, true};
}

void PolledEngine::end_poll_early() {
  if (!is_here()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!is_polling_ || poller_ != std::this_thread::get_id()) return;
    end_early_ = true;
    if (call_ && is_taken_ && !is_answered_) {
      sentence_ = std::string("Ctrl-C came before the callback ") +
                  kCallbackNames[static_cast<int>(call_->callback)] + " was run";
      answer_ = Answer::kFailed;
      is_answered_ = true;
    }
  }
  changed_.notify_all();
  (void)::eventfd_write(wake_fd_, 1);
}

PolledEngine::Next PolledEngine::next_call() {
  if (!is_here()) return {.has_ended = true, .failure = is_forked(), .call = std::nullopt};
  std::unique_lock lock(mutex_);
  if (!is_polling_ || poller_ != std::this_thread::get_id())
    return {.has_ended = true, .failure = {}, .call = std::nullopt};
  changed_.wait_for(lock, kSlice,
                    [&] { return has_polled_ || is_closing_ || (call_ && !is_taken_); });
  if (call_ && !is_taken_ && !is_closing_) {
    is_taken_ = true;
    return {.has_ended = false, .failure = {}, .call = *call_};
  }
  if (!has_polled_ && !is_closing_) return {};
  is_polling_ = false;
  Failure failure = std::exchange(poll_failure_, {});
  if (is_closing_ && !failure) failure = {kClosed, "the replica has been closed"};
  return {.has_ended = true, .failure = std::move(failure), .call = std::nullopt};
}

bool PolledEngine::answer(Answer answer, const std::string& sentence, const void* read,
                          std::size_t read_bytes) {
  if (!is_here()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!call_ || !is_taken_ || is_closing_) return false;
    if (answer == Answer::kDone && call_->out != nullptr)
      std::memcpy(call_->out, read, std::min<std::size_t>(read_bytes, call_->bytes));
    sentence_ = sentence;
    answer_ = answer;
    is_answered_ = true;
  }
  changed_.notify_all();
  return true;
}

void PolledEngine::report(void (*send)(wsync_engine*, wsync_version, int), wsync_version version,
                          const std::optional<std::string>& failure) {
  const std::shared_lock lock(engine_mutex_);
  if (engine_ == nullptr) return;
  if (failure) wsync_engine_fail(engine_, failure->c_str());
  send(engine_, version, failure ? 1 : 0);
}

void PolledEngine::close() {
  if (!is_here()) return;
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  changed_.notify_all();
  (void)::eventfd_write(wake_fd_, 1);
  changed_.wait(lock, [&] { return !is_running_; });
  lock.unlock();
  // Without a thread, if it was never attached.
  const std::lock_guard engine_lock(engine_mutex_);
  wsync_engine_destroy(std::exchange(engine_, nullptr));
}

void PolledEngine::serve() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_closing_ || task_ || (is_polling_ && !has_polled_); });
      if (is_closing_) break;
      if (task_) {
        run_task(lock);
        continue;
      }
    }
    Failure failure;
    if (wait_for_events()) failure = failure_of(wsync_engine_poll(engine_, 0));
    if (!failure) failure = untold_refusal();
    const std::lock_guard lock(mutex_);
    poll_failure_ = std::move(failure);
    has_polled_ = true;
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(engine_mutex_);
    wsync_engine_destroy(std::exchange(engine_, nullptr));
  }
  const std::lock_guard lock(mutex_);
  is_running_ = false;
  changed_.notify_all();
}

// A rank that serves goes on with what it has: only a poll that would wait for ever ends then.
std::optional<Clock::time_point> PolledEngine::when_told(const wsync_refusal& refusal) {
  if (refusal.holds == 0 || refusal.number == refusal_told_) {
    refused_since_.reset();
    return std::nullopt;
  }
  if (!refused_since_) refused_since_ = Clock::now();
  const std::lock_guard lock(mutex_);
  if (is_closing_ || end_early_) return std::nullopt;
  if (poll_end_ && wsync_engine_status(engine_).state == WSYNC_STATE_SERVING) return std::nullopt;
  if (*refusal.problem.tensor != '\0') return *refused_since_;
  return *refused_since_ + kOthersMayEnd;
}

Failure PolledEngine::untold_refusal() {
  wsync_refusal refusal{};
  if (wsync_engine_refusal(engine_, &refusal) != 0) return {};
  const auto told = when_told(refusal);
  if (!told || Clock::now() < *told) return {};
  refusal_told_ = refusal.number;
  refused_since_.reset();
  return {WSYNC_REFUSED, refusal.sentence, refusal.problem.tensor, refusal.problem.expected,
          refusal.problem.found};
}

Failure PolledEngine::begin_task(const std::shared_ptr<Task>& task) {
  if (Failure failure = check()) return failure;
  {
    const std::lock_guard lock(mutex_);
    // A callback that only reads changes nothing, and comes at times that nobody chooses: the task
    // follows it.
    const bool is_called = call_ && call_->callback != Callback::kReadTensor;
    if (is_called || task_)
      return {WSYNC_BUSY,
              "a callback of this replica is running, or another thread suspends or resumes it; do "
              "it outside of the callbacks"};
    task_ = task;
  }
  changed_.notify_all();
  (void)::eventfd_write(wake_fd_, 1);
  return {};
}

std::optional<Failure> PolledEngine::wait_for_task(const std::shared_ptr<Task>& task) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kSlice, [&] { return task->is_done || !is_running_; });
  if (task->is_done) return task->failure;
  if (!is_running_) return Failure{kClosed, "the replica has been closed"};
  return std::nullopt;
}

void PolledEngine::run_task(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = task_;
  lock.unlock();
  Failure failure = failure_of(task->use(engine_));
  lock.lock();
  task->failure = std::move(failure);
  task->is_done = true;
  task_.reset();
  changed_.notify_all();
}

// Returns false if the time is over, a refusal is to be told or the poll is to end.
bool PolledEngine::wait_for_events() {
  while (true) {
    int timeout_ms = -1;
    wsync_refusal refusal{};
    std::optional<Clock::time_point> end;
    if (wsync_engine_refusal(engine_, &refusal) == 0) end = when_told(refusal);
    {
      std::unique_lock lock(mutex_);
      if (is_closing_ || end_early_) return false;
      if (task_) run_task(lock);
      if (poll_end_) end = end ? std::min(*end, *poll_end_) : *poll_end_;
      if (end)
        timeout_ms = static_cast<int>(
            std::clamp(std::chrono::ceil<std::chrono::milliseconds>(*end - Clock::now()),
                       std::chrono::milliseconds(0), std::chrono::milliseconds(1 << 30))
                .count());
    }
    pollfd events[2] = {{.fd = fd_, .events = POLLIN, .revents = 0},
                        {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
    const int ready = ::poll(events, 2, timeout_ms);
    if (ready == 0) return false;
    eventfd_t count = 0;
    if (ready > 0 && events[1].revents != 0) (void)::eventfd_read(wake_fd_, &count);
    if (ready > 0 && events[0].revents != 0) return true;
  }
}

// Inside of wsync_engine_poll.
int PolledEngine::hand_over(Call call) {
  std::unique_lock lock(mutex_);
  const char* const name = kCallbackNames[static_cast<int>(call.callback)];
  call_ = std::move(call);
  is_taken_ = false;
  is_answered_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return is_answered_ || is_closing_; });
  call_.reset();
  if (is_answered_ && answer_ == Answer::kDone) return 0;
  if (is_answered_ && answer_ == Answer::kLater) return WSYNC_LATER;
  const std::string sentence =
      is_answered_
          ? std::exchange(sentence_, {})
          : std::string("the replica was closed before its callback ") + name + " returned";
  lock.unlock();
  wsync_engine_fail(engine_, sentence.c_str());
  return 1;
}

template <class Fill>
int PolledEngine::called(void* user, Callback callback, Fill fill) {
  Call call{.callback = callback};
  fill(call);
  return static_cast<PolledEngine*>(user)->hand_over(std::move(call));
}

// Inside of a callback for the version.
std::vector<TensorInfo> PolledEngine::layout_of(wsync_version version) {
  std::vector<TensorInfo> layout;
  std::uint32_t count = 0;
  if (wsync_engine_tensor_count(engine_, version, &count) != 0) return layout;
  layout.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    wsync_tensor_info info{};
    if (wsync_engine_tensor_info(engine_, version, i, &info) != 0) break;
    layout.push_back({.name = info.name,
                      .dtype = info.dtype,
                      .shape = {info.shape, info.shape + info.shape_count}});
  }
  return layout;
}

wsync_engine_callbacks PolledEngine::callbacks(const EngineOptions& options) {
  wsync_engine_callbacks all{};
  all.pause = [](void* user, const wsync_pause* pause) {
    return called(user, Callback::kPause, [&](Call& call) {
      call.mode = pause->mode;
      call.deadline_ms = pause->deadline_ms;
      call.version = pause->version;
      call.bytes = pause->bytes;
      call.caches = pause->caches;
    });
  };
  all.load_begin = [](void* user, wsync_version version) {
    return called(user, Callback::kLoadBegin, [&](Call& call) {
      auto* const self = static_cast<PolledEngine*>(user);
      call.version = version;
      if (self->options_.any_layout) call.layout = self->layout_of(version);
    });
  };
  all.load_layer = [](void* user, wsync_version version, std::uint32_t layer,
                      const wsync_layer_tensor* tensors, std::size_t count) {
    return called(user, Callback::kLoadLayer, [&](Call& call) {
      call.version = version;
      call.layer = layer;
      call.tensors.assign(tensors, tensors + count);
    });
  };
  all.commit = [](void* user, wsync_version version) {
    return called(user, Callback::kCommit, [&](Call& call) { call.version = version; });
  };
  all.resume = [](void* user) { return called(user, Callback::kResume, [](Call&) {}); };
  if (options.can_read)
    all.read_tensor = [](void* user, std::uint32_t tensor, std::uint64_t offset, void* out,
                         std::uint64_t bytes) {
      return called(user, Callback::kReadTensor, [&](Call& call) {
        call.tensor = tensor;
        call.offset = offset;
        call.out = static_cast<std::byte*>(out);
        call.bytes = bytes;
      });
    };
  if (options.can_check)
    all.check_version = [](void* user, wsync_version version) {
      return called(user, Callback::kCheckVersion, [&](Call& call) {
        call.version = version;
        call.layout = static_cast<PolledEngine*>(user)->layout_of(version);
      });
    };
  return all;
}

}  // namespace wsync::python
