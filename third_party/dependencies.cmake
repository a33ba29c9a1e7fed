# Finds what the library stands on. third_party/README.md says what each is for; ./run installs the
# packages on Debian and Ubuntu. tessera-config.cmake.in repeats this list for the library's users.
#
# CLI11, Google Benchmark and GoogleTest are found where they are used: runtime/cli, bench, tests.
set(TESSERA_NLOHMANN_JSON_VERSION 3.10)

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(nlohmann_json ${TESSERA_NLOHMANN_JSON_VERSION} REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
find_package(TesseraDnnl MODULE REQUIRED)
find_package(TesseraHwloc MODULE REQUIRED)
find_package(TesseraText MODULE REQUIRED)
find_package(TesseraUring MODULE REQUIRED)
find_package(hwy CONFIG REQUIRED)

find_path(TESSERA_XXHASH_INCLUDE xxhash.h)
if(NOT TESSERA_XXHASH_INCLUDE)
  message(FATAL_ERROR "There is no xxhash.h: install xxHash (libxxhash-dev), or name its folder in CMAKE_PREFIX_PATH")
endif()

# Release 0.7 calls its target yaml-cpp, 0.8 yaml-cpp::yaml-cpp.
find_package(yaml-cpp CONFIG REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED GLOBAL)
  target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
endif()
