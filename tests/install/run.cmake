# The install test: install to an empty prefix, then configure, build and test consumer/ against it. With HEADERS, only
# compile each installed header by itself.
# Usage: cmake -D BUILD=… -D WORK=… -D DATA=… -D GENERATOR=… -D COMPILER=… -D VERSION=… [-D HEADERS=ON] -P run.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  list(JOIN ARGV " " line)
  message("+ ${line}")
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/first" --strip)

# `./run build` makes the library, the program and its modules. That must do: every binary that is installed has to
# come with these targets.
if(GENERATOR STREQUAL "Ninja")
  execute_process(COMMAND ninja -C "${BUILD}" -t commands tessera tessera_cli tessera_modules
                  OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE binaries "${WORK}/first/*.so" "${WORK}/first/*.a" "${WORK}/first/bin/*")
  list(LENGTH binaries count)
  if(count LESS 2)
    message(FATAL_ERROR "the library and the program should be installed, not: ${binaries}")
  endif()
  foreach(binary IN LISTS binaries)
    get_filename_component(name "${binary}" NAME)
    if(NOT commands MATCHES "[ /]${name} ")
      message(FATAL_ERROR "${name} is installed, but './run build' does not make it")
    endif()
  endforeach()
endif()

# The package must not remember where it was installed to, nor where it was built.
file(RENAME "${WORK}/first" "${WORK}/prefix")
file(GLOB_RECURSE package_files "${WORK}/prefix/*tessera*.cmake")
if(NOT package_files)
  message(FATAL_ERROR "no CMake package below ${WORK}/prefix")
endif()
foreach(file IN LISTS package_files)
  file(READ "${file}" text)
  foreach(path IN ITEMS "${BUILD}" "${DATA}" "${WORK}/first")
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}, which its users do not have")
    endif()
  endforeach()
endforeach()

file(GLOB_RECURSE modules "${WORK}/prefix/*.so")
list(TRANSFORM modules REPLACE ".*/" "")
list(JOIN modules "," modules)  # a list would not survive run()
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/consumer" -B "${WORK}/build" -G "${GENERATOR}"
    -D CMAKE_PREFIX_PATH=${WORK}/prefix -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_DISABLE_FIND_PACKAGE_OpenCL=TRUE
    -D TESSERA_VERSION=${VERSION} -D TESSERA_EXAMPLE_DATA=${DATA}/tests/text
    -D TESSERA_MODULES=${modules})
if(HEADERS)
  run(${CMAKE_COMMAND} --build "${WORK}/build" --parallel 2 --target each_header)
  file(REMOVE_RECURSE "${WORK}")
  return()
endif()
run(${CMAKE_COMMAND} --build "${WORK}/build" --parallel 2)
run(${CMAKE_CTEST_COMMAND} --test-dir "${WORK}/build" --output-on-failure --no-tests=error)
run(${CMAKE_COMMAND} -D EXAMPLE=${WORK}/build/train_own_loop -D DATA=${DATA}/tests/text
    -P "${CMAKE_CURRENT_LIST_DIR}/run_own_loop.cmake")
file(REMOVE_RECURSE "${WORK}")
