# Tessera as a part of another project, and what installing does with a tree in which not everything is built. Nothing
# of Tessera is compiled, which takes minutes: the rest of the build is only gone through.
# Usage: cmake -D WORK=… -D SOURCE=… -D COMPILER=… -P run_subproject.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  list(JOIN ARGV " " line)
  message("+ ${line}")
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
# OpenCL must not be asked for: it is only what Debian's oneDNN is built with.
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/subproject" -B "${WORK}/build" -G Ninja
    -D TESSERA_FOLDER=${SOURCE} -D CMAKE_CXX_COMPILER=${COMPILER} -D TESSERA_CUDA=OFF
    -D CMAKE_DISABLE_FIND_PACKAGE_OpenCL=TRUE -D CMAKE_DISABLE_FIND_PACKAGE_CLI11=TRUE)
run(ninja -C "${WORK}/build" smoke_object)
execute_process(COMMAND ninja -C "${WORK}/build" -n smoke OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# Before the library is built nothing is copied; afterwards what there is, without the modules.
set(install ${CMAKE_COMMAND} --install "${WORK}/build/tessera" --prefix "${WORK}/prefix")
execute_process(COMMAND ${install} RESULT_VARIABLE failed OUTPUT_VARIABLE told ERROR_VARIABLE told)
file(GLOB_RECURSE copied "${WORK}/prefix/*")
if(NOT failed OR NOT told MATCHES "run build" OR copied)
  message(FATAL_ERROR "installing what is not built should say what to build, and copy nothing: ${told}${copied}")
endif()
file(TOUCH "${WORK}/build/tessera/libtessera.a")
run(${install})
if(NOT EXISTS "${WORK}/prefix/include/tessera/trainer/trainer.h")
  message(FATAL_ERROR "the headers are not installed")
endif()
file(REMOVE_RECURSE "${WORK}")
