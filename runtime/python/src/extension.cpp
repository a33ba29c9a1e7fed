// The module tessera._core: what runtime/python/tessera makes Python's classes and functions of.
#include <pybind11/pybind11.h>

#include "bindings.h"
#include "errors.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Tessera's C++ library, for the package tessera, which documents it.";
  module.attr("__version__") = TESSERA_VERSION;
  tessera::python::add_errors(module);
  tessera::python::add_schedules(module);
  tessera::python::add_answers(module);
  tessera::python::add_session(module);
}
