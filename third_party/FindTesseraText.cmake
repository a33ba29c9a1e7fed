# Finds PCRE2 (8-bit) and utf8proc, as TesseraText::pcre2 and TesseraText::utf8proc: Debian's packages of them have
# no CMake files.
include(FindPackageHandleStandardArgs)
find_path(TESSERA_PCRE2_INCLUDE pcre2.h)
find_library(TESSERA_PCRE2_LIBRARY pcre2-8)
find_path(TESSERA_UTF8PROC_INCLUDE utf8proc.h)
find_library(TESSERA_UTF8PROC_LIBRARY utf8proc)
mark_as_advanced(TESSERA_PCRE2_INCLUDE TESSERA_PCRE2_LIBRARY TESSERA_UTF8PROC_INCLUDE TESSERA_UTF8PROC_LIBRARY)
find_package_handle_standard_args(TesseraText
  REQUIRED_VARS TESSERA_PCRE2_LIBRARY TESSERA_PCRE2_INCLUDE TESSERA_UTF8PROC_LIBRARY TESSERA_UTF8PROC_INCLUDE
  REASON_FAILURE_MESSAGE "install PCRE2 and utf8proc (libpcre2-dev, libutf8proc-dev), or name their folders in CMAKE_PREFIX_PATH")
if(TesseraText_FOUND)
  foreach(library IN ITEMS pcre2 utf8proc)
    string(TOUPPER ${library} name)
    if(NOT TARGET TesseraText::${library})
      add_library(TesseraText::${library} UNKNOWN IMPORTED)
      set_target_properties(TesseraText::${library} PROPERTIES IMPORTED_LOCATION ${TESSERA_${name}_LIBRARY}
                            INTERFACE_INCLUDE_DIRECTORIES ${TESSERA_${name}_INCLUDE})
    endif()
  endforeach()
endif()
