#include "deploy/python/extension/engine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <tuple>
#include <vector>

#include "deploy/python/extension/calls.h"
#include "deploy/python/extension/polled_engine.h"

namespace nb = nanobind;

namespace wsync::python {
namespace {

using Clock = std::chrono::steady_clock;
using Shape = std::vector<std::uint64_t>;
using Range = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;

// This class has more than 25 methods: one for each call of the C API.
class Engine {
 public:
  Engine(const std::string& socket, const std::string& replica, std::uint32_t rank,
         std::uint32_t world_size, bool leader, std::uint32_t device, int take, bool serving,
         bool any_layout, bool has_controller, bool led_steps, bool can_read, bool can_check,
         std::optional<std::uint32_t> gpu, bool changed_layers)
      : polled_(std::make_shared<PolledEngine>(EngineOptions{.socket = socket,
                                                             .replica = replica,
                                                             .rank = rank,
                                                             .world_size = world_size,
                                                             .leader = leader,
                                                             .device = device,
                                                             .take = take,
                                                             .serving = serving,
                                                             .any_layout = any_layout,
                                                             .has_controller = has_controller,
                                                             .led_steps = led_steps,
                                                             .can_read = can_read,
                                                             .can_check = can_check,
                                                             .gpu = gpu,
                                                             .changed_layers = changed_layers})) {
    raise_if(polled_->create());
  }
  ~Engine() {
    if (!polled_->is_here() || is_ending() || polled_->is_closed()) return;
    const WithoutGil unlocked;
    polled_->close();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add_tensor(const std::string& name, const std::string& dtype, const Shape& shape,
                  const std::vector<Range>& ranges, std::uintptr_t destination,
                  const std::optional<std::string>& destination_dtype) {
    std::vector<wsync_range> list;
    for (const auto& [dim, begin, length] : ranges)
      list.push_back({.dim = dim, .begin = begin, .length = length});
    raise_if(polled_->add_tensor(name, dtype, shape, list, destination, destination_dtype));
  }

  // A sidecar that does not answer yet is no failure.
  bool report_starting() {
    const WithoutGil unlocked;
    return !polled_->with_engine(&wsync_engine_report_starting);
  }

  void attach() {
    Failure failure;
    {
      const WithoutGil unlocked;
      failure = polled_->attach();
    }
    raise_if(failure);
  }

  void suspend() { on_link(&wsync_engine_suspend); }
  // `moved`: the tensors that are at other addresses now, by their numbers.
  void resume(const std::vector<std::tuple<std::uint32_t, std::uintptr_t>>& moved) {
    on_link([moved](wsync_engine* engine) {
      for (const auto& [tensor, address] : moved)
        if (const int code =
                wsync_engine_move_tensor(engine, tensor, reinterpret_cast<void*>(address));
            code != 0)
          return code;
      return wsync_engine_resume(engine);
    });
  }

  void check() { raise_if(polled_->check()); }

  // Less than 0 seconds: without a limit.
  bool begin_poll(double seconds) {
    std::optional<Clock::time_point> end;
    if (seconds >= 0)
      end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(std::min(seconds, 1e9)));
    const auto [failure, has_begun] = polled_->begin_poll(end);
    raise_if(failure);
    return has_begun;
  }

  void end_poll_early() { polled_->end_poll_early(); }

  // Returns the next callback to run as (number, mode, deadline_ms, epoch, step, layer,
  // [(tensor, address, bytes)], tensor, offset, bytes, [(name, dtype, shape)], caches), or None at
  // the end of the poll.
  nb::object next_call() {
    while (true) {
      PolledEngine::Next next;
      {
        const WithoutGil unlocked;
        next = polled_->next_call();
      }
      raise_if(next.failure);
      if (next.has_ended) return nb::none();
      if (next.call) return tuple_of(*next.call);
      check_signals();
    }
  }

  bool answer(int code, const std::string& sentence, std::uintptr_t read, std::size_t read_bytes) {
    return polled_->answer(static_cast<Answer>(code), sentence, reinterpret_cast<const void*>(read),
                           read_bytes);
  }

  // Without a sentence: success. The library answers the sidecar in this call.
  void report_loaded(std::uint32_t epoch, std::uint64_t step,
                     const std::optional<std::string>& failure) {
    if (!polled_->is_here()) return;
    const WithoutGil unlocked;
    polled_->report_loaded({.epoch = epoch, .step = step}, failure);
  }
  void report_committed(std::uint32_t epoch, std::uint64_t step,
                        const std::optional<std::string>& failure) {
    if (!polled_->is_here()) return;
    const WithoutGil unlocked;
    polled_->report_committed({.epoch = epoch, .step = step}, failure);
  }

