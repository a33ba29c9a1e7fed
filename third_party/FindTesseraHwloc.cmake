# Finds hwloc, as TesseraHwloc::hwloc: it has no CMake files.
include(FindPackageHandleStandardArgs)
find_path(TESSERA_HWLOC_INCLUDE hwloc.h)
find_library(TESSERA_HWLOC_LIBRARY hwloc)
mark_as_advanced(TESSERA_HWLOC_INCLUDE TESSERA_HWLOC_LIBRARY)
find_package_handle_standard_args(TesseraHwloc
  REQUIRED_VARS TESSERA_HWLOC_LIBRARY TESSERA_HWLOC_INCLUDE
  REASON_FAILURE_MESSAGE "install hwloc (libhwloc-dev), or name its folder in CMAKE_PREFIX_PATH")
if(TesseraHwloc_FOUND AND NOT TARGET TesseraHwloc::hwloc)
  add_library(TesseraHwloc::hwloc UNKNOWN IMPORTED)
  set_target_properties(TesseraHwloc::hwloc PROPERTIES IMPORTED_LOCATION ${TESSERA_HWLOC_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TESSERA_HWLOC_INCLUDE})
endif()
