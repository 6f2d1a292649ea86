#include "deploy/python/extension/reader.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <optional>
#include <string>
#include <tuple>
#include <unistd.h>

#include "deploy/python/extension/calls.h"
#include "inference_side/engine_link/wsync/reader.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace nb = nanobind;

namespace wsync::python {
namespace {

class Reader {
 public:
  Reader(const std::string& socket, const std::string& name)
      : reader_(wsync_reader_create(socket.c_str(), name.c_str())) {
    if (reader_ != nullptr) return;
    raise({WSYNC_INVALID_INPUT, "a reader cannot be created for the socket '" + socket +
                                    "' and the name '" + name +
                                    "': expected the absolute path of a sidecar's engine socket "
                                    "(at most 107 bytes), and a name of 1 to 128 bytes"});
  }
  ~Reader() {
    if (is_here()) destroy();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Waits at most one slice. Returns the version, or None while there is none; `waited_for` tells
  // why then.
  std::optional<std::tuple<std::uint32_t, std::uint64_t>> open(std::optional<std::uint64_t> step,
                                                               std::uint32_t after_epoch,
                                                               std::uint64_t after_step) {
    check_home();
    const wsync_reader_want want{.has_step = step ? 1 : 0,
                                 .step = step.value_or(0),
                                 .after = {.epoch = after_epoch, .step = after_step}};
    wsync_version opened{};
    int code = -1;
    Failure failure;
    {
      const WithoutGil unlocked;
      const std::lock_guard lock(mutex_);
      if (reader_ == nullptr || is_closing_) {
        failure = {kClosed, "the reader has been closed"};
      } else {
        code = wsync_reader_open(reader_, &want, static_cast<int>(kSlice.count()), &opened);
        if (code != 0) failure = {kEngineRefused, wsync_reader_error(reader_)};
      }
    }
    try {
      check_signals();
    } catch (...) {
      if (code == 0) close_version();  // nobody else knows that it is open
      throw;
    }
    if (code == WSYNC_READER_TIMEOUT) {
      waited_for_ = failure.sentence;
      return std::nullopt;
    }
    raise_if(failure);
    return std::tuple{opened.epoch, opened.step};
  }
  const std::string& waited_for() const { return waited_for_; }

  // [(name, dtype, shape, address, bytes)] of the open version.
  nb::list tensors() {
    check_home();
    nb::list list;
    const std::lock_guard lock(mutex_);
    std::uint32_t count = 0;
    if (reader_ == nullptr) raise({kClosed, "the reader has been closed"});
    if (wsync_reader_count(reader_, &count) != 0)
      raise({kEngineRefused, wsync_reader_error(reader_)});
    for (std::uint32_t i = 0; i < count; ++i) {
      wsync_tensor_info info{};
      const void* data = nullptr;
      if (wsync_reader_tensor(reader_, i, &info, &data) != 0)
        raise({kEngineRefused, wsync_reader_error(reader_)});
      nb::list shape;
      for (std::size_t d = 0; d < info.shape_count; ++d) shape.append(info.shape[d]);
      list.append(nb::make_tuple(info.name, info.dtype, shape,
                                 reinterpret_cast<std::uintptr_t>(data), info.bytes));
    }
    return list;
  }

  void close_version() {
    if (!is_here()) return;
    const WithoutGil unlocked;
    const std::lock_guard lock(mutex_);
    if (reader_ != nullptr) wsync_reader_close(reader_);
  }

  void close() {
    if (is_ending() || !is_here()) return;
    const WithoutGil unlocked;
    destroy();
  }
  bool is_closed() const { return is_closing_; }

 private:
  // The locks of a child may be held by threads that it does not have.
  bool is_here() const { return ::getpid() == home_; }
  void check_home() const {
    if (!is_here())
      raise(forked(kEngineRefused, "wsync.Reader", home_,
                   "this process may make a wsync.Reader of its own"));
  }
  void destroy() {
    is_closing_ = true;  // open() would take the lock again and again
    const std::lock_guard lock(mutex_);
    wsync_reader_destroy(reader_);
    reader_ = nullptr;
  }

  const pid_t home_ = ::getpid();
  std::atomic<bool> is_closing_ = false;
  std::mutex mutex_;  // for reader_; in no call with the GIL for long
  wsync_reader* reader_;
  std::string waited_for_;
};

}  // namespace

void bind_reader(nb::module_& module) {
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("socket"), nb::arg("name"))
      .def("open", &Reader::open, nb::arg("step").none(), nb::arg("after_epoch"),
           nb::arg("after_step"))
      .def_prop_ro("waited_for", &Reader::waited_for)
      .def("tensors", &Reader::tensors)
      .def("close_version", &Reader::close_version)
      .def("close", &Reader::close)
      .def_prop_ro("is_closed", &Reader::is_closed);
}

}  // namespace wsync::python
