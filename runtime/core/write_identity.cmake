# Writes the source that holds the build's identity: the version, a hash of the sources that modules are made of,
# and one of the compiler and its flags. Usage: cmake -D OUTPUT=… -D VERSION=… -D FLAGS=… -D ROOT=… -P write_identity.cmake
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/runtime/core/*.h ${ROOT}/runtime/core/*.cpp ${ROOT}/kernels/*.h
     ${ROOT}/kernels/*.cpp ${ROOT}/kernels/*.cu ${ROOT}/collectives/*.h ${ROOT}/collectives/*.cpp ${ROOT}/collectives/*.cu
     ${ROOT}/model/arrow/*.cpp ${ROOT}/model/src/record_file.h)
list(SORT files)
set(all "")
foreach(file IN LISTS files)
  file(SHA256 ${ROOT}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 sources "${all}")
string(SHA256 flags "${FLAGS}")
string(SUBSTRING ${sources} 0 12 sources)
string(SUBSTRING ${flags} 0 8 flags)
file(WRITE ${OUTPUT} "#include \"tessera/core/loaded_module.h\"\n
const char* tessera_build_identity() { return \"${VERSION}-${sources}-${flags}\"; }\n")
