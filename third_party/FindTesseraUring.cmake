# Finds liburing, as TesseraUring::uring: Debian's package of it has no CMake file.
include(FindPackageHandleStandardArgs)
find_path(TESSERA_URING_INCLUDE liburing.h)
find_library(TESSERA_URING_LIBRARY uring)
mark_as_advanced(TESSERA_URING_INCLUDE TESSERA_URING_LIBRARY)
find_package_handle_standard_args(TesseraUring REQUIRED_VARS TESSERA_URING_LIBRARY TESSERA_URING_INCLUDE
  REASON_FAILURE_MESSAGE "install liburing (liburing-dev), or name its folder in CMAKE_PREFIX_PATH")
if(TesseraUring_FOUND AND NOT TARGET TesseraUring::uring)
  add_library(TesseraUring::uring UNKNOWN IMPORTED)
  set_target_properties(TesseraUring::uring PROPERTIES IMPORTED_LOCATION ${TESSERA_URING_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TESSERA_URING_INCLUDE})
endif()
