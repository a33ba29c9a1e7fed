# The Python package (runtime/python): unless somebody says so, it is built with the tests where Python's headers and
# pybind11 are found, and not for users of the library or the program.
# The environment that `./run test` has made comes before the system's Python: what it tests is installed there.
if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_BINARY_DIR}/venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_BINARY_DIR}/venv/bin/python)
endif()
if(NOT DEFINED TESSERA_BUILD_PYTHON AND TESSERA_BUILD_TESTS AND TESSERA_BUILD_PROGRAM AND NOT TESSERA_SANITIZE)
  find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
  find_package(pybind11 2.10 QUIET CONFIG)
  if(Python_FOUND AND pybind11_FOUND)
    set(TESSERA_BUILD_PYTHON ON)
  else()
    message(STATUS "Python's headers or pybind11 are missing: the Python package is not built")
  endif()
elseif(TESSERA_BUILD_PYTHON)
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)
  find_package(pybind11 2.10 REQUIRED CONFIG)
endif()
