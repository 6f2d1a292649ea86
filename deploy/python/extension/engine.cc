#include "deploy/python/extension/engine.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <vector>

#include "deploy/python/extension/calls.h"
#include "inference_side/engine_link/wsync/engine.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace nb = nanobind;

// Of the library, where it has it.
extern "C" void wsync_engine_fail(wsync_engine* engine, const char* sentence) __attribute__((weak));

namespace wsync::python {
namespace {

using Clock = std::chrono::steady_clock;
using Shape = std::vector<std::uint64_t>;
using Range = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;

// In the order of wsync_engine_callbacks; wsync/replica.py has the same numbers.
enum class Callback { kPause, kLoadBegin, kLoadLayer, kCommit, kResume, kReadTensor };
constexpr const char* kCallbackNames[] = {"pause",  "load_begin", "load_layer",
                                          "commit", "resume",     "read_tensor"};

// A callback of the library, until it is answered. Only the fields of its kind are set.
struct Call {
  Callback callback{};
  int mode = 0;
  std::uint32_t deadline_ms = 0;
  wsync_version version{};
  std::uint32_t layer = 0;
  std::vector<wsync_layer_tensor> tensors;
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::byte* out = nullptr;
  std::uint64_t bytes = 0;
};

struct Options {
  std::string socket;
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  bool leader = true;
  std::uint32_t device = 0;
  int take = 0;
  bool serving = false;
  bool can_read = false;
};

// One engine and its thread. Shared by the Python object and the thread, so that a thread that must
// not be waited for may end later.
class Link : public std::enable_shared_from_this<Link> {
 public:
  explicit Link(Options options) : options_(std::move(options)) {}
  ~Link() {
    if (is_here() && wake_fd_ >= 0) ::close(wake_fd_);
  }

  Failure create();
  Failure with_engine(int (*use)(wsync_engine*)) { return failure_of(use(engine_)); }
  Failure add_tensor(const std::string& name, const std::string& dtype, const Shape& shape,
                     const std::vector<Range>& ranges, std::uintptr_t destination);
  Failure attach();
  // Whether it can be polled: it is attached, and this is not a child.
  Failure check();

  // Lets the thread handle events once, within the time; returns false if there is nothing to do
  // and no time. Then next_call() until it returns nothing.
  std::tuple<Failure, bool> begin_poll(std::optional<Clock::time_point> end);
  void end_poll_early();
  // Waits up to one slice. `has_ended`: the poll is over, with `failure` or without.
  struct Next {
    bool has_ended = false;
    Failure failure;
    std::optional<Call> call;
  };
  Next next_call();
  // The answer to the call that next_call() has returned; false if nobody waits for it any more.
  bool answer(bool ok, const std::string& sentence, const void* read, std::size_t read_bytes);

  void report_paused(std::uint64_t step) {
    const std::lock_guard lock(engine_mutex_);
    if (engine_ != nullptr) wsync_engine_report_paused(engine_, step);
  }
  void report_running(std::uint64_t step) {
    const std::lock_guard lock(engine_mutex_);
    if (engine_ != nullptr) wsync_engine_report_running(engine_, step);
  }
  wsync_engine_state status() {
    const std::lock_guard lock(engine_mutex_);
    return engine_ == nullptr ? wsync_engine_state{} : wsync_engine_status(engine_);
  }
  int fd() const { return fd_; }
  bool is_here() const { return ::getpid() == home_; }
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
  int hand_over(Call call);
  template <class Fill>
  static int called(void* user, Callback callback, Fill fill);
  static wsync_engine_callbacks callbacks(bool has_layers, bool can_read);

