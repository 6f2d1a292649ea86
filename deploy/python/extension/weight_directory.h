// shared/weights/weight_directory.h for Python: the same writer and the same reader.
#pragma once

#include <nanobind/nanobind.h>

namespace wsync::python {

void bind_weight_directory(nanobind::module_& module);

}  // namespace wsync::python