  void report_paused(std::uint64_t step) {
    if (polled_->is_here()) polled_->report_paused(step);
  }
  void report_running(std::uint64_t step) {
    if (polled_->is_here()) polled_->report_running(step);
  }
  // (go, header)
  std::tuple<bool, nb::bytes> lead_step() {
    check();  // a forked child must not take a lock
    wsync_step_header header{};
    raise_if(polled_->lead_step(header));
    return {header.word == WSYNC_STEP_GO,
            nb::bytes(reinterpret_cast<const char*>(&header), sizeof header)};
  }
  // Bytes of another length are no header, and are refused as such.
  bool follow_step(const nb::bytes& bytes) {
    check();
    wsync_step_header header{};
    if (bytes.size() == sizeof header) std::memcpy(&header, bytes.c_str(), sizeof header);
    int go = 0;
    raise_if(polled_->follow_step(header, go));
    return go == 1;
  }
  // (attached, state, epoch, step, refusals, why it is refused)
  std::tuple<bool, int, std::uint32_t, std::uint64_t, std::uint64_t, std::string> status() {
    const bool is_here = polled_->is_here();
    const auto state = is_here ? polled_->status() : wsync_engine_state{};
    return {state.attached != 0, state.state,    state.active.epoch,
            state.active.step,   state.refusals, is_here ? polled_->why_refused() : ""};
  }
  int fileno() const { return polled_->is_here() ? polled_->fd() : -1; }
  void close() {
    if (is_ending()) return;  // everything was closed before
    const WithoutGil unlocked;
    polled_->close();
  }
  bool is_closed() { return polled_->is_here() && polled_->is_closed(); }

 private:
  // A signal ends the wait, and not what was begun.
  void on_link(std::function<int(wsync_engine*)> use) {
    const auto task = std::make_shared<PolledEngine::Task>();
    task->use = std::move(use);
    raise_if(polled_->begin_task(task));
    while (true) {
      std::optional<Failure> ended;
      {
        const WithoutGil unlocked;
        ended = polled_->wait_for_task(task);
      }
      if (ended) return raise_if(*ended);
      check_signals();
    }
  }
  static nb::tuple tuple_of(const Call& call) {
    nb::list tensors;
    for (const auto& tensor : call.tensors)
      tensors.append(nb::make_tuple(tensor.tensor, reinterpret_cast<std::uintptr_t>(tensor.data),
                                    tensor.bytes));
    nb::list layout;
    for (const auto& tensor : call.layout)
      layout.append(nb::make_tuple(tensor.name, tensor.dtype, tensor.shape));
    return nb::make_tuple(static_cast<int>(call.callback), call.mode, call.deadline_ms,
                          call.version.epoch, call.version.step, call.layer, tensors, call.tensor,
                          call.offset, call.bytes, layout, call.caches);
  }

  std::shared_ptr<PolledEngine> polled_;
};

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<const std::string&, const std::string&, std::uint32_t, std::uint32_t, bool,
                    std::uint32_t, int, bool, bool, bool, bool, bool, bool,
                    std::optional<std::uint32_t>, bool>(),
           nb::arg("socket"), nb::arg("replica"), nb::arg("rank"), nb::arg("world_size"),
           nb::arg("leader"), nb::arg("device"), nb::arg("take"), nb::arg("serving"),
           nb::arg("any_layout"), nb::arg("has_controller"), nb::arg("led_steps"),
           nb::arg("can_read"), nb::arg("can_check"), nb::arg("gpu").none(),
           nb::arg("changed_layers"))
      .def("add_tensor", &Engine::add_tensor, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("ranges"), nb::arg("destination"), nb::arg("destination_dtype").none())
      .def("report_starting", &Engine::report_starting)
      .def("attach", &Engine::attach)
      .def("suspend", &Engine::suspend)
      .def("resume", &Engine::resume, nb::arg("moved"))
      .def("check", &Engine::check)
      .def("begin_poll", &Engine::begin_poll, nb::arg("seconds"))
      .def("end_poll_early", &Engine::end_poll_early)
      .def("next_call", &Engine::next_call)
      .def("answer", &Engine::answer, nb::arg("code"), nb::arg("sentence"), nb::arg("read"),
           nb::arg("read_bytes"))
      .def("report_paused", &Engine::report_paused, nb::arg("step"))
      .def("report_running", &Engine::report_running, nb::arg("step"))
      .def("report_loaded", &Engine::report_loaded, nb::arg("epoch"), nb::arg("step"),
           nb::arg("failure").none())
      .def("report_committed", &Engine::report_committed, nb::arg("epoch"), nb::arg("step"),
           nb::arg("failure").none())
      .def("lead_step", &Engine::lead_step)
      .def("follow_step", &Engine::follow_step, nb::arg("header"))
      .def("status", &Engine::status)
      .def("fileno", &Engine::fileno)
      .def("close", &Engine::close)
      .def_prop_ro("is_closed", &Engine::is_closed);
}

}  // namespace wsync::python
