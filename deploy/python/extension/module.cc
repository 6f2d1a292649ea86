// The extension module wsync._native.core.
#include <cstring>
#include <nanobind/nanobind.h>

#include "deploy/python/extension/calls.h"
#include "deploy/python/extension/engine.h"
#include "deploy/python/extension/known_tensors.h"
#include "deploy/python/extension/memory.h"
#include "deploy/python/extension/reader.h"
#include "deploy/python/extension/trainer.h"
#include "deploy/python/extension/weight_directory.h"
#include "shared/control/envelope.h"

namespace nb = nanobind;

NB_MODULE(core, module) {
  module.doc() = "The C APIs of wsync, for the modules of this package alone.";
  module.attr("version") = WSYNC_VERSION;
  module.attr("protocol") = wsync::control::kProtocolVersion;
  // At exit, objects of this module may be alive in other modules: that is no leak to report.
  nb::set_leak_warnings(false);
  wsync::python::bind_memory(module);
  wsync::python::bind_known_tensors(module);
  wsync::python::bind_trainer(module);
  wsync::python::bind_engine(module);
  wsync::python::bind_reader(module);
  wsync::python::bind_weight_directory(module);
  module.def("end_calls", &wsync::python::end_calls, nb::arg("limit_s"));
  // Of the memory of an array in row-major order.
  module.def(
      "address",
      [](nb::handle array) {
        Py_buffer view;
        if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
        const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
        PyBuffer_Release(&view);
        return address;
      },
      nb::arg("array"));
  module.def(
      "copy_out",
      [](std::uintptr_t from, std::uintptr_t into, std::size_t bytes) {
        const wsync::python::WithoutGil unlocked;
        std::memcpy(reinterpret_cast<void*>(into), reinterpret_cast<const void*>(from), bytes);
      },
      nb::arg("from_address"), nb::arg("into_address"), nb::arg("bytes"));
}
