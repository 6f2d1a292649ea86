// wsync/engine.h for Python. The library's calls and callbacks run on a thread of this file that
// never enters Python: a callback is handed to the thread that is in poll(), and that thread's
// answer is handed back. So no frame of Python lies above a frame of the library, and a callback
// that hangs, a closed replica or the end of the interpreter cannot end the process.
#pragma once

#include <nanobind/nanobind.h>

namespace wsync::python {

void bind_engine(nanobind::module_& module);

}  // namespace wsync::python
