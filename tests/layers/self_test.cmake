# Plants one violation of each rule in a small tree of its own and expects check_layers.cmake to
# name it. Usage: cmake -D WORK=<scratch folder> -P self_test.cmake
cmake_minimum_required(VERSION 3.25)

set(failures 0)

# Runs the check on a tree that holds the clean files and `file` with the one line `include`.
# `expected` is a regular expression for the check's output; empty: the check must pass.
function(expect file include expected)
  file(REMOVE_RECURSE "${WORK}")
  file(WRITE "${WORK}/runtime/core/include/tessera/core/error.h" "#pragma once\n#include <string>\n")
  file(WRITE "${WORK}/kernels/src/simd.h" "#pragma once\n#include <hwy/highway.h>\n")
  file(WRITE "${WORK}/${file}" "// int a[3]; a line before, to see the line counted\n${include}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${WORK} -P ${CMAKE_CURRENT_LIST_DIR}/check_layers.cmake
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(expected STREQUAL "" AND NOT status EQUAL 0)
    message("should pass: ${file}: ${include}\n${output}")
  elseif(NOT expected STREQUAL "" AND (status EQUAL 0 OR NOT output MATCHES "${expected}"))
    message("should fail with '${expected}': ${file}: ${include}\n${output}")
  else()
    return()
  endif()
  math(EXPR failures "${failures} + 1")
  set(failures ${failures} PARENT_SCOPE)
endfunction()

expect(kernels/src/gemm_cpu.cpp "#include \"tessera/core/error.h\"" "")
expect(kernels/src/gemm_cpu.cpp "#include \"simd.h\"" "")
expect(runtime/cli/src/main.cpp "#include \"tessera/model/gpt.h\"" "")
expect(runtime/trainer/include/tessera/trainer/settings.h "#include <nlohmann/json_fwd.hpp>" "")

expect(runtime/core/src/tensor.cpp "#include \"tessera/kernels/table.h\""
       "tensor.cpp:2: core may not include kernels")
expect(runtime/core/include/tessera/core/x.h "  #  include <tessera/trainer/trainer.h>"
       "x.h:2: core may not include trainer")
expect(model/src/gpt.cpp "#include \"tessera/sharding/plan.h\"" "model may not include sharding")
expect(runtime/sharding/src/plan.cpp "#include \"tessera/model/gpt.h\"" "sharding may not include model")
expect(runtime/trainer/src/trainer.cpp "#include \"tessera/compat/config.h\"" "trainer may not include compat")
expect(runtime/trainer/src/trainer.cpp "#include \"tessera/model/gpt.h\"" "trainer may not include model")
expect(runtime/core/src/tensor.cpp "#include \"simd.h\"" "\"simd.h\" is not a private header of core")
expect(runtime/core/src/tensor.cpp "#include \"../../../kernels/src/simd.h\"" "is not a private header")
expect(kernels/include/tessera/kernels/x.h "#include <omp.h>" "may not include <omp.h>")

expect(kernels/src/error.h "#pragma once" "kernels/src/error.h:1: .*/core/error.h has the same name")
expect(runtime/core/src/simd.h "#pragma once" "kernels/src/simd.h:1: .*core/src/simd.h has the same name")

file(REMOVE_RECURSE "${WORK}")
if(failures GREATER 0)
  message(FATAL_ERROR "the layer check misjudged ${failures} trees")
endif()
