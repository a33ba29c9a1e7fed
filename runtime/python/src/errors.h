#pragma once

#include <pybind11/pybind11.h>

namespace tessera::python {

/// Makes the exceptions of Python: tessera.Error with an attribute `code`, and below it a class for
/// each code that a caller may want to tell apart.
void add_errors(pybind11::module_& module);

}  // namespace tessera::python
