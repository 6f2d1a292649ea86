// An engine of the C library whose callbacks are taken from it by calls. The library's calls and
// callbacks run on a thread of this class that never enters Python: a callback is handed to the
// thread that is in next_call(), and that thread's answer is handed back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <unistd.h>
#include <vector>

#include "deploy/python/extension/calls.h"
#include "inference_side/engine_link/wsync/engine.h"

namespace wsync::python {

// In the order of wsync_engine_callbacks; wsync/replica.py has the same numbers.
enum class Callback {
  kPause,
  kLoadBegin,
  kLoadLayer,
  kCommit,
  kResume,
  kReadTensor,
  kCheckVersion
};

// The same numbers in wsync/replica.py.
enum class Answer { kDone = 0, kFailed = 1, kLater = 2 };

struct TensorInfo {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};
// A callback of the library, until it is answered. Only the fields of its kind are set.
struct Call {
  Callback callback{};
  int mode = 0;
  std::uint32_t deadline_ms = 0;
  wsync_version version{};
  std::uint32_t layer = 0;
  std::vector<wsync_layer_tensor> tensors;
  std::vector<TensorInfo> layout;  // check_version; load_begin of a rank that takes any layout
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::byte* out = nullptr;
  std::uint64_t bytes = 0;
  int caches = 0;
};

struct EngineOptions {
  std::string socket;
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  bool leader = true;
  std::uint32_t device = 0;
  int take = 0;
  bool serving = false;
  bool any_layout = false;
  bool has_controller = false;
  bool led_steps = false;
  bool can_read = false;
  bool can_check = false;
  std::optional<std::uint32_t> gpu;  // that has the tensors; none: the memory of the host
  bool changed_layers = false;
};

// One engine and its thread. Shared by the Python object and the thread, so that a thread that must
// not be waited for may end later.
// It has more than 25 methods because each call of the C library is one.
class PolledEngine : public std::enable_shared_from_this<PolledEngine> {
 public:
  explicit PolledEngine(EngineOptions options) : options_(std::move(options)) {}
  ~PolledEngine() {
    if (is_here() && wake_fd_ >= 0) ::close(wake_fd_);
  }

  Failure create();
  Failure with_engine(int (*use)(wsync_engine*)) { return failure_of(use(engine_)); }
  // Has the thread that serves the link do this. Fails while a callback runs, except for
  // read_tensor, whose end it awaits: so do not call it inside of that one. Then
  // wait_for_task() until it returns something.
  struct Task {
    std::function<int(wsync_engine*)> use;
    bool is_done = false;
    Failure failure;
  };
  Failure begin_task(const std::shared_ptr<Task>& task);
  // Waits up to one slice; std::nullopt: it is not done.
  std::optional<Failure> wait_for_task(const std::shared_ptr<Task>& task);
  Failure add_tensor(const std::string& name, const std::string& dtype,
                     const std::vector<std::uint64_t>& shape,
                     const std::vector<wsync_range>& ranges, std::uintptr_t destination,
                     const std::optional<std::string>& destination_dtype);
  Failure attach();
  // Whether it can be polled: it is attached, and this is not a child.
  Failure check();

  // Lets the thread handle events once, within the time; returns false if there is nothing to do
  // and no time. Then next_call() until it returns nothing. A poll that this thread has begun and
  // left, because Python raised Ctrl-C between two statements, goes on with the new time.
  std::tuple<Failure, bool> begin_poll(std::optional<std::chrono::steady_clock::time_point> end);
  // The thread that polls has been interrupted. A call that it has taken and not answered fails.
  void end_poll_early();
  // Waits up to one slice. `has_ended`: the poll is over, with `failure` or without, or this thread
  // has begun none.
  struct Next {
    bool has_ended = false;
    Failure failure;
    std::optional<Call> call;
  };
  Next next_call();
  // The answer to the call that next_call() has returned; false if nobody waits for it any more.
  bool answer(Answer answer, const std::string& sentence, const void* read, std::size_t read_bytes);
  // The late answers, from any thread. `failure`: the sentence, or std::nullopt for success.
  void report_loaded(wsync_version version, const std::optional<std::string>& failure) {
    report(&wsync_engine_report_loaded, version, failure);
  }
  void report_committed(wsync_version version, const std::optional<std::string>& failure) {
    report(&wsync_engine_report_committed, version, failure);
  }