  const pid_t home_ = ::getpid();
  const Options options_;
  int wake_fd_ = -1;
  int fd_ = -1;
  std::mutex engine_mutex_;  // of engine_ while it is destroyed
  wsync_engine* engine_ = nullptr;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool is_running_ = false;  // the thread has been started and has not ended
  bool is_closing_ = false;
  bool is_polling_ = false;  // between begin_poll and the end that next_call returns
  bool has_polled_ = false;
  bool end_early_ = false;
  std::optional<Clock::time_point> poll_end_;
  Failure poll_failure_;
  std::optional<Call> call_;
  bool is_taken_ = false;  // call_ has been returned by next_call()
  bool is_answered_ = false;
  bool is_ok_ = false;
  std::string sentence_;  // if it is not ok
};

Failure Link::create() {
  if (options_.socket.empty() || options_.socket.front() != '/')
    return {WSYNC_INVALID_INPUT, "socket is '" + options_.socket +
                                     "', expected the absolute path of a sidecar's engine socket"};
  if (options_.replica.empty() || options_.replica.size() > 128)
    return {WSYNC_INVALID_INPUT, "the name of a replica has 1 to 128 bytes, '" + options_.replica +
                                     "' has " + std::to_string(options_.replica.size())};
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return {WSYNC_IO, std::string("eventfd: ") + std::strerror(errno)};
  const wsync_engine_options options{.socket_path = options_.socket.c_str(),
                                     .replica = options_.replica.c_str(),
                                     .rank = options_.rank,
                                     .world_size = options_.world_size,
                                     .leader = options_.leader ? 1 : 0,
                                     .device = options_.device,
                                     .take = static_cast<wsync_take>(options_.take),
                                     .serving = options_.serving ? 1 : 0,
                                     .callbacks = callbacks(true, options_.can_read),
                                     .user = this,
                                     .weights_on = WSYNC_DEVICE_HOST,
                                     .gpu = 0};
  engine_ = wsync_engine_create(&options);
  if (engine_ == nullptr)
    return {WSYNC_RESOURCE_EXHAUSTED, "the engine cannot be created: there is no memory"};
  return {};
}

Failure Link::add_tensor(const std::string& name, const std::string& dtype, const Shape& shape,
                         const std::vector<Range>& ranges, std::uintptr_t destination) {
  std::vector<wsync_range> list;
  for (const auto& [dim, begin, length] : ranges)
    list.push_back({.dim = dim, .begin = begin, .length = length});
  const wsync_tensor tensor{.name = name.c_str(),
                            .dtype = dtype.c_str(),
                            .shape = shape.data(),
                            .shape_count = shape.size(),
                            .ranges = list.data(),
                            .range_count = list.size(),
                            .destination = reinterpret_cast<void*>(destination)};
  return failure_of(wsync_engine_add_tensor(engine_, &tensor));
}

Failure Link::attach() {
  if (const Failure failure = with_engine(&wsync_engine_attach)) return failure;
  fd_ = wsync_engine_fd(engine_);
  const WithoutSignals blocked;
  is_running_ = true;
  std::thread([self = shared_from_this()] { self->serve(); }).detach();
  return {};
}

Failure Link::check() {
  if (!is_here()) return failure_of(wsync_engine_poll(engine_, 0));
  const std::lock_guard lock(mutex_);
  if (is_closing_) return {kClosed, "the replica has been closed"};
  if (!is_running_) return {kEngineRefused, "the replica is not attached"};
  return {};
}

std::tuple<Failure, bool> Link::begin_poll(std::optional<Clock::time_point> end) {
  if (Failure failure = check()) return {std::move(failure), false};
  {
    const std::lock_guard lock(mutex_);
    if (is_polling_)
      return {Failure{WSYNC_BUSY,
                      "another thread polls this replica, or one of its callbacks "
                      "does; poll it from one thread, outside of the callbacks"},
              false};
    pollfd events{.fd = fd_, .events = POLLIN, .revents = 0};
    if (end && *end <= Clock::now() && ::poll(&events, 1, 0) == 0) return {Failure{}, false};
    is_polling_ = true;
    has_polled_ = false;
    end_early_ = false;
    poll_end_ = end;
    poll_failure_ = {};
  }
  changed_.notify_all();
  return {Failure{}, true};
}

void Link::end_poll_early() {
  if (!is_here()) return;
  {
    const std::lock_guard lock(mutex_);
    end_early_ = true;
  }
  (void)::eventfd_write(wake_fd_, 1);
}

Link::Next Link::next_call() {
  if (!is_here())
    return {.has_ended = true,
            .failure = failure_of(wsync_engine_poll(engine_, 0)),
            .call = std::nullopt};
  std::unique_lock lock(mutex_);
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

bool Link::answer(bool ok, const std::string& sentence, const void* read, std::size_t read_bytes) {
  if (!is_here()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!call_ || !is_taken_ || is_closing_) return false;
    if (ok && call_->out != nullptr)
      std::memcpy(call_->out, read, std::min<std::size_t>(read_bytes, call_->bytes));
    sentence_ = sentence;
    is_ok_ = ok;
    is_answered_ = true;
  }
  changed_.notify_all();
  return true;
}

void Link::close() {
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

void Link::serve() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_closing_ || (is_polling_ && !has_polled_); });
      if (is_closing_) break;
    }
    Failure failure;
    if (wait_for_events()) failure = failure_of(wsync_engine_poll(engine_, 0));
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

