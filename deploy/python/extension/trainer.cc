#include "deploy/python/extension/trainer.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <span>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#include "deploy/python/extension/calls.h"
#include "deploy/python/extension/known_tensors.h"
#include "deploy/python/extension/memory.h"
#include "deploy/python/extension/trainer_handle.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace nb = nanobind;

namespace wsync::python {
namespace {

using Clock = std::chrono::steady_clock;
using Shape = std::vector<std::uint64_t>;
using Range = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
// Elements that one call of the library writes, so that Ctrl-C ends a publish soon.
constexpr std::uint64_t kElementsOfCall = 128U << 20U;
// In the order of wsync_publish_status.
using Status = std::tuple<int, int, std::uint64_t, std::uint32_t, std::uint64_t, std::uint64_t,
                          std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                          std::uint32_t, std::uint64_t, std::uint64_t, std::string>;

Status status_of(const wsync_publish_status& s) {
  return {s.state,
          s.code,
          s.step,
          s.version.epoch,
          s.version.step,
          s.content_digest[0],
          s.content_digest[1],
          s.bytes,
          s.snapshot_ns,
          s.staged_ns,
          s.paused_ns,
          s.replicas,
          s.done_bytes,
          s.total_bytes,
          s.reason};
}

std::optional<wsync_range> range_of(const std::optional<Range>& range) {
  if (!range) return std::nullopt;
  return wsync_range{
      .dim = std::get<0>(*range), .begin = std::get<1>(*range), .length = std::get<2>(*range)};
}

// The parts of put_all(). Names and dtypes are those of the Python objects, without copies.
struct ReadParts {
  explicit ReadParts(const nb::list& given) {
    std::vector<std::pair<std::size_t, std::size_t>> places;  // in shapes and ranges
    parts.reserve(given.size());
    ranges.reserve(given.size());
    for (const nb::handle one : given) {
      const auto part = nb::cast<nb::tuple>(one);
      const auto shape = nb::cast<nb::tuple>(part[2]);
      const auto own_ranges = nb::cast<nb::tuple>(part[3]);
      places.emplace_back(shapes.size(), ranges.size());
      for (const nb::handle extent : shape) shapes.push_back(nb::cast<std::uint64_t>(extent));
      if (own_ranges.size() > 0) {
        const auto range = nb::cast<Range>(own_ranges[0]);
        ranges.push_back(*range_of(range));
      }
      parts.push_back({.name = nb::cast<const char*>(part[0]),
                       .dtype = nb::cast<const char*>(part[1]),
                       .publish_dtype = nullptr,
                       .shape = nullptr,
                       .shape_count = shape.size(),
                       .ranges = nullptr,
                       .range_count = own_ranges.size() > 0 ? 1U : 0U,
                       .data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(part[5])),
                       .scales = nullptr,
                       .scale_count = 0,
                       .compute_scales = 0,
                       .data_on = part[6].is_none() ? WSYNC_DEVICE_HOST : WSYNC_DEVICE_CUDA,
                       .gpu = part[6].is_none() ? 0 : nb::cast<int>(part[6]),
                       .stream = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(part[7]))});
    }
    // Only now, because the lists move when they grow.
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].shape = shapes.data() + places[i].first;
      if (parts[i].range_count > 0) parts[i].ranges = ranges.data() + places[i].second;
    }
  }

  std::vector<std::uint64_t> shapes;
  std::vector<wsync_range> ranges;
  std::vector<wsync_trainer_part> parts;
};

