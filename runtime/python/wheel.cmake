# What pip builds: the extension, with the library, or what a build folder has of it.
#
#   pip install runtime/python                                       compiles everything: minutes
#   pip install runtime/python -C cmake.define.TESSERA_BUILD_FOLDER=$PWD/build
#                                     takes the extension that `ninja -C build tessera_package` has made
set(TESSERA_BUILD_FOLDER "" CACHE PATH "A build folder of Tessera, made for the same Python; empty: compile here")
set(modules libtessera_cuda.so libtessera_mpi.so)  # what the library loads when it is needed

if(TESSERA_BUILD_FOLDER)
  find_package(Python 3.9 COMPONENTS Interpreter Development.Module REQUIRED)
  set(extension ${TESSERA_BUILD_FOLDER}/python/tessera/_core.${Python_SOABI}.so)
  if(NOT EXISTS ${extension})
    message(FATAL_ERROR "${extension} is not there: build the target tessera_package in ${TESSERA_BUILD_FOLDER}, which "
                        "was configured with TESSERA_BUILD_PYTHON=ON and this Python, or leave TESSERA_BUILD_FOLDER out")
  endif()
  install(FILES ${extension} DESTINATION tessera)
  foreach(module IN LISTS modules)
    if(EXISTS ${TESSERA_BUILD_FOLDER}/lib/${module})
      install(FILES ${TESSERA_BUILD_FOLDER}/lib/${module} DESTINATION tessera)
    endif()
  endforeach()
  return()
endif()

set(TESSERA_BUILD_PYTHON ON)
set(TESSERA_BUILD_PROGRAM ON)
set(TESSERA_UNITY 16 CACHE STRING "")
option(TESSERA_CUDA "Build the CUDA backend if the CUDA toolkit is found: minutes" OFF)
add_subdirectory(${CMAKE_CURRENT_SOURCE_DIR}/../.. tessera EXCLUDE_FROM_ALL)
add_custom_target(wheel ALL)
add_dependencies(wheel tessera_python tessera_modules)
install(TARGETS tessera_python LIBRARY DESTINATION tessera)
foreach(module IN ITEMS tessera_cuda tessera_mpi)
  if(TARGET ${module})
    install(TARGETS ${module} LIBRARY DESTINATION tessera)
  endif()
endforeach()
