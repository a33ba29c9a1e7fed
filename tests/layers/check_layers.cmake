# Checks who includes whom. Usage: cmake -D ROOT=<source tree> -P check_layers.cmake
#
# Prints every include that breaks a rule as file:line and fails if there was one:
#   1. a module includes public headers only of itself and of the modules below it (table here);
#   2. `#include "x.h"` without "tessera/" names a private header of the same module;
#   3. a public header includes only the standard library, ours, and what the installed package
#      finds for its users (`public_vendors`), so embedding Tessera needs no other package;
#   4. no two files have the same name, so that a name in a message or a search is one file.
cmake_minimum_required(VERSION 3.25)

if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "ROOT is '${ROOT}', which is not a folder; pass -D ROOT=<source tree>")
endif()

# Top down would read nicer, but each row uses the ones above it.
set(modules core kernels collectives autograd sharding checkpoint lab trainer compat model embed cli python)
set(core_folder runtime/core)
set(core_may "")
set(kernels_folder kernels)
set(kernels_may core)
set(collectives_folder collectives)
set(collectives_may core kernels)
set(autograd_folder runtime/autograd)
set(autograd_may core kernels)
set(sharding_folder runtime/sharding)
set(sharding_may core kernels collectives autograd)
set(checkpoint_folder runtime/checkpoint)
set(checkpoint_may core kernels autograd sharding)
set(lab_folder runtime/lab)
set(lab_may core kernels collectives autograd sharding)
set(trainer_folder runtime/trainer)
set(trainer_may core kernels collectives autograd sharding checkpoint lab)
set(compat_folder runtime/compat)
set(compat_may core kernels collectives autograd sharding checkpoint lab trainer)
set(model_folder model)
set(model_may core kernels autograd checkpoint)
set(embed_folder runtime/embed)
set(embed_may core kernels collectives autograd sharding checkpoint lab trainer compat model)
set(cli_folder runtime/cli)
set(cli_may core kernels collectives autograd sharding checkpoint lab trainer compat model)
set(python_folder runtime/python)
set(python_may core kernels collectives autograd sharding checkpoint lab trainer compat model cli)
set(public_vendors "nlohmann/json(_fwd)?[.]hpp")

set(shared_names gradient_sums.h)  # still to be renamed

set(violations 0)
set(includes_seen 0)

macro(violation text)
  math(EXPR violations "${violations} + 1")
  message("${file}:${line_number}: ${text}")
endmacro()

# Checks that no file before `file` has its name.
macro(check_name)
  get_filename_component(name "${file}" NAME)
  set(line_number 1)
  if(DEFINED "file_of_${name}" AND NOT name IN_LIST shared_names)
    violation("${file_of_${name}} has the same name; name each file by what it has")
  endif()
  set("file_of_${name}" "${file}")
endmacro()

# Checks one `#include` of `file`; `header` is its name, `quoted` says "x" rather than <x>.
macro(check_include)
  math(EXPR includes_seen "${includes_seen} + 1")
  if(header MATCHES "^tessera/([^/]+)/")
    if(NOT CMAKE_MATCH_1 STREQUAL module AND NOT CMAKE_MATCH_1 IN_LIST ${module}_may)
      list(JOIN ${module}_may ", " allowed)
      violation("${module} may not include ${CMAKE_MATCH_1} (\"${header}\"); it may include: ${allowed}")
    endif()
  elseif(quoted)
    if(header STREQUAL "simt.h")
      # The language of kernels: nvcc's or the emulator's, whichever is on the include path.
    elseif(header MATCHES "[.][.]" OR NOT EXISTS "${folder}/src/${header}")
      violation("\"${header}\" is not a private header of ${module} (${${module}_folder}/src)")
    endif()
  elseif(file MATCHES "/include/tessera/" AND header MATCHES "[./]" AND NOT header MATCHES "^${public_vendors}$")
    violation("a public header may not include <${header}>: its users would need that package")
  endif()
endmacro()

foreach(module IN LISTS modules)
  set(folder "${ROOT}/${${module}_folder}")
  file(GLOB_RECURSE files "${folder}/*.h" "${folder}/*.cpp" "${folder}/*.cuh" "${folder}/*.cu")
  foreach(file IN LISTS files)
    check_name()
    # file(STRINGS) with a regex would lose the line numbers. Brackets and semicolons mean something
    # in CMake lists and never occur in an include, so they may go.
    file(READ "${file}" text)
    string(REGEX REPLACE "[][;\\]" " " text "${text}")
    string(REPLACE "\n" ";" lines "${text}")
    set(line_number 0)
    foreach(line IN LISTS lines)
      math(EXPR line_number "${line_number} + 1")
      if(line MATCHES "^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]")
        set(header "${CMAKE_MATCH_2}")
        string(COMPARE EQUAL "${CMAKE_MATCH_1}" "\"" quoted)
        check_include()
      endif()
    endforeach()
  endforeach()
endforeach()

if(includes_seen EQUAL 0)
  message(FATAL_ERROR "no #include found below ${ROOT}: is it the source tree?")
endif()
if(violations GREATER 0)
  message(FATAL_ERROR "${violations} of ${includes_seen} includes break the layering")
endif()
message("${includes_seen} includes respect the layering")