// Returns false if the time is over or the poll is to end.
bool Link::wait_for_events() {
  while (true) {
    int timeout_ms = -1;
    {
      const std::lock_guard lock(mutex_);
      if (is_closing_ || end_early_) return false;
      if (poll_end_)
        timeout_ms = static_cast<int>(
            std::clamp(std::chrono::ceil<std::chrono::milliseconds>(*poll_end_ - Clock::now()),
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
int Link::hand_over(Call call) {
  std::unique_lock lock(mutex_);
  const char* const name = kCallbackNames[static_cast<int>(call.callback)];
  call_ = std::move(call);
  is_taken_ = false;
  is_answered_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return is_answered_ || is_closing_; });
  call_.reset();
  if (is_answered_ && is_ok_) return 0;
  const std::string sentence =
      is_answered_
          ? std::exchange(sentence_, {})
          : std::string("the replica was closed before its callback ") + name + " returned";
  lock.unlock();
  if (wsync_engine_fail != nullptr) wsync_engine_fail(engine_, sentence.c_str());
  return 1;
}

template <class Fill>
int Link::called(void* user, Callback callback, Fill fill) {
  Call call{.callback = callback};
  fill(call);
  return static_cast<Link*>(user)->hand_over(std::move(call));
}

wsync_engine_callbacks Link::callbacks(bool has_layers, bool can_read) {
  wsync_engine_callbacks all{};
  all.pause = [](void* user, wsync_pause_mode mode, std::uint32_t deadline_ms) {
    return called(user, Callback::kPause, [&](Call& call) {
      call.mode = mode;
      call.deadline_ms = deadline_ms;
    });
  };
  all.load_begin = [](void* user, wsync_version version) {
    return called(user, Callback::kLoadBegin, [&](Call& call) { call.version = version; });
  };
  if (has_layers)
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
  if (can_read)
    all.read_tensor = [](void* user, std::uint32_t tensor, std::uint64_t offset, void* out,
                         std::uint64_t bytes) {
      return called(user, Callback::kReadTensor, [&](Call& call) {
        call.tensor = tensor;
        call.offset = offset;
        call.out = static_cast<std::byte*>(out);
        call.bytes = bytes;
      });
    };
  return all;
}

class Engine {
 public:
  Engine(const std::string& socket, const std::string& replica, std::uint32_t rank,
         std::uint32_t world_size, bool leader, std::uint32_t device, int take, bool serving,
         bool can_read)
      : link_(std::make_shared<Link>(Options{.socket = socket,
                                             .replica = replica,
                                             .rank = rank,
                                             .world_size = world_size,
                                             .leader = leader,
                                             .device = device,
                                             .take = take,
                                             .serving = serving,
                                             .can_read = can_read})) {
    raise_if(link_->create());
  }
  ~Engine() {
    if (!link_->is_here() || is_ending() || link_->is_closed()) return;
    const WithoutGil unlocked;
    link_->close();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add_tensor(const std::string& name, const std::string& dtype, const Shape& shape,
                  const std::vector<Range>& ranges, std::uintptr_t destination) {
    raise_if(link_->add_tensor(name, dtype, shape, ranges, destination));
  }

  // A sidecar that does not answer yet is no failure.
  bool report_starting() {
    const WithoutGil unlocked;
    return !link_->with_engine(&wsync_engine_report_starting);
  }

  void attach() {
    Failure failure;
    {
      const WithoutGil unlocked;
      failure = link_->attach();
    }
    raise_if(failure);
  }

  void check() { raise_if(link_->check()); }

  // Less than 0 seconds: without a limit.
  bool begin_poll(double seconds) {
    std::optional<Clock::time_point> end;
    if (seconds >= 0)
      end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(std::min(seconds, 1e9)));
    const auto [failure, has_begun] = link_->begin_poll(end);
    raise_if(failure);
    return has_begun;
  }

  void end_poll_early() { link_->end_poll_early(); }

  // Returns the next callback to run as (number, mode, deadline_ms, epoch, step, layer,
  // [(tensor, address, bytes)], tensor, offset, bytes), or None at the end of the poll.
  nb::object next_call() {
    while (true) {
      Link::Next next;
      {
        const WithoutGil unlocked;
        next = link_->next_call();
      }
      raise_if(next.failure);
      if (next.has_ended) return nb::none();
      if (next.call) return tuple_of(*next.call);
      check_signals();
    }
  }

  bool answer(bool ok, const std::string& sentence, std::uintptr_t read, std::size_t read_bytes) {
    return link_->answer(ok, sentence, reinterpret_cast<const void*>(read), read_bytes);
  }

  void report_paused(std::uint64_t step) {
    if (link_->is_here()) link_->report_paused(step);
  }
  void report_running(std::uint64_t step) {
    if (link_->is_here()) link_->report_running(step);
  }
  // (attached, state, epoch, step, refusals)
  std::tuple<bool, int, std::uint32_t, std::uint64_t, std::uint64_t> status() {
    const auto state = link_->is_here() ? link_->status() : wsync_engine_state{};
    return {state.attached != 0, state.state, state.active.epoch, state.active.step,
            state.refusals};
  }
  int fileno() const { return link_->is_here() ? link_->fd() : -1; }
  void close() {
    if (is_ending()) return;  // everything was closed before
    const WithoutGil unlocked;
    link_->close();
  }
  bool is_closed() { return link_->is_here() && link_->is_closed(); }

 private:
  static nb::tuple tuple_of(const Call& call) {
    nb::list tensors;
    for (const auto& tensor : call.tensors)
      tensors.append(nb::make_tuple(tensor.tensor, reinterpret_cast<std::uintptr_t>(tensor.data),
                                    tensor.bytes));
    return nb::make_tuple(static_cast<int>(call.callback), call.mode, call.deadline_ms,
                          call.version.epoch, call.version.step, call.layer, tensors, call.tensor,
                          call.offset, call.bytes);
  }

  std::shared_ptr<Link> link_;
};

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<const std::string&, const std::string&, std::uint32_t, std::uint32_t, bool,
                    std::uint32_t, int, bool, bool>(),
           nb::arg("socket"), nb::arg("replica"), nb::arg("rank"), nb::arg("world_size"),
           nb::arg("leader"), nb::arg("device"), nb::arg("take"), nb::arg("serving"),
           nb::arg("can_read"))
      .def("add_tensor", &Engine::add_tensor, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("ranges"), nb::arg("destination"))
      .def("report_starting", &Engine::report_starting)
      .def("attach", &Engine::attach)
      .def("check", &Engine::check)
      .def("begin_poll", &Engine::begin_poll, nb::arg("seconds"))
      .def("end_poll_early", &Engine::end_poll_early)
      .def("next_call", &Engine::next_call)
      .def("answer", &Engine::answer, nb::arg("ok"), nb::arg("sentence"), nb::arg("read"),
           nb::arg("read_bytes"))
      .def("report_paused", &Engine::report_paused, nb::arg("step"))
      .def("report_running", &Engine::report_running, nb::arg("step"))
      .def("status", &Engine::status)
      .def("fileno", &Engine::fileno)
      .def("close", &Engine::close)
      .def_prop_ro("is_closed", &Engine::is_closed);
  module.attr("passes_sentences") = wsync_engine_fail != nullptr;
}

}  // namespace wsync::python