class Draft {
 public:
  Draft(std::shared_ptr<Handle> handle, wsync_draft id) : handle_(std::move(handle)), id_(id) {}
  // Ctrl-C may come when the call that has begun the version has returned, and before Python has
  // stored it. Then nobody else can abandon it.
  ~Draft() {
    if (is_over_ || !handle_->is_here() || Py_IsInitialized() == 0 || is_ending()) return;
    abandon();
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  // The caller keeps the arrays at the addresses alive.
  void put(const std::string& name, const std::string& dtype,
           const std::optional<std::string>& publish_dtype, const Shape& shape,
           const std::optional<Range>& range, std::uintptr_t data, std::uintptr_t scales,
           std::size_t scale_count, bool compute_scales, std::optional<int> gpu,
           std::uintptr_t stream) {
    Failure failure;
    {
      const WithoutGil unlocked;
      const auto part_range = range_of(range);
      const wsync_trainer_part part{
          .name = name.c_str(),
          .dtype = dtype.c_str(),
          .publish_dtype = publish_dtype ? publish_dtype->c_str() : nullptr,
          .shape = shape.data(),
          .shape_count = shape.size(),
          .ranges = part_range ? &*part_range : nullptr,
          .range_count = part_range ? 1U : 0U,
          .data = reinterpret_cast<const void*>(data),
          .scales = reinterpret_cast<const float*>(scales),
          .scale_count = scale_count,
          .compute_scales = compute_scales ? 1 : 0,
          .data_on = gpu ? WSYNC_DEVICE_CUDA : WSYNC_DEVICE_HOST,
          .gpu = gpu.value_or(0),
          .stream = reinterpret_cast<const void*>(stream)};
      failure = while_open(
          name, [&](wsync_trainer* trainer) { return wsync_trainer_put(trainer, id_, &part); });
    }
    raise_if(failure);
  }

  // Writes parts in the dtype of their tensors. `given` has tuples of name, dtype, shape of the
  // whole tensor, ranges, array, address, GPU and stream (Described of wsync/_tensors.py), which
  // keep the arrays alive. Returns the failure and the index of the part that it is about.
  std::tuple<int, std::string, std::size_t> put_all(const nb::list& given) {
    return write(ReadParts(given).parts);
  }

  // The same with the tensors that KnownTensors::read() has found. The caller keeps them alive.
  // Returns the name of the tensor that the failure is about, if it is about one.
  std::tuple<int, std::string, std::optional<std::string>> put_known(const KnownTensors& known) {
    const auto [code, sentence, failed] = write(known.parts());
    std::optional<std::string> name;
    if (code != 0 && failed < known.parts().size()) name = known.parts()[failed].name;
    return {code, sentence, std::move(name)};
  }

  // Returns a second mapping of the tensor's memory.
  nb::object map(const std::string& name) {
    void* data = nullptr;
    std::uint64_t bytes = 0;
    Failure failure;
    {
      const WithoutGil unlocked;
      failure = while_open(name, [&](wsync_trainer* trainer) {
        return wsync_trainer_map(trainer, id_, name.c_str(), &data, &bytes);
      });
    }
    raise_if(failure);
    return nb::module_::import_("wsync._native.core")
        .attr("Memory")(reinterpret_cast<std::uintptr_t>(data), static_cast<std::size_t>(bytes),
                        true);
  }

  // Returns the publish, after the version has been summed and, with several ranks, all of them
  // have written their parts. Waits for the puts that run.
  std::uint64_t end() {
    close();
    is_over_ = true;  // what the library has begun to end cannot be abandoned
    auto publish = std::make_shared<wsync_publish>(0);
    const Failure failure = Task::run(
        handle_,
        [id = id_, publish](wsync_trainer* trainer) {
          return wsync_trainer_end(trainer, id, publish.get());
        },
        nullptr);
    if (failure) {
      drop();
      raise(failure);
    }
    return *publish;
  }

  // Does nothing after end() or abandon().
  void abandon() {
    if (std::exchange(is_over_, true)) return;
    close();
    drop();
  }

 private:
  // Returns the failure and the index of the part that it is about.
  std::tuple<int, std::string, std::size_t> write(std::span<const wsync_trainer_part> parts) {
    for (std::size_t begin = 0; begin < parts.size();) {
      std::size_t end = begin;
      for (std::uint64_t elements = 0; end < parts.size() && elements < kElementsOfCall; ++end) {
        std::uint64_t own = 1;
        for (const std::uint64_t extent : std::span(parts[end].shape, parts[end].shape_count))
          own *= extent;
        elements += own;
      }
      std::size_t failed = end - begin;
      Failure failure;
      {
        const WithoutGil unlocked;
        failure = while_open(parts[begin].name, [&](wsync_trainer* trainer) {
          return wsync_trainer_put_all(trainer, id_, &parts[begin], end - begin, &failed);
        });
      }
      if (failure) return {failure.code, failure.sentence, begin + failed};
      check_signals();
      begin = end;
    }
    return {0, {}, 0};
  }

  Failure while_open(const std::string& name,
                     const std::function<wsync_code(wsync_trainer*)>& use) {
    if (!handle_->is_here()) return handle_->is_forked();
    {
      const std::lock_guard lock(mutex_);
      if (is_closed_)
        return {WSYNC_REFUSED, "tensor " + name + ": the version has been ended or abandoned"};
      ++users_;
    }
    const Failure failure = handle_->call(use);
    const std::lock_guard lock(mutex_);
    if (--users_ == 0) idle_.notify_all();
    return failure;
  }

  void close() {
    if (!handle_->is_here()) return;
    const WithoutGil unlocked;
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    idle_.wait(lock, [&] { return users_ == 0; });
  }

  void drop() {
    const WithoutGil unlocked;
    (void)handle_->call(
        [&](wsync_trainer* trainer) { return wsync_trainer_abandon(trainer, id_); });
  }

  std::shared_ptr<Handle> handle_;
  wsync_draft id_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int users_ = 0;
  bool is_closed_ = false;
  bool is_over_ = false;  // protected by the GIL
};

// The rest of a time limit in slices. Without a limit it is never over.
class SlicedTime {
 public:
  explicit SlicedTime(double seconds) {
    if (seconds >= 0)
      end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(std::min(seconds, 1e9)));
  }
  bool is_over() const { return end_ && Clock::now() >= *end_; }
  int next_ms() const {
    if (!end_) return static_cast<int>(kSlice.count());
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(*end_ - Clock::now());
    return static_cast<int>(std::clamp(rest, std::chrono::milliseconds(0), kSlice).count());
  }

