# The CUDA backend, libtessera_cuda.so: built where the CUDA toolkit is, loaded by the program on demand
# (runtime/core/src/cuda_module.cpp), absent elsewhere.
option(TESSERA_CUDA "Build the CUDA backend if the CUDA toolkit is found" ON)
# The environment's CUDAARCHS, which CMake knows, sets what the first configuration begins with.
set(TESSERA_CUDA_ARCHITECTURES "$ENV{CUDAARCHS}" CACHE STRING "GPU architectures of the CUDA backend, as \
CMAKE_CUDA_ARCHITECTURES writes them; empty: sm_80 for the A100 and, as binaries run on later minors of a major, for \
sm_86 and sm_89; sm_90 for the H100 and H200; and PTX of 9.0 for the drivers of newer GPUs")
# Below, its sources are compiled for the emulator, which brings its own sanitized build.
if(NOT TESSERA_CUDA OR TESSERA_SANITIZE)
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "No CUDA compiler: Tessera is built without its CUDA backend")
  return()
endif()
find_package(CUDAToolkit 13.0)
find_path(TESSERA_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_ROOT PATH_SUFFIXES include)
find_path(TESSERA_CUDNN_INCLUDE cudnn_backend.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_ROOT PATH_SUFFIXES include)
# Its wheel, whose library has only the versioned name, may be all there is of cuBLASLt.
find_path(TESSERA_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUBLAS_ROOT PATH_SUFFIXES include)
find_library(TESSERA_CUBLASLT NAMES cublasLt libcublasLt.so.13
             HINTS ${CUDAToolkit_LIBRARY_DIR} ENV CUBLAS_ROOT PATH_SUFFIXES lib64 lib)
set(_headers ${TESSERA_NCCL_INCLUDE} ${TESSERA_CUDNN_INCLUDE} ${TESSERA_CUBLASLT_INCLUDE})
foreach(needed CUDAToolkit_FOUND TESSERA_NCCL_INCLUDE TESSERA_CUDNN_INCLUDE TESSERA_CUBLASLT_INCLUDE TESSERA_CUBLASLT)
  if(NOT ${needed})
    message(STATUS "${needed} is missing: Tessera is built without its CUDA backend "
                   "(it needs CUDA 13 with cuBLASLt, and the headers of NCCL and cuDNN)")
    return()
  endif()
endforeach()

set(CMAKE_CUDA_ARCHITECTURES ${TESSERA_CUDA_ARCHITECTURES})
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know how to ask nvcc for C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
# Its sources have no warnings by the compilers that CI has, so there one is an error even for
# `./run test`; other compilers have others.
set(_known_compilers OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.1 AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(_known_compilers ON)
endif()
option(TESSERA_CUDA_WARNINGS_AS_ERRORS "Treat nvcc's warnings as errors, also without TESSERA_WARNINGS_AS_ERRORS"
       ${_known_compilers})
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)

get_property(_cuda_sources GLOBAL PROPERTY TESSERA_CUDA_SOURCES)
tessera_cuda_units(_cuda_units cu ${_cuda_sources})
set(_cuda_hosts ${_cuda_sources})
list(FILTER _cuda_hosts EXCLUDE REGEX "\\.cu$")
add_library(tessera_cuda MODULE ${_cuda_hosts} ${_cuda_units} $<TARGET_OBJECTS:tessera_identity>)
tessera_compile_cuda_hosts_together(tessera_cuda ${_cuda_hosts})
get_target_property(_tessera_includes tessera INCLUDE_DIRECTORIES)
target_include_directories(tessera_cuda PRIVATE
  ${_tessera_includes} ${PROJECT_SOURCE_DIR}/kernels/src/cuda/nvcc ${_headers})
# The object files of `tessera` that it refers to come along; what it shares with the program is
# passed as arguments, and exceptions and casts go by name.
target_link_libraries(tessera_cuda PRIVATE tessera CUDA::cudart_static ${TESSERA_CUBLASLT} ${CMAKE_DL_LIBS})
target_link_options(tessera_cuda PRIVATE LINKER:--as-needed LINKER:--exclude-libs,ALL)
target_compile_options(tessera_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:tessera_compile_options,INTERFACE_COMPILE_OPTIONS>>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo --threads=2 -Xcompiler=-Wall,-Wextra
    $<$<OR:$<BOOL:${TESSERA_WARNINGS_AS_ERRORS}>,$<BOOL:${TESSERA_CUDA_WARNINGS_AS_ERRORS}>>:-Werror=all-warnings>>)
set_target_properties(tessera_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
  CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
tessera_install_module(tessera_cuda)
