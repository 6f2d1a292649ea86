// wsync/trainer.h for Python: the calls as they are, with what Python must not be made to wait for.
#pragma once

#include <nanobind/nanobind.h>

namespace wsync::python {

void bind_trainer(nanobind::module_& module);

}  // namespace wsync::python