 private:
  std::optional<Clock::time_point> end_;
};

class Trainer {
 public:
  Trainer(const std::optional<std::string>& config, const std::vector<std::string>& settings,
          std::uint32_t rank, std::uint32_t world_size) {
    Failure failure;
    {
      const WithoutGil unlocked;
      std::vector<const char*> texts;
      texts.reserve(settings.size());
      for (const auto& setting : settings) texts.push_back(setting.c_str());
      const wsync_trainer_options options{.config_file = config ? config->c_str() : nullptr,
                                          .settings = texts.data(),
                                          .setting_count = texts.size(),
                                          .rank = rank,
                                          .world_size = world_size};
      wsync_trainer* trainer = nullptr;
      failure = failure_of(wsync_trainer_create(&options, &trainer));
      handle_ = std::make_shared<Handle>(trainer);
    }
    raise_if(failure);
  }
  ~Trainer() {
    if (!handle_->is_here() || Py_IsInitialized() == 0 || is_ending()) return;
    const WithoutGil unlocked;
    handle_->close();
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // May wait for a command that has the addresses. A signal ends the wait, and close() what was
  // begun.
  void start() { raise_if(Task::run(handle_, &wsync_trainer_start, nullptr)); }
  void check() { call(&wsync_trainer_check); }

  void add_tensor(const std::string& name, const std::string& dtype, const Shape& shape,
                  const std::optional<Range>& range) {
    call([&](wsync_trainer* trainer) {
      const auto part_range = range_of(range);
      const wsync_trainer_tensor tensor{.name = name.c_str(),
                                        .dtype = dtype.c_str(),
                                        .shape = shape.data(),
                                        .shape_count = shape.size(),
                                        .ranges = part_range ? &*part_range : nullptr,
                                        .range_count = part_range ? 1U : 0U,
                                        .data = nullptr,
                                        .read = nullptr,
                                        .user = nullptr,
                                        .data_on = WSYNC_DEVICE_HOST,
                                        .gpu = 0,
                                        .stream = nullptr};
      return wsync_trainer_add_tensor(trainer, &tensor);
    });
  }

  void clear_tensors() {
    call([](wsync_trainer* trainer) {
      wsync_trainer_clear_tensors(trainer);
      return WSYNC_OK;
    });
  }

  // Waits for memory. One that was interrupted keeps its place in the library until its own wait is
  // over.
  std::unique_ptr<Draft> begin(std::uint64_t step) {
    if (left_begin_ && handle_->is_here()) {
      const auto left = left_begin_;
      left->settle(*handle_);
      left_begin_.reset();
    }
    auto draft = std::make_shared<wsync_draft>(0);
    const Failure failure = Task::run(
        handle_,
        [step, draft](wsync_trainer* trainer) {
          return wsync_trainer_begin(trainer, step, draft.get());
        },
        [draft](wsync_trainer* trainer) { return wsync_trainer_abandon(trainer, *draft); },
        &left_begin_);
    raise_if(failure);
    return std::make_unique<Draft>(handle_, *draft);
  }

  Status poll(std::uint64_t publish) {
    wsync_publish_status status{};
    call([&](wsync_trainer* trainer) { return wsync_trainer_poll(trainer, publish, &status); });
    return status_of(status);
  }

  // Returns the failure and the status. Less than 0 seconds: without a limit.
  std::tuple<int, std::string, Status> wait(std::uint64_t publish, int state, double seconds) {
    const SlicedTime time(seconds);
    wsync_publish_status status{};
    while (true) {
      Failure failure;
      {
        const WithoutGil unlocked;
        failure = handle_->call([&](wsync_trainer* trainer) {
          return wsync_trainer_wait(trainer, publish, static_cast<wsync_publish_state>(state),
                                    time.next_ms(), &status);
        });
      }
      const bool has_ended = status.state >= WSYNC_PUBLISH_COMMITTED;
      if (failure.code != WSYNC_DEADLINE || has_ended || time.is_over())
        return {failure.code, failure.sentence, status_of(status)};
      check_signals();
    }
  }

  // Returns (tensor, expected, found) of a publish whose layout does not fit, as wsync_problem has
  // them.
  std::tuple<std::string, std::string, std::string> problem(std::uint64_t publish) {
    std::tuple<std::string, std::string, std::string> texts;
    call([&](wsync_trainer* trainer) {
      wsync_problem problem{};
      const wsync_code code = wsync_trainer_problem(trainer, publish, &problem);
      if (code == WSYNC_OK) texts = {problem.tensor, problem.expected, problem.found};
      return code;
    });
    return texts;
  }

  // Returns the failure and (epoch, step) before and after. -1: as long as a switch may take.
  std::tuple<int, std::string,
             std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint64_t>>
  roll_back(std::uint32_t epoch, std::uint64_t step, int timeout_ms) {
    auto result = std::make_shared<wsync_rollback>();
    const Failure failure = Task::run(
        handle_,
        [epoch, step, timeout_ms, result](wsync_trainer* trainer) {
          return wsync_trainer_roll_back(trainer, {.epoch = epoch, .step = step}, timeout_ms,
                                         result.get());
        },
        nullptr);
    return {failure.code,
            failure.sentence,
            {result->from.epoch, result->from.step, result->to.epoch, result->to.step}};
  }

  void close() {
    if (is_ending()) return;  // everything was closed before
    const WithoutGil unlocked;
    handle_->close();
  }
  bool is_closed() const { return handle_->is_closed(); }

 private:
  void call(const std::function<wsync_code(wsync_trainer*)>& use) {
    Failure failure;
    {
      const WithoutGil unlocked;
      failure = handle_->call(use);
    }
    raise_if(failure);
  }

  std::shared_ptr<Handle> handle_;
  std::shared_ptr<Task> left_begin_;  // protected by the GIL
};

}  // namespace

