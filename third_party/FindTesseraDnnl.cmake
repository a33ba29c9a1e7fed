# Finds oneDNN, as DNNL::dnnl, without its own CMake package: Debian's oneDNN has a GPU engine besides, so its package
# insists on OpenCL's headers and loader, which neither we nor the users of our library call. At run time the loader
# comes with Debian's package of the library.
include(FindPackageHandleStandardArgs)
find_path(TESSERA_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)
find_library(TESSERA_DNNL_LIBRARY dnnl)
mark_as_advanced(TESSERA_DNNL_INCLUDE TESSERA_DNNL_LIBRARY)
find_package_handle_standard_args(TesseraDnnl REQUIRED_VARS TESSERA_DNNL_LIBRARY TESSERA_DNNL_INCLUDE
  REASON_FAILURE_MESSAGE "install oneDNN (libdnnl-dev), or name its folder in CMAKE_PREFIX_PATH")
if(TesseraDnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${TESSERA_DNNL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TESSERA_DNNL_INCLUDE})
endif()
