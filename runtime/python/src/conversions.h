#pragma once

#include <pybind11/pybind11.h>

#include <nlohmann/json_fwd.hpp>

namespace tessera::python {

/// Numbers, texts, lists and dictionaries of Python.
pybind11::object to_python(const nlohmann::ordered_json& json);

}  // namespace tessera::python