void bind_trainer(nb::module_& module) {
  nb::class_<Draft>(module, "Draft")
      .def("put", &Draft::put, nb::arg("name"), nb::arg("dtype"), nb::arg("publish_dtype").none(),
           nb::arg("shape"), nb::arg("range").none(), nb::arg("data"), nb::arg("scales"),
           nb::arg("scale_count"), nb::arg("compute_scales"), nb::arg("gpu").none(),
           nb::arg("stream"))
      .def("put_all", &Draft::put_all, nb::arg("parts"))
      .def("put_known", &Draft::put_known, nb::arg("known"))
      .def("map", &Draft::map, nb::arg("name"))
      .def("end", &Draft::end)
      .def("abandon", &Draft::abandon);
  nb::class_<Trainer>(module, "Trainer")
      .def(nb::init<const std::optional<std::string>&, const std::vector<std::string>&,
                    std::uint32_t, std::uint32_t>(),
           nb::arg("config").none(), nb::arg("settings"), nb::arg("rank"), nb::arg("world_size"))
      .def("start", &Trainer::start)
      .def("check", &Trainer::check)
      .def("add_tensor", &Trainer::add_tensor, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("range").none())
      .def("clear_tensors", &Trainer::clear_tensors)
      .def("begin", &Trainer::begin, nb::arg("step"))
      .def("poll", &Trainer::poll, nb::arg("publish"))
      .def("problem", &Trainer::problem, nb::arg("publish"))
      .def("wait", &Trainer::wait, nb::arg("publish"), nb::arg("state"), nb::arg("seconds"))
      .def("roll_back", &Trainer::roll_back, nb::arg("epoch"), nb::arg("step"),
           nb::arg("timeout_ms"))
      .def("close", &Trainer::close)
      .def_prop_ro("is_closed", &Trainer::is_closed);
}

}  // namespace wsync::python
