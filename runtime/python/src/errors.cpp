#include "errors.h"

#include <map>

#include "tessera/cli/given_settings.h"
#include "tessera/core/error.h"

namespace py = pybind11;

namespace tessera::python {
namespace {

/// The exception of each code; they live as long as the interpreter.
std::map<ErrorCode, py::object>& exceptions() {
  static auto* const all = new std::map<ErrorCode, py::object>();
  return *all;
}

void throw_in_python(const Error& error) {
  const py::object& type = exceptions().at(error.code());
  py::object value = type(cli::with_keywords(error.what()));
  value.attr("code") = to_string(error.code());
  PyErr_SetObject(type.ptr(), value.ptr());
}

}  // namespace

void add_errors(py::module_& module) {
  const py::object error = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "tessera.Error",
      "What the library could not do, why, and what to do about it. code is one of "
      "'invalid-argument', 'config', 'not-found', 'io', 'out-of-memory', 'timeout', 'aborted', "
      "'unavailable', 'internal'.",
      PyExc_RuntimeError, nullptr));
  module.attr("Error") = error;
  // A class of Python's own besides, which programs catch that do not know ours.
  const auto add = [&](const char* name, const char* doc, PyObject* also, ErrorCode code) {
    const py::tuple bases = py::make_tuple(error, py::reinterpret_borrow<py::object>(also));
    const std::string full = std::string("tessera.") + name;
    const py::object type = py::reinterpret_steal<py::object>(
        PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr));
    module.attr(name) = type;
    exceptions()[code] = type;
  };
  for (const ErrorCode code : {ErrorCode::kAborted, ErrorCode::kInternal}) {
    exceptions()[code] = error;
  }
  add("ConfigError", "A setting is unknown, out of range or contradicts another.", PyExc_ValueError,
      ErrorCode::kConfig);
  add("InvalidArgumentError", "A call, or the data of a run, broke a documented condition.",
      PyExc_ValueError, ErrorCode::kInvalidArgument);
  add("NotFoundError", "A file or a name does not exist.", PyExc_FileNotFoundError,
      ErrorCode::kNotFound);
  add("FileError", "Reading or writing a file failed.", PyExc_OSError, ErrorCode::kIo);
  add("OutOfMemoryError", "It does not fit the memory.", PyExc_MemoryError,
      ErrorCode::kOutOfMemory);
  add("TimeoutError", "Another process did not arrive in time.", PyExc_TimeoutError,
      ErrorCode::kTimeout);
  add("UnavailableError", "A backend is not built in, or has no device here.", PyExc_RuntimeError,
      ErrorCode::kUnavailable);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& one) {
      throw_in_python(one);
    }
  });
}

}  // namespace tessera::python
