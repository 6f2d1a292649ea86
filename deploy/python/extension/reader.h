// The class Reader of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace wsync::python {

void bind_reader(nanobind::module_& module);

}  // namespace wsync::python
