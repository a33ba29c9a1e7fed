#include "conversions.h"

#include <nlohmann/json.hpp>

namespace py = pybind11;

namespace tessera::python {

py::object to_python(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return py::bool_(json.get<bool>());
    case Type::number_integer:
      return py::int_(json.get<std::int64_t>());
    case Type::number_unsigned:
      return py::int_(json.get<std::uint64_t>());
    case Type::number_float:
      return py::float_(json.get<double>());
    case Type::string: {
      // Names of files may have bytes that are no UTF-8.
      const auto& text = json.get_ref<const std::string&>();
      return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
          text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
    }
    case Type::array: {
      py::list list;
      for (const auto& item : json) list.append(to_python(item));
      return list;
    }
    case Type::object: {
      py::dict dict;
      for (const auto& [key, value] : json.items()) dict[py::str(key)] = to_python(value);
      return dict;
    }
    case Type::null:
    case Type::binary:
    case Type::discarded:
      break;
  }
  return py::none();
}

}  // namespace tessera::python
