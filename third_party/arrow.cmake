# Finds Arrow's C++ library with Parquet, 24 or newer, for the module that reads tables (model/arrow): its CMake
# packages, or the headers and libraries in Python's package pyarrow, whose folder TESSERA_PYARROW names. Makes the target
# TesseraArrow::arrow, or none: Debian and Ubuntu have no package.
set(TESSERA_PYARROW "" CACHE PATH
  "The folder of Python's package pyarrow, by which .parquet and .arrow are read where Arrow's C++ library has no CMake package")
find_package(Arrow 24 CONFIG QUIET)
if(Arrow_FOUND)
  find_package(Parquet CONFIG QUIET)
endif()
if(TARGET Arrow::arrow_shared AND TARGET Parquet::parquet_shared)
  add_library(TesseraArrow::arrow INTERFACE IMPORTED)
  target_link_libraries(TesseraArrow::arrow INTERFACE Arrow::arrow_shared Parquet::parquet_shared)
elseif(TESSERA_PYARROW)
  file(GLOB arrow_library ${TESSERA_PYARROW}/libarrow.so.*)
  file(GLOB parquet_library ${TESSERA_PYARROW}/libparquet.so.*)
  if(NOT EXISTS ${TESSERA_PYARROW}/include/parquet/arrow/reader.h OR NOT arrow_library OR NOT parquet_library)
    message(FATAL_ERROR "TESSERA_PYARROW is '${TESSERA_PYARROW}', which has no include/parquet and libparquet.so; name the "
                        "folder that python3 -c 'import pyarrow; print(pyarrow.get_include())' prints, without /include")
  endif()
  add_library(TesseraArrow::arrow INTERFACE IMPORTED)
  target_include_directories(TesseraArrow::arrow SYSTEM INTERFACE ${TESSERA_PYARROW}/include)
  target_link_libraries(TesseraArrow::arrow INTERFACE ${arrow_library} ${parquet_library})
endif()