  void report_paused(std::uint64_t step) {
    const std::shared_lock lock(engine_mutex_);
    if (engine_ != nullptr) wsync_engine_report_paused(engine_, step);
  }
  void report_running(std::uint64_t step) {
    const std::shared_lock lock(engine_mutex_);
    if (engine_ != nullptr) wsync_engine_report_running(engine_, step);
  }
  // The calls of led steps, from one thread that need not be the one that polls.
  Failure lead_step(wsync_step_header& header) {
    const std::shared_lock lock(engine_mutex_);
    if (engine_ == nullptr) return {kClosed, "the replica has been closed"};
    return failure_of(wsync_engine_lead_step(engine_, &header));
  }
  Failure follow_step(const wsync_step_header& header, int& go) {
    const std::shared_lock lock(engine_mutex_);
    if (engine_ == nullptr) return {kClosed, "the replica has been closed"};
    return failure_of(wsync_engine_follow_step(engine_, &header, &go));
  }
  wsync_engine_state status() {
    const std::shared_lock lock(engine_mutex_);
    return engine_ == nullptr ? wsync_engine_state{} : wsync_engine_status(engine_);
  }
  // Why the sidecar refuses the rank now; "": it does not.
  std::string why_refused() {
    const std::shared_lock lock(engine_mutex_);
    wsync_refusal refusal{};
    if (engine_ == nullptr || wsync_engine_refusal(engine_, &refusal) != 0 || refusal.holds == 0)
      return {};
    return refusal.sentence;
  }
  int fd() const { return fd_; }
  bool is_here() const { return ::getpid() == home_; }
  // Of every call in a forked child.
  Failure is_forked() const {
    return forked(kEngineRefused, "wsync.Replica", home_,
                  "an engine in this process makes a wsync.Replica of its own, with another name");
  }
  bool is_closed() {
    const std::lock_guard lock(mutex_);
    return is_closing_;
  }
  wsync_engine* engine() const { return engine_; }

  // Makes a callback that is not answered fail, and waits until the engine has been destroyed.
  void close();

 private:
  Failure failure_of(int code) {
    if (code == 0) return {};
    return {kEngineRefused, wsync_engine_error(engine_)};
  }
  // On the thread:
  void serve();
  bool wait_for_events();
  // From when on the poll ends with this refusal; std::nullopt: not at all.
  std::optional<std::chrono::steady_clock::time_point> when_told(const wsync_refusal& refusal);
  // A refusal of the sidecar with which the poll ends now.
  Failure untold_refusal();
  void run_task(std::unique_lock<std::mutex>& lock);
  int hand_over(Call call);
  template <class Fill>
  static int called(void* user, Callback callback, Fill fill);
  static wsync_engine_callbacks callbacks(const EngineOptions& options);
  std::vector<TensorInfo> layout_of(wsync_version version);
  void report(void (*send)(wsync_engine*, wsync_version, int), wsync_version version,
              const std::optional<std::string>& failure);

  const pid_t home_ = ::getpid();
  const EngineOptions options_;
  int wake_fd_ = -1;
  int fd_ = -1;
  std::shared_mutex engine_mutex_;  // of engine_ while it is destroyed; shared: it is used
  wsync_engine* engine_ = nullptr;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool is_running_ = false;  // the thread has been started and has not ended
  bool is_closing_ = false;
  bool is_polling_ = false;  // between begin_poll and the end that next_call returns
  std::thread::id poller_;   // that has begun the poll
  bool has_polled_ = false;
  bool end_early_ = false;
  std::optional<std::chrono::steady_clock::time_point> poll_end_;
  Failure poll_failure_;
  // Of refusals that no poll has told of; used by the thread alone.
  std::uint64_t refusal_told_ = 0;  // the number of the newest one that has been told
  std::optional<std::chrono::steady_clock::time_point> refused_since_;
  std::shared_ptr<Task> task_;  // that is to be done
  std::optional<Call> call_;
  bool is_taken_ = false;  // call_ has been returned by next_call()
  bool is_answered_ = false;
  Answer answer_ = Answer::kDone;
  std::string sentence_;  // if it has failed
};

}  // namespace wsync::python
