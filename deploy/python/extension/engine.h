// wsync/engine.h for Python. No frame of Python ever lies above a frame of the library
// (polled_engine.h), so a callback that hangs, a closed replica or the end of the interpreter
// cannot end the process.
#pragma once

#include <nanobind/nanobind.h>

namespace wsync::python {

void bind_engine(nanobind::module_& module);

}  // namespace wsync::python
